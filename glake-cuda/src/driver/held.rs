//! The table of host memory that the driver holds: whose it is, who uses it, which events stand behind its
//! copies. It decides, [`host`](super::host) acts.
//!
//! The rule that all else hangs on: where host memory has no user, no mark and is nowhere adrift, no device
//! touches it. A call is a user from before its copy is enqueued until a mark stands behind that; a mark
//! goes when its event has passed and no call has begun since it was looked at.

use std::collections::BTreeMap;
use std::mem::{self, ManuallyDrop};
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::{Condvar, Mutex, PoisonError};

use glake_core::driver::{DriverError, Held, HostBuffer, HostBytes, Lent, Result, SharedBytes};
use glake_core::units::{DeviceId, HostId};

use super::lock;
use super::space::Need;
use super::stream::Queue;
use crate::call::Event;

/// An event and its device.
pub(crate) type DeviceEvent = (Event, DeviceId);

/// Where a copy with host memory goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    ToDevice,
    ToHost,
}

impl Way {
    /// What the copy does with device memory.
    pub(crate) fn need(self) -> Need {
        match self {
            Self::ToDevice => Need::Write,
            Self::ToHost => Need::Read,
        }
    }
}

/// A buffer that somebody handed over.
///
/// It is a raw pointer, because a `Box` says, at each of its moves, that nobody else reaches what lies in
/// it. The bytes may lie right there, and a device reaches them.
pub(crate) struct Buffer(NonNull<dyn HostBytes>);

// SAFETY: a `Buffer` owns what it points to like a `Box`, and that is `Send`: every `HostBytes` is. Nobody
// else has the pointer, and the device's view of the bytes knows no threads.
unsafe impl Send for Buffer {}

impl Buffer {
    fn new(buffer: HostBuffer) -> Self {
        Self(NonNull::from(Box::leak(buffer)))
    }

    /// The bytes. Nobody may reach into the buffer while they are used.
    fn bytes(&mut self) -> *mut [u8] {
        // SAFETY: the pointer is that of a leaked box, which `self` owns, borrowed exclusively here.
        let buffer = unsafe { self.0.as_mut() };
        ptr::from_mut(buffer.as_mut())
    }

