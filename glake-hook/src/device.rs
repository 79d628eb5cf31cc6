//! A device: its context, its pool, what is recorded there.

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use glake_core::alloc::AllocError;
use glake_core::trace::Recorder;
use glake_core::units::{AddressRange, DeviceId, DevicePtr, StreamId};
use glake_vmm::{SharedPool, Worker};

use crate::hook::{Hook, inside, lock};
use crate::real::{Handle, Ptr, Real, SUCCESS};

/// What the hook knows of a device.
pub(crate) struct Device {
    pub(crate) id: DeviceId,
    /// Its `CUdevice`.
    pub(crate) cu: i32,
    /// The primary context, retained when it was first seen; 0 until then.
    context: AtomicU64,
    /// None where no pool could be made: the driver's allocator serves the device.
    pool: OnceLock<Option<DevicePool>>,
    /// The pool's limit in bytes. Held while the pool is made, and while its limit is changed.
    pub(crate) limit_bytes: Mutex<u64>,
    /// Whether the program's allocations on streams are of plain memory: not from a pool of its own that is shared.
    pub(crate) is_async_served: AtomicBool,
    is_recorded: AtomicBool,
    recorder: Mutex<Option<Recorder<BufWriter<File>>>>,
}

/// The pool of a device.
pub(crate) struct DevicePool {
    pub(crate) pool: Arc<SharedPool>,
    arena: AddressRange,
    /// Works for as long as the process lives.
    _worker: Option<Worker>,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("id", &self.id).finish_non_exhaustive()
    }
}

impl DevicePool {
    pub(crate) fn arena_has(&self, ptr: Ptr) -> bool {
        ptr.wrapping_sub(self.arena.start.0) < self.arena.bytes
    }
}

impl Device {
    pub(crate) fn new(id: DeviceId, cu: i32, limit_bytes: u64) -> Self {
        Self {
            id,
            cu,
            context: AtomicU64::new(0),
            pool: OnceLock::new(),
            limit_bytes: Mutex::new(limit_bytes),
            is_async_served: AtomicBool::new(true),
            is_recorded: AtomicBool::new(false),
            recorder: Mutex::default(),
        }
    }

    /// The primary context, if it was seen.
    pub(crate) fn context(&self) -> Option<u64> {
        Some(self.context.load(Ordering::Acquire)).filter(|&context| context != 0)
    }

    /// The pool, if one was made.
    pub(crate) fn pool_if_any(&self) -> Option<&DevicePool> {
        self.pool.get()?.as_ref()
    }

    /// The pool, made at the first call.
    pub(crate) fn pool(&self, hook: &'static Hook) -> Option<&DevicePool> {
        self.pool.get().map_or_else(|| self.first_pool(hook), Option::as_ref)
    }

    #[cold]
    fn first_pool(&self, hook: &'static Hook) -> Option<&DevicePool> {
        let limit_bytes = lock(&self.limit_bytes);
        let make = || self.make_pool(hook, *limit_bytes).inspect_err(|error| self.complain(error)).ok();
        self.pool.get_or_init(make).as_ref()
    }

    fn complain(&self, error: &AllocError) {
        tracing::warn!(device = self.id.0, %error, "no pool: the driver's own allocator serves the device");
    }

    fn make_pool(&self, hook: &'static Hook, limit_bytes: u64) -> Result<DevicePool, AllocError> {
        let config = &hook.config;
        let set_up = config.pool.clone().on(self.id).limit_bytes(limit_bytes);
        let pool = Arc::new(SharedPool::new(Arc::new(hook.driver.clone()), set_up)?);
        let worker = if config.has_worker { self.start_worker(hook, &pool) } else { None };
        Ok(DevicePool { arena: pool.arena(), pool, _worker: worker })
    }

    /// Starts the thread for background work; without it, the requests do that work.
    fn start_worker(&self, hook: &'static Hook, pool: &Arc<SharedPool>) -> Option<Worker> {
        let (context, pool) = (self.context()?, Arc::clone(pool));
        pool.leave_to_steps().ok()?;
        let worker = Worker::spawn(move || {
            inside(|| {
                // The default stream is that of the current context.
                let _in_context = InContext::enter(hook.real, context);
                pool.step()
            })
        });
        worker.inspect_err(|error| tracing::warn!(%error, "no thread for background work")).ok()
    }

    /// Writes an allocation down, if that is wanted.
    #[inline]
    pub(crate) fn note_allocated(&self, ptr: Ptr, bytes: u64, stream: StreamId) {
        if self.is_recorded.load(Ordering::Relaxed)
            && let Some(recorder) = &mut *lock(&self.recorder)
        {
            recorder.allocated(DevicePtr(ptr), bytes, stream);
            // Where the output fails, the lines wait; the end of the recording says so.
            let _ = recorder.make_room();
        }
    }

