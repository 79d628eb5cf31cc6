//! What submitted transfers meet at, in a model checker: every order in which few threads may take the locks, wait and
//! be woken. CONTRIBUTING.md says how it is run.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use glake_core::sim::SimDriver;
use loom::thread;

use super::*;
use crate::jobs::{Body, Jobs};
use crate::pending::{Pending, Promise, promise};
use crate::slots::Slots;
use crate::sync::{Condvar, Mutex};
use crate::{Cancel, Priority};

/// Runs `program` in every order, with up to three threads cut off while they could go on. A thread that waits for
/// ever fails it.
fn in_every_order(program: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(program);
}

/// A number to wait for.
#[derive(Default)]
struct Count {
    n: Mutex<usize>,
    has_changed: Condvar,
}

impl Count {
    fn add(&self) {
        *self.n.lock().unwrap() += 1;
        self.has_changed.notify_all();
    }

    fn wait_for(&self, least: usize) {
        let mut n = self.n.lock().unwrap();
        while *n < least {
            n = self.has_changed.wait(n).unwrap();
        }
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.add();
    }
}

/// An outcome that counts how often it is dropped.
struct Outcome(Arc<AtomicUsize>);

impl Drop for Outcome {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

type Promised = (Promise<Outcome, ()>, Pending<Outcome, ()>);

/// A promise, what comes of it, and how many outcomes were dropped.
fn promised() -> (Promised, Arc<AtomicUsize>) {
    (promise(Cancel::new()), Arc::default())
}

fn keep(promise: Promise<Outcome, ()>, n_dropped: &Arc<AtomicUsize>) -> thread::JoinHandle<()> {
    let outcome = Outcome(Arc::clone(n_dropped));
    thread::spawn(move || promise.keep(Ok(outcome)))
}

#[test]
fn who_waits_gets_the_outcome_however_it_races_with_it() {
    in_every_order(|| {
        let ((promise, pending), n_dropped) = promised();
        let other = keep(promise, &n_dropped);
        let outcome = pending.wait().unwrap();
        other.join().unwrap();
        assert_eq!(n_dropped.load(Ordering::SeqCst), 0);
        drop(outcome);
        assert_eq!(n_dropped.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn no_wake_up_is_lost_between_a_poll_and_the_outcome() {
    in_every_order(|| {
        let ((promise, mut pending), n_dropped) = promised();
        let other = keep(promise, &n_dropped);
        let woken = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut poll = || std::pin::Pin::new(&mut pending).poll(&mut Context::from_waker(&waker));
        let outcome = match poll() {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => {
                woken.wait_for(1);
                let Poll::Ready(outcome) = poll() else { panic!("it was woken for nothing") };
                outcome
            }
        };
        other.join().unwrap();
        assert!(outcome.is_ok());
    });
}

#[test]
fn the_last_of_two_wakers_is_woken() {
    in_every_order(|| {
        let ((promise, mut pending), n_dropped) = promised();
        let other = keep(promise, &n_dropped);
        let woken = [(); 2].map(|()| Arc::new(Count::default()));
        let mut poll = |by: &Arc<Count>| {
            let waker = Waker::from(Arc::clone(by));
            std::pin::Pin::new(&mut pending).poll(&mut Context::from_waker(&waker))
        };
        if poll(&woken[0]).is_pending() && poll(&woken[1]).is_pending() {
            woken[1].wait_for(1);
        }
        other.join().unwrap();
    });
}

#[test]
fn an_outcome_that_nobody_takes_is_dropped_once() {
    in_every_order(|| {
        let ((promise, pending), n_dropped) = promised();
        let other = keep(promise, &n_dropped);
        drop(pending);
        other.join().unwrap();
        assert_eq!(n_dropped.load(Ordering::SeqCst), 1);
    });
}

/// A queue of which `n` jobs run at a time, on threads of the model.
fn jobs(n: usize) -> Jobs {
    Jobs::with_threads(n, |_, body: Body| {
        thread::spawn(body);
        Ok(())
    })
}

fn submit(jobs: &Jobs, priority: Priority, done: &Arc<Count>) {
    let done = Arc::clone(done);
    jobs.submit(priority, Box::new(move |_: io::Result<()>| done.add()));
}

#[test]
fn a_job_is_done_though_the_thread_goes_to_sleep_when_it_is_submitted() {
    in_every_order(|| {
        let (jobs, done) = (jobs(1), Arc::new(Count::default()));
        submit(&jobs, Priority::Normal, &done);
        submit(&jobs, Priority::Normal, &done);
        done.wait_for(2);
        submit(&jobs, Priority::Normal, &done);
        done.wait_for(3);
    });
}

#[test]
fn jobs_of_two_threads_and_priorities_are_done() {
    in_every_order(|| {
        let (jobs, done) = (Arc::new(jobs(1)), Arc::new(Count::default()));
        let other = thread::spawn({
            let (jobs, done) = (Arc::clone(&jobs), Arc::clone(&done));
            move || submit(&jobs, Priority::High, &done)
        });
        submit(&jobs, Priority::Low, &done);
        other.join().unwrap();
        done.wait_for(2);
    });
}

/// Threads that wait for ever fail the model: closing the queue wakes them all.
#[test]
fn all_threads_end_with_the_queue_behind_all_jobs() {
    in_every_order(|| {
        let (jobs, done) = (jobs(1), Arc::new(Count::default()));
        submit(&jobs, Priority::Low, &done);
        submit(&jobs, Priority::High, &done);
        submit(&jobs, Priority::Low, &done);
        drop(jobs);
        done.wait_for(3);
    });
}

#[test]
fn there_are_never_more_slots_than_may_be() {
    in_every_order(|| {
        let driver = Arc::new(SimDriver::h200(1));
        let slots = Arc::new(Slots::new(driver, 64 << 10, 64 << 10));
        let n_lent = Arc::new(AtomicUsize::new(0));
        let borrow = |slots: &Slots, n_lent: &AtomicUsize| {
            let Some(slot) = slots.take(GPU).unwrap() else { return 0 };
            assert_eq!(n_lent.fetch_add(1, Ordering::SeqCst), 0, "two have the only slot");
            n_lent.fetch_sub(1, Ordering::SeqCst);
            slots.put(slot);
            1
        };
        let other = thread::spawn({
            let (slots, n_lent) = (Arc::clone(&slots), Arc::clone(&n_lent));
            move || borrow(&slots, &n_lent)
        });
        let n_here = borrow(&slots, &n_lent);
        assert!(n_here + other.join().unwrap() > 0, "nobody got it");
        assert!(slots.take(GPU).unwrap().is_some(), "it did not come back");
        assert!(slots.take(GPU).unwrap().is_none());
    });
}
