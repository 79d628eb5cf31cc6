//! Background work: jobs by priority and age, and the few threads that do them.
//!
//! So many jobs run at a time, not counting those of lower priority: what is urgent does not wait in line
//! behind what is not. Threads start when a job needs one and end with the queue.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};

use crate::control::Priority;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// What is to be done; told why if there is no thread to do it on.
pub(crate) type Job = Box<dyn FnOnce(io::Result<()>) + Send>;
pub(crate) type Body = Box<dyn FnOnce() + Send>;
type Spawn = fn(String, Body) -> io::Result<()>;

/// One for each priority.
const N_RANKS: usize = 3;

/// Which job is next.
#[derive(Default)]
struct Queue {
    waiting: [VecDeque<Job>; N_RANKS],
    running: [usize; N_RANKS],
    n_threads: usize,
    is_closed: bool,
}

impl Queue {
    /// Whether one more job of `rank` may run beside those that do, where `n` of it and above may.
    fn has_room(running: [usize; N_RANKS], rank: usize, n: usize) -> bool {
        running[rank..].iter().sum::<usize>() < n
    }

    /// The next job, and its rank.
    fn take(&mut self, n: usize) -> Option<(usize, Job)> {
        let running = self.running;
        let is_next = |rank: &usize| !self.waiting[*rank].is_empty() && Self::has_room(running, *rank, n);
        let rank = (0..N_RANKS).rev().find(is_next)?;
        self.running[rank] += 1;
        self.waiting[rank].pop_front().map(|job| (rank, job))
    }

    /// How many threads would have something to do.
    fn n_needed(&self, n: usize) -> usize {
        let mut running = self.running;
        for rank in (0..N_RANKS).rev() {
            for _ in 0..self.waiting[rank].len().min(n) {
                running[rank] += usize::from(Self::has_room(running, rank, n));
            }
        }
        running.iter().sum()
    }
}

struct Shared {
    queue: Mutex<Queue>,
    has_changed: Condvar,
    n_at_a_time: usize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a thread does until the queue is closed and empty.
    fn work(&self) {
        let mut queue = self.lock();
        loop {
            if let Some((rank, job)) = queue.take(self.n_at_a_time) {
                drop(queue);
                // A job that panics has told whoever waits for it.
                let _ = catch_unwind(AssertUnwindSafe(|| job(Ok(()))));
                queue = self.lock();
                queue.running[rank] -= 1;
                if queue.is_closed {
                    self.has_changed.notify_all();
                }
            } else if queue.is_closed && queue.waiting.iter().all(VecDeque::is_empty) {
                queue.n_threads -= 1;
                return;
            } else {
                queue = self.has_changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

/// A queue of jobs. Dropping it waits for nothing: jobs that are in it are done.
pub(crate) struct Jobs {
    shared: Arc<Shared>,
    spawn: Spawn,
}

impl Jobs {
    /// A queue of which `n` jobs run at a time, and as many of each higher priority.
    pub(crate) fn new(n: usize) -> Self {
        Self::with_threads(n, |name, body| std::thread::Builder::new().name(name).spawn(body).map(drop))
    }

    pub(crate) fn with_threads(n: usize, spawn: Spawn) -> Self {
        let (queue, has_changed) = (Mutex::new(Queue::default()), Condvar::new());
        Self { shared: Arc::new(Shared { queue, has_changed, n_at_a_time: n }), spawn }
    }

    /// Appends a job. If no thread can be started for it and there is none, it is told so at once.
    pub(crate) fn submit(&self, priority: Priority, job: Job) {
        let mut queue = self.shared.lock();
        queue.waiting[priority as usize].push_back(job);
        if queue.n_threads >= queue.n_needed(self.shared.n_at_a_time) {
            self.shared.has_changed.notify_one();
            return;
        }
        let shared = Arc::clone(&self.shared);
        let name = format!("glake-transfer-{}", queue.n_threads);
        let Err(error) = (self.spawn)(name, Box::new(move || shared.work())) else {
            queue.n_threads += 1;
            return;
        };
        let refused = if queue.n_threads == 0 { queue.waiting[priority as usize].pop_back() } else { None };
        drop(queue);
        if let Some(job) = refused {
            job(Err(error));
        }
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.has_changed.notify_all();
    }
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.shared.lock();
        f.debug_struct("Jobs")
            .field("waiting", &queue.waiting.each_ref().map(VecDeque::len))
            .field("running", &queue.running)
            .field("n_threads", &queue.n_threads)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
