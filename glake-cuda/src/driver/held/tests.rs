use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const D0: DeviceId = DeviceId(0);
const D1: DeviceId = DeviceId(1);

/// Bytes that lie in the buffer itself, others at each time that they are asked for.
#[derive(Debug)]
struct Shifty {
    bytes: [[u8; 4]; 2],
    n_asked: AtomicUsize,
    n_dropped: Arc<AtomicUsize>,
}

impl Shifty {
    fn boxed(n_dropped: &Arc<AtomicUsize>) -> HostBuffer {
        let n_dropped = Arc::clone(n_dropped);
        Box::new(Self { bytes: [[1; 4], [2; 4]], n_asked: AtomicUsize::new(0), n_dropped })
    }

    fn next(&self) -> usize {
        self.n_asked.fetch_add(1, Ordering::Relaxed) % 2
    }
}

impl AsRef<[u8]> for Shifty {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.next()]
    }
}

impl AsMut<[u8]> for Shifty {
    fn as_mut(&mut self) -> &mut [u8] {
        let next = self.next();
        &mut self.bytes[next]
    }
}

impl Drop for Shifty {
    fn drop(&mut self) {
        self.n_dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// A table with one buffer, and the count of drops.
fn table() -> (Table, HostId, Arc<AtomicUsize>) {
    let n_dropped = Arc::default();
    let mut table = Table::default();
    let id = table.insert(Host::held(Held::Owned(Shifty::boxed(&n_dropped))));
    (table, id, n_dropped)
}

/// A copy begins and ends with a mark of its own.
fn copy(table: &mut Table, id: HostId, mark: Mark) {
    table.begin(id, &(0..4), Way::ToHost).unwrap();
    assert!(table.mark(id, mark) > 0);
    assert!(table.end(id, None).is_none());
}

fn mark(n: u64) -> Mark {
    Mark { queue: Queue::Legacy, device: D0, event: Event(n) }
}

#[test]
fn bytes_are_those_of_the_first_answer_and_stay_there() {
    let (mut table, id, n_dropped) = table();
    let all = table.begin(id, &(0..4), Way::ToHost).unwrap();
    let part = table.begin(id, &(1..3), Way::ToDevice).unwrap();
    assert_eq!((all.cast::<u8>().wrapping_add(1), part.len()), (part.cast::<u8>(), 2));
    // SAFETY: the buffer is in the table, and nobody else uses its bytes.
    unsafe { part.cast::<u8>().write(9) };
    let mut moved = Box::new(table);
    assert!(moved.end(id, None).is_none() && moved.end(id, None).is_none());
    let mut buffer = moved.take(id).unwrap().unwrap();
    // It was asked once before, so the next answer but one is the first.
    assert_eq!((*buffer).as_mut(), [2; 4]);
    assert_eq!((*buffer).as_mut(), [1, 9, 1, 1]);
    assert_eq!(n_dropped.load(Ordering::Relaxed), 0);
    drop(buffer);
    assert_eq!(n_dropped.load(Ordering::Relaxed), 1);
}

#[test]
fn a_buffer_comes_back_without_users_and_marks_only() {
    let (mut table, id, n_dropped) = table();
    table.begin(id, &(0..4), Way::ToHost).unwrap();
    assert!(table.take(id).unwrap().is_none(), "it has a user");
    assert_eq!(table.marks(id).unwrap(), None);
    table.mark(id, mark(5));
    assert!(table.end(id, None).is_none());
    assert!(table.take(id).unwrap().is_none(), "it has a mark");
    let (n_begun, events) = table.marks(id).unwrap().unwrap();
    assert_eq!(events, [(Event(5), D0)]);
    assert_eq!(table.forget(id, n_begun, &events), events);
    assert!(table.take(id).unwrap().is_some());
    assert_eq!(table.take(id).unwrap_err(), DriverError::UnknownHost(id));
    assert_eq!(n_dropped.load(Ordering::Relaxed), 1);
}

#[test]
fn a_mark_stays_if_a_copy_began_since_it_was_looked_at() {
    let (mut table, id, _) = table();
    copy(&mut table, id, mark(5));
    let (n_begun, events) = table.marks(id).unwrap().unwrap();
    table.begin(id, &(0..4), Way::ToHost).unwrap();
    assert_eq!(table.event(id, D0, &Queue::Legacy), Some(Event(5)));
    assert_eq!(table.forget(id, n_begun, &events), [], "it may have been recorded again");
    assert!(table.end(id, None).is_none());
    assert_eq!(table.forget(id, n_begun, &events), []);
    assert!(table.take(id).unwrap().is_none());
}

#[test]
fn each_queue_of_each_device_has_an_event_of_its_own() {
    let (mut table, id, _) = table();
    let other = std::thread::spawn(|| std::thread::current().id()).join().unwrap();
    let queues = [Queue::Legacy, Queue::PerThread(std::thread::current().id()), Queue::PerThread(other)];
    let mut n = 0;
    for device in [D0, D1] {
        for queue in &queues {
            assert_eq!(table.event(id, device, queue), None);
            copy(&mut table, id, Mark { queue: queue.clone(), device, event: Event(n) });
            assert_eq!(table.event(id, device, queue), Some(Event(n)));
            n += 1;
        }
    }
    let (n_begun, _) = table.marks(id).unwrap().unwrap();
    let passed = [(Event(1), D0), (Event(4), D0)];
    assert_eq!(table.forget(id, n_begun, &passed), [(Event(1), D0)], "event 4 is the other device's");
    assert_eq!(table.marks(id).unwrap().unwrap().1.len(), 5);
}

#[test]
fn the_last_user_gets_what_was_let_go() {
    let (mut table, id, _) = table();
    table.begin(id, &(0..4), Way::ToHost).unwrap();
    table.begin(id, &(0..4), Way::ToHost).unwrap();
    assert!(table.let_go(id).is_none() && table.let_go(id).is_none());
    assert_eq!(table.begin(id, &(0..4), Way::ToHost), Err(DriverError::UnknownHost(id)));
    assert_eq!(table.take(id).unwrap_err(), DriverError::UnknownHost(id));
    assert_eq!(table.mark(id, mark(3)), 1, "a user still marks its copy");
    assert!(table.end(id, None).is_none());
    assert_eq!(table.end(id, None).unwrap().events(), [(Event(3), D0)]);
    assert!(table.end(id, None).is_none());
}

#[test]
fn what_is_adrift_never_comes_back() {
    let (mut table, id, _) = table();
    table.begin(id, &(0..4), Way::ToHost).unwrap();
    assert!(table.end(id, Some(D1)).is_none());
    assert_eq!(table.take(id).unwrap_err(), DriverError::DeviceLost);
    assert_eq!(table.let_go(id).unwrap().adrift, [D1]);
}

#[test]
fn a_loan_ends_behind_its_users_and_is_not_let_go() {
    let (hosts, mut bytes) = (Hosts::default(), [0; 4]);
    let id = lock(&hosts.table).insert(Host::lent(Lent::Sink(&mut bytes)));
    lock(&hosts.table).begin(id, &(0..4), Way::ToHost).unwrap();
    assert!(lock(&hosts.table).let_go(id).is_none());
    assert_eq!(lock(&hosts.table).take(id).unwrap_err(), DriverError::UnknownHost(id));
    std::thread::scope(|scope| {
        let loan = scope.spawn(|| hosts.end_loan(id).unwrap().events());
        while lock(&hosts.table).begin(id, &(0..0), Way::ToHost).is_ok() {
            assert!(hosts.end(id, None).is_none());
        }
        assert!(!loan.is_finished(), "it has a user");
        lock(&hosts.table).mark(id, mark(7));
        assert!(hosts.end(id, None).is_none());
        assert_eq!(loan.join().unwrap(), [(Event(7), D0)]);
    });
    assert!(hosts.end_loan(id).is_none(), "once");
}
