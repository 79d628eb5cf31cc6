//! Host memory under asynchronous copies.
//!
//! Copies go straight from and to the memory that is held or lent, pinned or not: of memory that is not, CUDA
//! makes the detour, and the caller may wait for the stream. Behind the copies of a queue stands one event,
//! which each copy records again.

use std::mem::ManuallyDrop;
use std::ops::Range;

use glake_core::driver::{Held, HostBuffer, HostMemory, Lent, Result};
use glake_core::units::{DeviceId, DevicePtr, HostId, StreamId};

use super::held::{Host, Mark, Way};
use super::stream::OnStream;
use super::{CudaDriver, Shared, lock};
use crate::call::{copy, device, order, size};

/// From so many marks on, those that have passed are looked for: streams come and go.
const MANY_MARKS: usize = 16;

/// A user of host memory, during one copy. The memory is nobody else's meanwhile.
struct Using<'a> {
    shared: &'a Shared,
    id: HostId,
    bytes: *mut [u8],
    /// The device that may work on the memory without an event behind its copy.
    adrift: Option<DeviceId>,
}

impl Using<'_> {
    /// Records an event behind the copy; how many marks there are if it is a new one.
    fn mark(&self, on: &OnStream<'_>) -> Result<usize> {
        let (table, device, queue) = (&self.shared.hosts.table, on.device.id, on.queue());
        let known = lock(table).event(self.id, device, &queue);
        if let Some(event) = known {
            // SAFETY: `on` keeps the stream alive; the event is the driver's, of the same device.
            on.device.watched(unsafe { order::record(event, on.raw) })?;
            return Ok(0);
        }
        let event = on.device.watched(on.device.record(on.raw))?;
        Ok(lock(table).mark(self.id, Mark { queue, device, event }))
    }
}

impl Drop for Using<'_> {
    fn drop(&mut self) {
        if let Some(host) = self.shared.hosts.end(self.id, self.adrift) {
            self.shared.give_up(host);
        }
    }
}

/// Memory on loan, waited for also where the borrower panics.
struct Loan<'a> {
    shared: &'a Shared,
    id: HostId,
}

