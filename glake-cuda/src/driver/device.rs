//! One device: its primary context, what it can do, its ledger.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use cudarc::driver::sys::{CUdevice, CUdevice_attribute as Attribute, CUstreamCaptureMode as CaptureMode};
use glake_core::driver::{Call, DeviceInfo, DriverError, Ledger, PciAddress, Result};
use glake_core::units::DeviceId;

use super::lock;
use crate::call::vmm::{self, Properties};
use crate::call::{Context, Event, device, order};
use crate::kernels::Kernels;
use crate::probe::OpenError;

/// A device that the driver opened.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) id: DeviceId,
    pub(crate) cu: CUdevice,
    /// The primary context, retained at the first call on the device: it takes hundreds of
    /// megabytes there, which a process that uses another device must not cost.
    context: OnceLock<Context>,
    pub(crate) n_processors: u32,
    pub(crate) granularity_bytes: u64,
    /// The devices whose memory this one can reach, a bit each, itself included.
    pub(crate) peers: u64,
    pci: Option<PciAddress>,
    properties: Properties,
    ledger: Mutex<Ledger>,
    /// Whether a kernel died here. CUDA itself still serves some calls then; none is of use.
    is_lost: AtomicBool,
    kernels: OnceLock<Kernels>,
    /// Held while the context is retained or the kernels are loaded.
    starting: Mutex<()>,
    /// Events that nobody waits for, to be recorded again.
    idle_events: Mutex<Vec<Event>>,
}

