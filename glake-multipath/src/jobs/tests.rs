use std::sync::mpsc;

use super::*;

fn queue(waiting: [usize; 3], running: [usize; 3]) -> Queue {
    let jobs = |n| (0..n).map(|_| Box::new(|_| {}) as Job).collect();
    Queue { waiting: waiting.map(jobs), running, ..Queue::default() }
}

#[test]
fn the_highest_priority_goes_first_and_finds_room_beside_lower_ones() {
    let next = |waiting, running| queue(waiting, running).take(2).map(|(rank, _)| rank);
    assert_eq!(next([1, 1, 1], [0, 0, 0]), Some(2));
    assert_eq!(next([1, 1, 0], [1, 0, 0]), Some(1));
    assert_eq!(next([1, 0, 0], [2, 0, 0]), None);
    assert_eq!(next([1, 1, 0], [2, 0, 0]), Some(1), "beside two that are less urgent");
    assert_eq!(next([0, 1, 0], [0, 0, 2]), None, "behind two that are more urgent");
    assert_eq!(next([0, 1, 1], [0, 2, 2]), None);
}

#[test]
fn threads_are_needed_for_what_may_run() {
    let needed = |waiting, running| queue(waiting, running).n_needed(2);
    assert_eq!(needed([0, 0, 0], [0, 0, 0]), 0);
    assert_eq!(needed([5, 0, 0], [0, 0, 0]), 2);
    assert_eq!(needed([5, 5, 5], [0, 0, 0]), 2);
    assert_eq!(needed([5, 5, 5], [2, 1, 0]), 5, "two urgent ones start");
    assert_eq!(needed([5, 5, 5], [2, 2, 0]), 6);
}

#[test]
fn jobs_of_one_priority_are_done_in_turn_and_a_panic_ends_none() {
    let (jobs, (tell, told)) = (Jobs::new(1), mpsc::channel());
    let (go, gate) = mpsc::channel();
    jobs.submit(Priority::Normal, Box::new(move |_| gate.recv().unwrap()));
    for n in 0..20 {
        let tell = tell.clone();
        let priority = if n % 2 == 0 { Priority::Low } else { Priority::Normal };
        jobs.submit(
            priority,
            Box::new(move |_| {
                tell.send((priority, n, std::thread::current().name().map(str::to_owned))).unwrap();
                assert!(n != 3, "a job that panics");
            }),
        );
    }
    go.send(()).unwrap();
    drop(jobs);
    drop(tell);
    let order: Vec<_> = told.into_iter().collect();
    assert!(order.iter().all(|(_, _, name)| name.as_deref() == Some("glake-transfer-0")), "{order:?}");
    let order: Vec<_> = order.into_iter().map(|(_, n, _)| n).collect();
    let expected: Vec<u32> = (0..10).map(|n| 2 * n + 1).chain((0..10).map(|n| 2 * n)).collect();
    assert_eq!(order, expected, "all of them, though the queue was dropped");
}

#[test]
fn threads_end_with_the_queue() {
    let jobs = Jobs::new(2);
    let shared = Arc::downgrade(&jobs.shared);
    let (tell, told) = mpsc::channel();
    for _ in 0..10 {
        let tell = tell.clone();
        jobs.submit(Priority::High, Box::new(move |_| tell.send(()).unwrap()));
    }
    assert_eq!(told.iter().take(10).count(), 10);
    assert!((1..=2).contains(&jobs.shared.lock().n_threads));
    drop(jobs);
    while shared.strong_count() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn without_a_thread_a_job_hears_why() {
    let jobs = Jobs::with_threads(2, |_, _| Err(io::Error::from(io::ErrorKind::WouldBlock)));
    let (tell, told) = mpsc::channel();
    jobs.submit(Priority::Low, Box::new(move |thread| tell.send(thread.map_err(|e| e.kind())).unwrap()));
    assert_eq!(told.recv(), Ok(Err(io::ErrorKind::WouldBlock)));
    assert!(jobs.shared.lock().waiting.iter().all(VecDeque::is_empty));
}