    fn into_box(self) -> HostBuffer {
        let buffer = ManuallyDrop::new(self);
        // SAFETY: the pointer is that of a leaked box; `self` owns it, and is not dropped.
        unsafe { Box::from_raw(buffer.0.as_ptr()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the pointer is that of a leaked box, which `self` owns.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Whose the bytes are. Dropping it frees them.
pub(crate) enum Owner {
    Buffer(Buffer),
    /// Held only to be dropped: the bytes are those of this share.
    Shared(#[allow(dead_code, reason = "keeps the bytes alive")] SharedBytes),
    /// The borrower, who waits for the end of the loan.
    Lent,
}

/// An event behind all copies of some host memory on one queue of one device.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pub(crate) queue: Queue,
    pub(crate) device: DeviceId,
    pub(crate) event: Event,
}

/// Some host memory.
pub(crate) struct Host {
    /// Asked for once: a buffer may give another answer each time.
    bytes: *mut [u8],
    can_be_written: bool,
    pub(crate) owner: Owner,
    pub(crate) marks: Vec<Mark>,
    /// Devices that may work on it for ever, for all that is known: no event could be recorded, nor the
    /// copy be waited for.
    pub(crate) adrift: Vec<DeviceId>,
    n_users: usize,
    n_begun: u64,
    /// Let go, or at the end of its loan: its id is known no more.
    is_gone: bool,
}

// SAFETY: `bytes` is the only part that is not `Send` by itself. It stands for bytes that belong to
// `owner`, which may go to any thread, or to a borrower, whose `&[u8]` or `&mut [u8]` might as well. It is
// handed to the driver only, whose copies are of no thread.
unsafe impl Send for Host {}

impl Host {
    fn new(bytes: *mut [u8], can_be_written: bool, owner: Owner) -> Self {
        let (marks, adrift) = (Vec::new(), Vec::new());
        Self { bytes, can_be_written, owner, marks, adrift, n_users: 0, n_begun: 0, is_gone: false }
    }

    /// Memory to be held. Nobody asks the owner for bytes again: what was borrowed from it here stays
    /// borrowed until it comes out of the table.
    pub(crate) fn held(memory: Held) -> Self {
        match memory {
            Held::Owned(buffer) => {
                let mut buffer = Buffer::new(buffer);
                Self::new(buffer.bytes(), true, Owner::Buffer(buffer))
            }
            Held::Shared(share) => {
                let bytes = ptr::from_ref((*share).as_ref()).cast_mut();
                Self::new(bytes, false, Owner::Shared(share))
            }
        }
    }

    /// Memory on loan.
    pub(crate) fn lent(memory: Lent<'_>) -> Self {
        match memory {
            Lent::Source(bytes) => Self::new(ptr::from_ref(bytes).cast_mut(), false, Owner::Lent),
            Lent::Sink(bytes) => Self::new(ptr::from_mut(bytes), true, Owner::Lent),
        }
    }

    /// The events behind its copies.
    pub(crate) fn events(&self) -> Vec<DeviceEvent> {
        self.marks.iter().map(|mark| (mark.event, mark.device)).collect()
    }

    /// The bytes of `range`.
    fn part(&self, range: &Range<u64>) -> Result<*mut [u8]> {
        let indices = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
        let indices = indices.filter(|(start, end)| start <= end && *end <= self.bytes.len());
        let (start, end) =
            indices.ok_or(DriverError::InvalidValue("the range is not inside the host memory"))?;
        Ok(ptr::slice_from_raw_parts_mut(self.bytes.cast::<u8>().wrapping_add(start), end - start))
    }

    /// Whether no device touches it, nor is about to.
    fn is_idle(&self) -> bool {
        self.n_users == 0 && self.marks.is_empty() && self.adrift.is_empty()
    }
}

/// The table.
#[derive(Default)]
pub(crate) struct Table {
    known: BTreeMap<HostId, Host>,
    last: u64,
}

impl Table {
    /// Adds memory; its id is a new one.
    pub(crate) fn insert(&mut self, host: Host) -> HostId {
        self.last += 1;
        self.known.insert(HostId(self.last), host);
        HostId(self.last)
    }

    fn find(&mut self, id: HostId) -> Result<&mut Host> {
        let host = self.known.get_mut(&id).filter(|host| !host.is_gone);
        host.ok_or(DriverError::UnknownHost(id))
    }

    /// The bytes of a part for one copy, whose call is a user of the memory until [`end`](Self::end).
    pub(crate) fn begin(&mut self, id: HostId, range: &Range<u64>, way: Way) -> Result<*mut [u8]> {
        let host = self.find(id)?;
        let bytes = host.part(range)?;
        if way == Way::ToHost && !host.can_be_written {
            return Err(DriverError::InvalidValue("devices may only read this host memory"));
        }
        host.n_users += 1;
        host.n_begun += 1;
        Ok(bytes)
    }

    /// The event behind earlier copies on a queue, to be recorded again behind the next. Its caller is a
    /// user.
    pub(crate) fn event(&self, id: HostId, device: DeviceId, queue: &Queue) -> Option<Event> {
        let is_it = |mark: &&Mark| mark.device == device && mark.queue == *queue;
        self.known.get(&id)?.marks.iter().find(is_it).map(|mark| mark.event)
    }

    /// Adds a mark; returns how many there are. Its caller is a user.
    pub(crate) fn mark(&mut self, id: HostId, mark: Mark) -> usize {
        let Some(host) = self.known.get_mut(&id) else { return 0 };
        host.marks.push(mark);
        host.marks.len()
    }

    /// A user has ended, with a copy adrift or without. Returns memory that was let go meanwhile.
    #[must_use]
    pub(crate) fn end(&mut self, id: HostId, adrift: Option<DeviceId>) -> Option<Host> {
        let host = self.known.get_mut(&id)?;
        host.adrift.extend(adrift);
        host.n_users -= 1;
        let is_due = host.is_gone && host.n_users == 0 && !matches!(host.owner, Owner::Lent);
        if is_due { self.known.remove(&id) } else { None }
    }

    /// What to look at to know whether copies are done, and what [`forget`](Self::forget) asks for; none
    /// while there are users.
    pub(crate) fn marks(&mut self, id: HostId) -> Result<Option<(u64, Vec<DeviceEvent>)>> {
        let host = self.find(id)?;
        Ok((host.n_users == 0).then(|| (host.n_begun, host.events())))
    }

    /// Forgets marks whose events have passed, unless one may have been recorded again since they were
    /// looked at. Returns their events.
    #[must_use]
    pub(crate) fn forget(&mut self, id: HostId, n_begun: u64, passed: &[DeviceEvent]) -> Vec<DeviceEvent> {
        match self.find(id) {
            Ok(host) if host.n_begun == n_begun => {
                let is_due = |mark: &mut Mark| passed.contains(&(mark.event, mark.device));
                host.marks.extract_if(.., is_due).map(|mark| (mark.event, mark.device)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Takes a buffer out of the table if no device touches it.
    pub(crate) fn take(&mut self, id: HostId) -> Result<Option<HostBuffer>> {
        let host = self.find(id)?;
        if !matches!(host.owner, Owner::Buffer(_)) {
            return Err(DriverError::UnknownHost(id));
        }
        if !host.adrift.is_empty() {
            return Err(DriverError::DeviceLost);
        }
        if !host.is_idle() {
            return Ok(None);
        }
        match self.known.remove(&id).map(|host| host.owner) {
            Some(Owner::Buffer(buffer)) => Ok(Some(buffer.into_box())),
            _ => Err(DriverError::UnknownHost(id)),
        }
    }

    /// Forgets the id of held memory; returns the memory unless it has users, the last of which gets it.
    #[must_use]
    pub(crate) fn let_go(&mut self, id: HostId) -> Option<Host> {
        let host = self.find(id).ok().filter(|host| !matches!(host.owner, Owner::Lent))?;
        host.is_gone = true;
        if host.n_users == 0 { self.known.remove(&id) } else { None }
    }

    /// Takes everything out; nobody uses the driver any more.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Host> + use<> {
        mem::take(&mut self.known).into_values()
    }
}

/// The table behind its lock, which nobody holds over a call of the driver or of an owner.
#[derive(Default)]
pub(crate) struct Hosts {
    pub(crate) table: Mutex<Table>,
    users_end: Condvar,
}

impl Hosts {
    /// As [`Table::end`].
    #[must_use]
    pub(crate) fn end(&self, id: HostId, adrift: Option<DeviceId>) -> Option<Host> {
        let due = lock(&self.table).end(id, adrift);
        self.users_end.notify_all();
        due
    }

    /// Ends a loan once its last user has ended, for which it waits; from now on there is no new one.
    #[must_use]
    pub(crate) fn end_loan(&self, id: HostId) -> Option<Host> {
        let mut table = lock(&self.table);
        table.known.get_mut(&id)?.is_gone = true;
        let is_used = |table: &mut Table| table.known.get(&id).is_some_and(|host| host.n_users > 0);
        table = self.users_end.wait_while(table, is_used).unwrap_or_else(PoisonError::into_inner);
        table.known.remove(&id)
    }
}

#[cfg(test)]
mod tests;
