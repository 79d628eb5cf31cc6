//! How a call enters: the one lock, the counts, the planned failures, the calling thread.

use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::code::{Code, Result};
use crate::machine::Machine;

static MACHINE: LazyLock<Mutex<Machine>> = LazyLock::new(|| Mutex::new(Machine::from_environment()));

thread_local! {
    // Never dropped: programs call the driver while their threads end, and behind that.
    static THREAD: ManuallyDrop<Thread> = ManuallyDrop::new(Thread::new());
}

/// How the calling thread's calls bear on captures: the values of `CUstreamCaptureMode`; between the
/// two lies that of the thread's own captures.
pub(crate) const GLOBAL: u32 = 0;
pub(crate) const RELAXED: u32 = 2;

/// What belongs to one thread.
struct Thread {
    id: u64,
    contexts: RefCell<Vec<u64>>,
    capture_mode: Cell<u32>,
    /// Set during a call and the callbacks behind it, which must not call CUDA.
    is_inside: Cell<bool>,
}

impl Thread {
    fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self {
            id: LAST.fetch_add(1, Ordering::Relaxed) + 1,
            contexts: RefCell::default(),
            capture_mode: Cell::new(GLOBAL),
            is_inside: Cell::new(false),
        }
    }
}

/// A number for the calling thread.
pub(crate) fn thread_id() -> u64 {
    THREAD.with(|thread| thread.id)
}

/// The calling thread's stack of contexts, the current one last.
pub(crate) fn contexts<T>(act: impl FnOnce(&mut Vec<u64>) -> T) -> T {
    THREAD.with(|thread| act(&mut thread.contexts.borrow_mut()))
}

/// How the calling thread's calls bear on captures.
pub(crate) fn capture_mode() -> u32 {
    THREAD.with(|thread| thread.capture_mode.get())
}

/// Changes it; returns what it was.
pub(crate) fn set_capture_mode(mode: u32) -> u32 {
    THREAD.with(|thread| thread.capture_mode.replace(mode))
}

/// The machine. Every update is one step, so that a panic elsewhere leaves it whole.
pub(crate) fn machine() -> MutexGuard<'static, Machine> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One call of a driver function.
pub(crate) fn enter(name: &'static str, act: impl FnOnce(&mut Machine) -> Result) -> u32 {
    if THREAD.with(|thread| thread.is_inside.replace(true)) {
        return Code::NOT_PERMITTED.0;
    }
    let (result, callbacks) = {
        let mut machine = machine();
        let result = machine.begin(name).and_then(|()| act(&mut machine));
        (result, machine.take_callbacks())
    };
    for callback in callbacks {
        callback.call();
    }
    THREAD.with(|thread| thread.is_inside.set(false));
    result.map_or_else(|code| code.0, |()| 0)
}
