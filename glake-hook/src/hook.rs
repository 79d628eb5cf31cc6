//! The state of the hook, and how a call gets to it.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};

use glake_core::adapt::{TagId, Tags};
use glake_core::units::{DevicePtr, StreamId};
use glake_cuda::CudaDriver;

use crate::captures::Captures;
use crate::config::Config;
use crate::copies::Copies;
use crate::device::{Device, DevicePool};
use crate::pinned::Pinned;
use crate::pools::Mempools;
use crate::real::{Ptr, Real};
use crate::streams::Streams;

/// Everything behind the hooked functions, for as long as the process lives.
pub(crate) struct Hook {
    pub(crate) real: &'static Real,
    pub(crate) driver: CudaDriver,
    pub(crate) config: Config,
    pub(crate) devices: Box<[Device]>,
    pub(crate) streams: Streams,
    pub(crate) captures: Captures,
    pub(crate) mempools: Mempools,
    pub(crate) pinned: Pinned,
    pub(crate) tags: Mutex<Tags>,
    /// Allocations that may have a tag.
    pub(crate) has_tags: AtomicBool,
    pub(crate) copies: Copies,
    pub(crate) passed_on: PassedOnCounters,
}

/// What went to the driver's own allocator.
#[derive(Debug, Default)]
pub(crate) struct PassedOnCounters {
    pub(crate) n_allocations: AtomicUsize,
    pub(crate) bytes: AtomicU64,
    pub(crate) n_frees: AtomicUsize,
}

static HOOK: OnceLock<Hook> = OnceLock::new();

thread_local! {
    /// Whether the thread is inside glake, whose own calls go to the driver.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    /// The tag of what the thread allocates.
    static TAG: Cell<Option<TagId>> = const { Cell::new(None) };
}

/// Whether the process was forked from the one that installed the hook. CUDA is of no use there, and who held the
/// locks is not there either.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

/// The hook, if it is installed.
#[inline]
pub(crate) fn installed() -> Option<&'static Hook> {
    HOOK.get().filter(|_| !IS_FORKED.load(Ordering::Relaxed))
}

/// Makes `hook` the process's hook; gives it back if there is one.
pub(crate) fn set(hook: Hook) -> Result<&'static Hook, Box<Hook>> {
    HOOK.set(hook)?;
    #[cfg(unix)]
    notice_forks();
    HOOK.get().ok_or_else(|| unreachable!("it was just set"))
}

#[cfg(unix)]
fn notice_forks() {
    type Handler = Option<extern "C" fn()>;
    unsafe extern "C" {
        fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> std::ffi::c_int;
    }
    extern "C" fn child() {
        IS_FORKED.store(true, Ordering::Relaxed);
    }
    // SAFETY: the handler stores a flag, which is allowed in a fork. Where it cannot be registered, forks are not
    // noticed.
    let _ = unsafe { pthread_atfork(None, None, Some(child)) };
}

/// What installs the hook at the first call, if that is wanted.
static AT_FIRST_CALL: OnceLock<fn()> = OnceLock::new();

/// From now on the first call installs the hook by `install`.
pub(crate) fn install_at_first_call(install: fn()) {
    let _ = AT_FIRST_CALL.set(install);
}

/// The hook, which the first call installs where that is wanted.
#[inline]
fn here() -> Option<&'static Hook> {
    installed().or_else(install_now)
}

#[cold]
fn install_now() -> Option<&'static Hook> {
    static ONCE: Once = Once::new();
    let install = AT_FIRST_CALL.get()?;
    // A call from inside of `install` is glake's own.
    if !IS_INSIDE.get() {
        ONCE.call_once(install);
    }
    installed()
}

/// Answers a hooked call, or leaves it to the driver: where there is no hook, where the call is glake's
/// own, and where `answer` has none.
#[inline]
pub(crate) fn answer<T>(answer: impl FnOnce(&'static Hook) -> Option<T>) -> Option<T> {
    let hook = here()?;
    if IS_INSIDE.get() {
        return None;
    }
    inside(|| answer(hook)).flatten()
}

/// Tells the hook something, if there is one and the call is not glake's own.
pub(crate) fn tell(what: impl FnOnce(&'static Hook)) {
    let _: Option<()> = answer(|hook| {
        what(hook);
        None
    });
}

/// Does `work` with this thread's calls of hooked functions going to the driver. A panic of glake's
/// ends here: it must not go through the caller, who speaks C.
#[inline]
pub(crate) fn inside<T>(work: impl FnOnce() -> T) -> Option<T> {
    let _inside = Inside::enter();
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// A scope in which this thread's calls of hooked functions go to the driver, left also where it panics.
pub(crate) struct Inside(bool);

impl Inside {
    #[inline]
    pub(crate) fn enter() -> Self {
        Self(IS_INSIDE.replace(true))
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        IS_INSIDE.set(self.0);
    }
}

impl Hook {
    /// The pool that `ptr` belongs to.
    pub(crate) fn owner(&self, ptr: Ptr) -> Option<(&Device, &DevicePool)> {
        self.devices.iter().find_map(|device| {
            let pool = device.pool_if_any()?;
            pool.arena_has(ptr).then_some((device, pool))
        })
    }

    /// Notes an allocation under the thread's tag.
    pub(crate) fn note_tag(&self, ptr: Ptr, bytes: u64) {
        if let Some(tag) = TAG.get() {
            lock(&self.tags).note(DevicePtr(ptr), tag, bytes);
        }
    }

    /// Notes that the allocation is gone.
    pub(crate) fn forget_tag(&self, ptr: Ptr) {
        if self.has_tags.load(Ordering::Relaxed) {
            lock(&self.tags).forget(DevicePtr(ptr));
        }
    }
}

impl PassedOnCounters {
    pub(crate) fn allocation(&self, bytes: usize) {
        self.n_allocations.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Changes the tag of what this thread allocates; returns the one before.
pub(crate) fn exchange_tag(tag: Option<TagId>) -> Option<TagId> {
    TAG.replace(tag)
}

/// A stream by its handle, where 0 is `default`.
pub(crate) fn stream_id(stream: crate::real::Handle, default: StreamId) -> StreamId {
    match stream.expose_provenance() as u64 {
        0 => default,
        raw => StreamId(raw),
    }
}

/// Locks, also where another thread panicked: every update under a lock of the hook is one step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