impl Device {
    /// Opens device `id` of `n`.
    pub(crate) fn open(id: DeviceId, n: u32) -> Result<Self, OpenError> {
        let cu = device::get(id.0.cast_signed())?;
        let has = |which| device::attribute(cu, which).map(|value| u8::from(value != 0));
        if has(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED)? == 0 {
            return Err(OpenError::NoVirtualMemory(id));
        }
        let shareable = has(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)?;
        let rdma = has(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)?;
        let properties = Properties::on(cu, u32::from(shareable), rdma);
        let n_processors = device::attribute(cu, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let mut peers = super::space::bit(id);
        for peer in (0..n).filter(|peer| *peer != id.0) {
            if device::can_access(cu, device::get(peer.cast_signed())?)? {
                peers |= super::space::bit(DeviceId(peer));
            }
        }
        let granularity_bytes = vmm::granularity(&properties)?;
        Ok(Self {
            id,
            cu,
            context: OnceLock::new(),
            n_processors: n_processors.unsigned_abs(),
            granularity_bytes,
            peers,
            pci: pci_address(cu)?,
            properties,
            ledger: Mutex::default(),
            is_lost: AtomicBool::new(false),
            kernels: OnceLock::new(),
            starting: Mutex::default(),
            idle_events: Mutex::default(),
        })
    }

    /// Where the device sits and whom it reaches, as it was when the driver was opened.
    pub(crate) fn info(&self) -> DeviceInfo {
        let others = (0..u64::BITS).map(DeviceId).filter(|other| *other != self.id);
        let peers = others.filter(|other| self.peers & super::space::bit(*other) != 0);
        DeviceInfo::new(self.pci, peers.collect())
    }

    /// The primary context.
    pub(crate) fn context(&self) -> Result<Context> {
        if let Some(context) = self.context.get() {
            return Ok(*context);
        }
        let _starting = lock(&self.starting);
        if let Some(context) = self.context.get() {
            return Ok(*context);
        }
        let context = device::retain(self.cu)?;
        Ok(*self.context.get_or_init(|| context))
    }

    /// Whether the context is retained, and not lost.
    pub(crate) fn is_in_use(&self) -> bool {
        self.context.get().is_some() && !self.is_lost()
    }

    /// Makes the device's context current on the calling thread while the result lives.
    pub(crate) fn enter(&self) -> Result<Entered> {
        if self.is_lost() {
            return Err(DriverError::DeviceLost);
        }
        let (before, context) = (device::current()?, self.context()?);
        if before == context {
            return Ok(Entered { before: None, mode: None, on_this_thread: PhantomData });
        }
        // SAFETY: the context is retained and is released only when the driver closes.
        unsafe { device::set_current(context) }?;
        Ok(Entered { before: Some(before), mode: None, on_this_thread: PhantomData })
    }

    /// As [`enter`](Self::enter), and lets the thread make calls that would otherwise break a
    /// graph capture of another thread.
    pub(crate) fn enter_beside_captures(&self) -> Result<Entered> {
        let mut entered = self.enter()?;
        entered.mode = Some(device::exchange_capture_mode(CaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?);
        Ok(entered)
    }

    /// Whether the device is lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Passes a result on, and takes note if it says that the device is lost.
    pub(crate) fn watched<T>(&self, result: Result<T>) -> Result<T> {
        if matches!(result, Err(DriverError::DeviceLost)) {
            self.is_lost.store(true, Ordering::Relaxed);
        }
        result
    }

    /// Creates physical memory: reachable by network cards where the device can, and without
    /// that where it then cannot after all.
    pub(crate) fn create(&self, bytes: u64) -> Result<u64> {
        match vmm::create(bytes, &self.properties) {
            Err(DriverError::OutOfMemory) => Err(DriverError::OutOfMemory),
            Err(_) => vmm::create(bytes, &self.properties.without_rdma()),
            created => created,
        }
    }

    /// Runs a driver call and notes it with the time it took on the host.
    #[allow(clippy::disallowed_methods, reason = "the ledger measures host time; nothing is decided by it")]
    pub(crate) fn timed<T>(&self, call: Call, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let result = act();
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        lock(&self.ledger).count(call, ns);
        self.watched(result)
    }

    /// Notes a change of physical memory.
    pub(crate) fn note(&self, change: impl FnOnce(&mut Ledger)) {
        change(&mut lock(&self.ledger));
    }

    /// What was asked of the device so far.
    pub(crate) fn ledger(&self) -> Ledger {
        *lock(&self.ledger)
    }

    /// The kernels, loaded at the first call, which may wait for device work.
    pub(crate) fn kernels(&self) -> Result<&Kernels> {
        if let Some(kernels) = self.kernels.get() {
            return Ok(kernels);
        }
        let _entered = self.enter_beside_captures()?;
        let _starting = lock(&self.starting);
        if let Some(kernels) = self.kernels.get() {
            return Ok(kernels);
        }
        let loaded = self.watched(Kernels::load())?;
        Ok(self.kernels.get_or_init(|| loaded))
    }

    /// An event to record. The context is current.
    pub(crate) fn take_event(&self) -> Result<Event> {
        let idle = lock(&self.idle_events).pop();
        idle.map_or_else(order::create_event, Ok)
    }

    /// Takes an event back that nobody asks for any more.
    pub(crate) fn recycle(&self, event: Event) {
        lock(&self.idle_events).push(event);
    }

    /// Destroys idle events and the kernels, and releases the context.
    ///
    /// # Safety
    /// All work of the context is done, and the driver makes no call on the device any more.
    pub(crate) unsafe fn close(&mut self) -> Result<()> {
        for event in lock(&self.idle_events).drain(..) {
            // SAFETY: idle events are the driver's own and nobody's any more.
            unsafe { order::destroy_event(event) }?;
        }
        if let Some(kernels) = self.kernels.take() {
            // SAFETY: no kernel runs, says the caller.
            unsafe { kernels.unload() }?;
        }
        match self.context.take() {
            // SAFETY: balances the retain; the caller vouches for the rest.
            Some(_) => unsafe { device::release(self.cu) },
            None => Ok(()),
        }
    }
}

/// Where a device sits; `None` if CUDA's figures are no address. CUDA has no attribute for the function,
/// which is 0 for every GPU.
fn pci_address(cu: CUdevice) -> Result<Option<PciAddress>> {
    let domain = device::attribute(cu, Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
    let bus = device::attribute(cu, Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
    let device = device::attribute(cu, Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
    let parts = (u32::try_from(domain), u8::try_from(bus), u8::try_from(device));
    let (Ok(domain), Ok(bus), Ok(device)) = parts else { return Ok(None) };
    Ok(Some(PciAddress { domain, bus, device, function: 0 }))
}

/// The calling thread inside a device's context; leaves it when dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Entered {
    /// The context to go back to, if it was another.
    before: Option<Context>,
    /// The capture mode to go back to, if it was changed.
    mode: Option<CaptureMode>,
    /// Both are per thread, so this value stays on its thread.
    on_this_thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(mode) = self.mode {
            // A failure leaves the thread relaxed, which no call of ours minds.
            let _ = device::exchange_capture_mode(mode);
        }
        if let Some(before) = self.before {
            // SAFETY: the context was current on this thread when the call began; whoever
            // destroys it meanwhile, from another thread, broke CUDA's own rule.
            let _ = unsafe { device::set_current(before) };
        }
    }
}