    /// Writes a free down, if that is wanted: before it happens, so that the next allocation at this
    /// address comes behind it.
    #[inline]
    pub(crate) fn note_freed(&self, ptr: Ptr) {
        if self.is_recorded.load(Ordering::Relaxed)
            && let Some(recorder) = &mut *lock(&self.recorder)
        {
            recorder.freed(DevicePtr(ptr));
        }
    }

    /// Begins a recording with the recorder that `make` makes, unless there is one.
    pub(crate) fn begin_recording(
        &self,
        make: impl FnOnce() -> io::Result<Recorder<BufWriter<File>>>,
    ) -> io::Result<()> {
        let mut recorder = lock(&self.recorder);
        if recorder.is_some() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the device is recorded already"));
        }
        *recorder = Some(make()?);
        self.is_recorded.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the recording.
    pub(crate) fn end_recording(&self) -> Option<Recorder<BufWriter<File>>> {
        self.is_recorded.store(false, Ordering::Relaxed);
        lock(&self.recorder).take()
    }
}

impl Hook {
    /// The context that is current on this thread, 0 if there is none.
    pub(crate) fn current_context(&self) -> u64 {
        current(self.real)
    }

    /// The device whose primary context is `context`.
    pub(crate) fn device_of(&self, context: u64) -> Option<&Device> {
        thread_local! {
            static LAST: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
        }
        let (last, index) = LAST.get();
        if last == context && context != 0 {
            return self.devices.get(index);
        }
        let index = self.devices.iter().position(|device| device.context() == Some(context));
        let index = index.or_else(|| self.find_device(context))?;
        LAST.set((context, index));
        self.devices.get(index)
    }

    /// Which device's primary context `context` is, which is retained then. Contexts of another kind
    /// have none.
    fn find_device(&self, context: u64) -> Option<usize> {
        if context == 0 {
            return None;
        }
        let _in_context = InContext::enter(self.real, context);
        let mut cu = 0;
        // SAFETY: writes a device.
        if unsafe { (self.real.cuCtxGetDevice)(&raw mut cu) } != SUCCESS {
            return None;
        }
        let index = self.devices.iter().position(|device| device.cu == cu)?;
        let device = &self.devices[index];
        // One that does not exist is not made, for it takes memory.
        (self.is_active(device) && self.retain(device)? == context).then_some(index)
    }

    /// Retains the primary context of a device, for good.
    pub(crate) fn retain(&self, device: &Device) -> Option<u64> {
        if let Some(context) = device.context() {
            return Some(context);
        }
        let mut context: Handle = ptr::null_mut();
        // SAFETY: writes a context.
        let code = unsafe { (self.real.cuDevicePrimaryCtxRetain)(&raw mut context, device.cu) };
        let context = context.expose_provenance() as u64;
        if code != SUCCESS || context == 0 {
            return None;
        }
        device.context.store(context, Ordering::Release);
        Some(context)
    }

    /// Whether a device's primary context exists.
    pub(crate) fn is_active(&self, device: &Device) -> bool {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: writes two integers.
        let code =
            unsafe { (self.real.cuDevicePrimaryCtxGetState)(device.cu, &raw mut flags, &raw mut active) };
        code == SUCCESS && active != 0
    }
}

fn current(real: &Real) -> u64 {
    let mut context: Handle = ptr::null_mut();
    // SAFETY: writes a context.
    let code = unsafe { (real.cuCtxGetCurrent)(&raw mut context) };
    if code == SUCCESS { context.expose_provenance() as u64 } else { 0 }
}

/// The calling thread in a context; goes back to its own when dropped.
pub(crate) struct InContext {
    real: &'static Real,
    before: Option<u64>,
}

impl InContext {
    #[inline]
    pub(crate) fn enter(real: &'static Real, context: u64) -> Self {
        let current = current(real);
        if current == context {
            return Self { real, before: None };
        }
        set_current(real, context);
        Self { real, before: Some(current) }
    }
}

impl Drop for InContext {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.before {
            set_current(self.real, before);
        }
    }
}

fn set_current(real: &Real, context: u64) {
    let context = ptr::with_exposed_provenance_mut(usize::try_from(context).unwrap_or_default());
    // SAFETY: a context that was current on a thread, or a retained one. A failure leaves things as they
    // are, and the calls that follow say so.
    let _ = unsafe { (real.cuCtxSetCurrent)(context) };
}
