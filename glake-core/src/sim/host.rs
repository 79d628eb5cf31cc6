//! Host memory of the simulated driver.
//!
//! What is lent is copied: this crate has no unsafe code, so work that runs later cannot refer to it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::SimDriver;
use super::fault::Target;
use super::space::Touch;
use super::state::State;
use super::stream::Event;
use super::work::Work;
use crate::driver::{DriverError, Held, HostBuffer, HostMemory, Lent, Result};
use crate::units::{DeviceId, DevicePtr, HostId, StreamId};

/// Where pinned memory lies on the host: its length by its address.
#[derive(Debug, Default)]
pub(super) struct Pins(Mutex<BTreeMap<usize, usize>>);

impl Pins {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn contain(&self, bytes: &[u8]) -> bool {
        let at = bytes.as_ptr().addr();
        let pins = self.lock();
        let pin = pins.range(..=at).next_back();
        pin.is_some_and(|(start, len)| at - start <= *len && bytes.len() <= len - (at - start))
    }
}

/// Plain memory that counts as pinned.
#[derive(Debug)]
struct Pinned {
    bytes: Box<[u8]>,
    pins: Arc<Pins>,
}

impl AsRef<[u8]> for Pinned {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Pinned {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.pins.lock().remove(&self.bytes.as_ptr().addr());
    }
}

#[derive(Debug)]
enum Kind {
    Held(Held),
    /// A copy of what was lent, and the parts that devices have written.
    Lent {
        copy: Vec<u8>,
        is_sink: bool,
        written: Vec<Range<usize>>,
    },
}

/// Host memory in the driver's keeping.
#[derive(Debug)]
pub(super) struct Host {
    kind: Kind,
    /// Behind the last copy on each stream.
    last: BTreeMap<usize, Event>,
    n_pending: usize,
    is_let_go: bool,
}

impl Host {
    fn new(kind: Kind) -> Self {
        Self { kind, last: BTreeMap::new(), n_pending: 0, is_let_go: false }
    }

    fn bytes(&self) -> &[u8] {
        match &self.kind {
            Kind::Held(Held::Owned(buffer)) => (**buffer).as_ref(),
            Kind::Held(Held::Shared(bytes)) => (**bytes).as_ref(),
            Kind::Lent { copy, .. } => copy,
        }
    }

    /// The bytes for devices to write, noted as written.
    fn sink(&mut self, into: Range<usize>) -> Option<&mut [u8]> {
        match &mut self.kind {
            Kind::Held(Held::Owned(buffer)) => (**buffer).as_mut().get_mut(into),
            Kind::Lent { copy, is_sink: true, written } => {
                written.push(into.clone());
                copy.get_mut(into)
            }
            Kind::Held(Held::Shared(_)) | Kind::Lent { .. } => None,
        }
    }

    fn can_be_written(&self) -> bool {
        matches!(self.kind, Kind::Held(Held::Owned(_)) | Kind::Lent { is_sink: true, .. })
    }
}

/// `range` as indices, if it lies inside `bytes`.
fn inside(bytes: &[u8], range: &Range<u64>) -> Result<Range<usize>> {
    let indices = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
    let indices = indices.map(|(start, end)| start..end);
    let indices = indices.filter(|range| bytes.get(range.clone()).is_some());
    indices.ok_or(DriverError::InvalidValue("the range is not inside the host memory"))
}

impl State {
    fn host(&mut self, id: HostId) -> Result<&mut Host> {
        let host = self.hosts.get_mut(id.0).filter(|host| !host.is_let_go);
        host.ok_or(DriverError::UnknownHost(id))
    }

    /// Enqueues a copy from or to host memory.
    fn enqueue_host(&mut self, host: HostId, stream: usize, work: Work) -> Result<()> {
        self.host(host)?.n_pending += 1;
        let enqueued = self.enqueue(stream, work);
        let end = self.streams.end(stream);
        // It may have run, and the last one of memory that was let go takes that along.
        if let Ok(host) = self.host(host) {
            host.last.insert(stream, end);
        }
        enqueued
    }

    /// Runs a copy from host memory; a device that is lost runs nothing.
    pub(super) fn write_from(
        &mut self,
        device: usize,
        dst: DevicePtr,
        id: HostId,
        from: Range<usize>,
    ) -> Result<()> {
        let bytes = self.hosts.get(id.0).and_then(|host| host.bytes().get(from));
        let bytes = bytes.map(<[u8]>::to_vec).unwrap_or_default();
        self.store(device, dst, &bytes)
    }

