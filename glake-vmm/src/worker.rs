//! A thread for background work.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use glake_core::alloc::AllocError;

use crate::background::Step;

/// How long the thread rests when there is nothing to do.
const REST: Duration = Duration::from_millis(5);

/// A thread that does the background work of a pool: one for each device.
///
/// It takes one step at a time ([`SharedPool::step`](crate::SharedPool::step)), so that requests of
/// other threads wait for a few driver calls at most. What it does when is up to the clock: with it,
/// addresses may differ from run to run. Dropping it tells the thread to end and does not wait;
/// [`stop`](Self::stop) does.
///
/// ```
/// use std::sync::Arc;
/// use glake_core::sim::SimDriver;
/// use glake_core::units::DeviceId;
/// use glake_vmm::{Config, SharedPool, Worker};
///
/// let config = Config::new(DeviceId(0)).headroom_bytes(64 << 20);
/// let pool = Arc::new(SharedPool::new(Arc::new(SimDriver::h200(1)), config)?);
/// pool.leave_to_steps()?;
/// let for_worker = Arc::downgrade(&pool);
/// let worker = Worker::spawn(move || for_worker.upgrade().map(|pool| pool.step()))?;
/// worker.stop();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Worker {
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a thread that calls `step` until it returns `None`: the pool is gone.
    ///
    /// # Errors
    /// Those of the system, where it has no thread to give.
    pub fn spawn(
        mut step: impl FnMut() -> Option<Result<Step, AllocError>> + Send + 'static,
    ) -> io::Result<Self> {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&is_stopped);
        let run = move || {
            while !stopped.load(Ordering::Acquire) {
                match step() {
                    None | Some(Err(AllocError::Poisoned)) => return,
                    Some(Ok(Step::Idle) | Err(_)) => std::thread::park_timeout(REST),
                    Some(Ok(_)) => {}
                }
            }
        };
        let thread = Builder::new().name("glake worker".to_owned()).spawn(run)?;
        Ok(Self { is_stopped, thread: Some(thread) })
    }

    /// Ends the thread and waits for it: for one step at most.
    pub fn stop(mut self) {
        if let Some(thread) = self.end() {
            // A panic of the thread has poisoned the pool, which says so itself.
            let _ = thread.join();
        }
    }

    fn end(&mut self) -> Option<JoinHandle<()>> {
        self.is_stopped.store(true, Ordering::Release);
        let thread = self.thread.take()?;
        thread.thread().unpark();
        Some(thread)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}