impl Loan<'_> {
    /// Waits until nobody uses the memory and no device touches it; at once if it was done before.
    fn end(&self) -> Result<()> {
        match self.shared.hosts.end_loan(self.id) {
            Some(host) => self.shared.settle_host(&host),
            None => Ok(()),
        }
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl Shared {
    /// Enqueues a copy between the device at `at` and a part of host memory.
    fn copy_host(
        &self,
        way: Way,
        at: DevicePtr,
        host: HostId,
        range: &Range<u64>,
        stream: StreamId,
    ) -> Result<()> {
        self.poll();
        let on = self.on_for_host(stream)?;
        let bytes = lock(&self.hosts.table).begin(host, range, way)?;
        let mut using = Using { shared: self, id: host, bytes, adrift: None };
        self.may(&on, at, bytes.len(), way.need())?;
        if bytes.is_empty() {
            return Ok(());
        }
        let _relaxed = on.device.enter_beside_captures()?;
        using.adrift = Some(on.device.id);
        let enqueued = match way {
            // SAFETY: the map says that `at` is mapped and writable. The bytes are readable and nobody
            // writes them while `using` lives, and behind that until an event behind the copy has passed.
            Way::ToDevice => unsafe { copy::to_device(at, using.bytes, on.raw) },
            // SAFETY: the map says that `at` is mapped and readable. The table says that the bytes may be
            // written; they are nobody else's until then.
            Way::ToHost => unsafe { copy::to_host(using.bytes, at, on.raw) },
        };
        // Also where the call failed: a part may have been enqueued. What cannot be marked is waited for.
        let marked = using.mark(&on);
        let n_marks = marked.or_else(|_| on.settle().map(|()| 0));
        if n_marks.is_ok() {
            using.adrift = None;
        }
        drop(using);
        if let Ok(n_marks) = n_marks
            && n_marks >= MANY_MARKS
            && n_marks.is_power_of_two()
        {
            // What fails here fails again when the memory is asked for.
            let _ = self.look_at_host(host);
        }
        on.device.watched(enqueued)?;
        n_marks.map(drop)
    }

    /// Looks which copies of some host memory are done. Does not block.
    fn look_at_host(&self, id: HostId) -> Result<()> {
        let marks = lock(&self.hosts.table).marks(id)?;
        let Some((n_begun, mut events)) = marks else { return Ok(()) };
        let mut looked = Ok(());
        events.retain(|(event, device)| match self.has_passed(*event, *device) {
            Ok(has_passed) => has_passed,
            Err(error) => {
                looked = Err(error);
                false
            }
        });
        let passed = lock(&self.hosts.table).forget(id, n_begun, &events);
        self.recycle(passed);
        looked
    }

    /// Drops host memory whose id is forgotten, behind its copies. Does not block.
    fn give_up(&self, host: Host) {
        let events = host.events();
        if !host.adrift.is_empty() {
            // Nobody knows when the copies are done: it is kept for good.
            let _leaked = ManuallyDrop::new(host);
        } else if events.is_empty() {
            drop(host.owner);
        } else {
            self.keep_behind(Box::new(host.owner), events);
        }
    }

    /// Blocks until no device touches host memory any more.
    fn settle_host(&self, host: &Host) -> Result<()> {
        let mut settled = Ok(());
        for mark in &host.marks {
            settled = settled.and(self.settle_mark(mark));
        }
        for device in &host.adrift {
            settled = settled.and(self.settle_device(*device));
        }
        self.recycle(host.events());
        settled
    }

    /// Blocks until an event has passed; whatever happens, no copy before it touches host memory any
    /// more.
    fn settle_mark(&self, mark: &Mark) -> Result<()> {
        let device = self.device(mark.device)?;
        // Waiting for the event does not need the context, so it is tried in any case.
        let entered = device.enter_beside_captures();
        // SAFETY: the driver's events live until it closes.
        let passed = device.watched(unsafe { order::synchronize(mark.event) });
        match (passed, entered) {
            // Refused or lost. The wider wait covers the first; on a lost device nothing runs any more.
            (Err(_), Ok(_entered)) => device.watched(device::synchronize()),
            (Err(_), Err(error)) => Err(error),
            (Ok(()), _) => Ok(()),
        }
    }

    /// Blocks until all work of a device is done.
    fn settle_device(&self, id: DeviceId) -> Result<()> {
        let device = self.device(id)?;
        let _entered = device.enter_beside_captures()?;
        device.watched(device::synchronize())
    }

    /// Gives up all host memory, because nobody uses the driver any more.
    pub(crate) fn give_up_hosts(&self) {
        let hosts = lock(&self.hosts.table).drain();
        hosts.for_each(|host| self.give_up(host));
    }

    /// Drops all host memory, because all work is done; for closing.
    pub(crate) fn drop_hosts(&self) {
        let hosts = lock(&self.hosts.table).drain();
        for host in hosts {
            self.recycle(host.events());
            drop(host.owner);
        }
    }
}

impl HostMemory for CudaDriver {
    /// As said; of `near` only that there is such a device: on a machine with several memories CUDA takes
    /// what is close to the calling thread's processor.
    fn pin(&self, bytes: u64, near: DeviceId) -> Result<HostBuffer> {
        self.device(near)?;
        Ok(Box::new(self.pinned(size(bytes))?))
    }

    /// Also of memory that somebody else has pinned in the process, of which the first and the last byte
    /// are asked for.
    fn is_pinned(&self, bytes: &[u8]) -> bool {
        let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
        if self.shared.pinned.has_lent(bytes) {
            return true;
        }
        let used = self.shared.devices.iter().find(|device| device.is_in_use());
        let _entered = used.map(super::Device::enter_beside_captures);
        copy::is_pinned(first) && copy::is_pinned(last)
    }

    fn hold(&self, memory: Held) -> HostId {
        let host = Host::held(memory);
        lock(&self.shared.hosts.table).insert(host)
    }

    fn let_go(&self, host: HostId) {
        self.shared.poll();
        let host = lock(&self.shared.hosts.table).let_go(host);
        if let Some(host) = host {
            self.shared.give_up(host);
        }
    }

    fn take_back(&self, host: HostId) -> Result<Option<HostBuffer>> {
        self.shared.poll();
        self.shared.look_at_host(host)?;
        lock(&self.shared.hosts.table).take(host)
    }

    fn lend(&self, memory: Lent<'_>, body: &mut dyn FnMut(HostId) -> Result<()>) -> Result<()> {
        let host = Host::lent(memory);
        // The caller's borrow lasts for the call, and this does not return, nor unwind, before the loan has
        // ended.
        let loan = Loan { shared: &self.shared, id: lock(&self.shared.hosts.table).insert(host) };
        let done = body(loan.id);
        done.and(loan.end())
    }

    fn write_from(&self, dst: DevicePtr, host: HostId, from: Range<u64>, stream: StreamId) -> Result<()> {
        self.shared.copy_host(Way::ToDevice, dst, host, &from, stream)
    }

    fn read_into(&self, src: DevicePtr, host: HostId, into: Range<u64>, stream: StreamId) -> Result<()> {
        self.shared.copy_host(Way::ToHost, src, host, &into, stream)
    }
}