    /// Runs a copy into host memory.
    pub(super) fn read_into(
        &mut self,
        device: usize,
        src: DevicePtr,
        id: HostId,
        into: Range<usize>,
    ) -> Result<()> {
        let mut bytes = vec![0; into.len()];
        self.load(device, src, &mut bytes)?;
        if let Some(sink) = self.hosts.get_mut(id.0).and_then(|host| host.sink(into)) {
            sink.copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// A copy from or to host memory has run, or never will.
    pub(super) fn host_copy_ends(&mut self, id: HostId) {
        if let Some(host) = self.hosts.get_mut(id.0) {
            host.n_pending = host.n_pending.saturating_sub(1);
            if host.is_let_go && host.n_pending == 0 {
                self.hosts.remove(id.0);
            }
        }
    }

    /// The devices that copied from and to host memory; an error if one is lost.
    fn host_is_well(&mut self, id: HostId) -> Result<()> {
        let streams: Vec<usize> = self.host(id)?.last.keys().copied().collect();
        streams.into_iter().try_for_each(|stream| self.on(self.streams.device(stream)))
    }
}

/// Takes what was lent out of the driver's keeping, also where the borrower panics.
struct Loan<'a> {
    driver: &'a SimDriver,
    id: HostId,
}

impl Loan<'_> {
    /// Waits for the copies; the memory, and whether they were done.
    fn end(&self) -> (Option<Host>, Result<()>) {
        let mut state = self.driver.lock();
        let last = state.host(self.id).map(|host| host.last.values().copied().collect::<Vec<_>>());
        for event in last.unwrap_or_default() {
            state.finish(event);
        }
        let result = state.host_is_well(self.id);
        (state.hosts.remove(self.id.0), result)
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl HostMemory for SimDriver {
    fn pin(&self, bytes: u64, near: DeviceId) -> Result<HostBuffer> {
        self.lock().call(Target::Copies, |state| {
            state.on_id(near)?;
            let bytes = usize::try_from(bytes).map_err(|_| DriverError::OutOfMemory)?;
            let bytes = vec![0; bytes].into_boxed_slice();
            self.pins.lock().insert(bytes.as_ptr().addr(), bytes.len());
            Ok((Box::new(Pinned { bytes, pins: Arc::clone(&self.pins) }) as HostBuffer, 0))
        })
    }

    fn is_pinned(&self, bytes: &[u8]) -> bool {
        self.pins.contain(bytes)
    }

    fn hold(&self, memory: Held) -> HostId {
        HostId(self.lock().hosts.insert(Host::new(Kind::Held(memory))))
    }

    fn let_go(&self, host: HostId) {
        let mut state = self.lock();
        let Ok(found) = state.host(host) else { return };
        // What is lent comes back at the end of its loan only.
        if matches!(found.kind, Kind::Lent { .. }) {
            return;
        }
        found.is_let_go = true;
        if found.n_pending == 0 {
            state.hosts.remove(host.0);
        }
    }

    fn take_back(&self, host: HostId) -> Result<Option<HostBuffer>> {
        self.lock().call(Target::Copies, |state| {
            let ns = state.config.costs.query_ns;
            let found = state.host(host)?;
            if !matches!(found.kind, Kind::Held(Held::Owned(_))) {
                return Err(DriverError::UnknownHost(host));
            }
            let is_pending = found.n_pending > 0;
            state.host_is_well(host)?;
            if is_pending {
                return Ok((None, ns));
            }
            match state.hosts.remove(host.0).map(|host| host.kind) {
                Some(Kind::Held(Held::Owned(buffer))) => Ok((Some(buffer), ns)),
                _ => Err(DriverError::UnknownHost(host)),
            }
        })
    }

    fn lend(&self, memory: Lent<'_>, body: &mut dyn FnMut(HostId) -> Result<()>) -> Result<()> {
        let (bytes, is_sink) = match &memory {
            Lent::Source(bytes) => (*bytes, false),
            Lent::Sink(bytes) => (&**bytes, true),
        };
        let lent = Kind::Lent { copy: bytes.to_vec(), is_sink, written: Vec::new() };
        let id = HostId(self.lock().hosts.insert(Host::new(lent)));
        let loan = Loan { driver: self, id };
        let done = body(id);
        let (host, ended) = loan.end();
        if let (Lent::Sink(sink), Some(Host { kind: Kind::Lent { copy, written, .. }, .. })) = (memory, host)
        {
            for part in written {
                sink[part.clone()].copy_from_slice(&copy[part]);
            }
        }
        done.and(ended)
    }

    fn write_from(&self, dst: DevicePtr, host: HostId, from: Range<u64>, stream: StreamId) -> Result<()> {
        self.lock().call(Target::Copies, |state| {
            let stream = state.on_uncaptured(stream)?;
            let from = inside(state.host(host)?.bytes(), &from)?;
            state.check(state.streams.device(stream), dst, from.len() as u64, Touch::Write)?;
            state.enqueue_host(host, stream, Work::WriteFrom { dst, host, from })?;
            Ok(((), 0))
        })
    }

    fn read_into(&self, src: DevicePtr, host: HostId, into: Range<u64>, stream: StreamId) -> Result<()> {
        self.lock().call(Target::Copies, |state| {
            let stream = state.on_uncaptured(stream)?;
            let found = state.host(host)?;
            let into = inside(found.bytes(), &into)?;
            if !found.can_be_written() {
                return Err(DriverError::InvalidValue("devices may only read this host memory"));
            }
            state.check(state.streams.device(stream), src, into.len() as u64, Touch::Read)?;
            state.enqueue_host(host, stream, Work::ReadInto { src, host, into })?;
            Ok(((), 0))
        })
    }
}
