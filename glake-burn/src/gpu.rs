//! One GPU of a program: cubecl's server of it, and glake's pool under that.

use std::io;
use std::path::Path;

use cubecl_runtime::client::Client;
use glake_hook::{AllocError, Defragmented, DeviceId, Recording, Stats};

use crate::lease::Lease;
use crate::{CollectError, Granularity, tags};

/// One GPU, as burn and glake see it. Cheap to clone.
#[derive(Clone)]
pub struct Gpu {
    pub(crate) hook: glake_hook::Glake,
    pub(crate) granularity: Granularity,
    pub(crate) client: Client,
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpu")
            .field("device", &self.device())
            .field("granularity", &self.granularity)
            .finish_non_exhaustive()
    }
}

impl Gpu {
    /// The device, as glake counts them.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        DeviceId(u32::from(self.client.service_id().device.index_id))
    }

    /// Runs `work` in the installed [`Granularity`]: with [`Granularity::Tensor`], each tensor that this
    /// thread makes meanwhile is an allocation of glake, which gets it back once the tensor is gone and
    /// the next one is made. Weights of a module are so in either case; burn asks for them one by one.
    ///
    /// Other threads call it for themselves. A loop calls [`collect`](Self::collect) once in a while, such as
    /// after each step: cubecl looks at all its live allocations when it makes one, and it keeps up to 4096
    /// small ones, of kernels' arguments, until a collection.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match self.granularity {
            Granularity::Page => work(),
            Granularity::Tensor => {
                // For a stream that is not there yet cubecl notes one mode, not a stack of them: the end of
                // the first weight's own would end this one. A flush makes the stream. One that cannot be
                // made fails at its first allocation, too, and says why.
                let _ = self.client.flush();
                self.client.memory_dedicated_allocation((), |()| work())
            }
        }
    }

    /// [`run`](Self::run), on a stream that another thread may have used and finished with.
    ///
    /// cubecl gives each new thread a stream and a memory, and keeps both when the thread ends (burn
    /// #4792). With this, there are as many as there were threads at the same time.
    pub fn run_on_reused_stream<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        let lease = Lease::new();
        lease.stream().executes(|| self.run(work))
    }

    /// Has cubecl give back to glake what it holds for no tensor, on all streams. It waits for the
    /// device. Nothing goes back to the driver; [`trim`](Self::trim) does that.
    ///
    /// # Errors
    /// A graph is being recorded; nothing has changed.
    pub fn collect(&self) -> Result<(), CollectError> {
        self.client.memory_cleanup().map_err(|error| CollectError(Box::new(error)))
    }

    /// Runs `work`; what it allocates bears `name` in [`Glake::tagged_bytes`](crate::Glake::tagged_bytes).
    ///
    /// cubecl allocates in one thread for all of a device, behind what was submitted before: this waits, at
    /// the beginning and at the end, until that thread has come so far. What other threads allocate on the
    /// device meanwhile counts too; of scopes open at the same time, the one begun last. Operations that burn
    /// holds back to fuse them count where they run.
    pub fn tagged<R>(&self, name: &'static str, work: impl FnOnce() -> R) -> R {
        let hook = self.hook;
        // Where the thread is gone, nothing is allocated there either.
        let scope = self.client.exclusive(move || tags::begin(hook, name)).ok();
        let _end = scope.map(|scope| Untag { gpu: self, scope });
        work()
    }

    /// Records this device's allocations into `path`, in the format that glake's replay reads (gzip where
    /// the name ends in `.gz`), until the recording is finished or dropped.
    ///
    /// # Errors
    /// The file cannot be written, or a recording is going on.
    pub fn record(&self, path: impl AsRef<Path>) -> io::Result<Recording> {
        self.hook.record(self.device(), path)
    }

    /// What glake's pool of this device holds, and for what.
    #[must_use]
    pub fn memory_stats(&self) -> Stats {
        self.hook.memory_stats(self.device())
    }

    /// The share of the pool's free bytes that no request can get, 0 to 1.
    #[must_use]
    pub fn fragmentation_ratio(&self) -> f64 {
        self.hook.fragmentation_ratio(self.device())
    }

    /// Gives free memory back to the driver until the pool holds `keep_bytes`, first that of
    /// [`collect`](Self::collect) where cubecl gives it. Returns the bytes that went back.
    ///
    /// # Errors
    /// The driver refused.
    pub fn trim(&self, keep_bytes: u64) -> Result<u64, AllocError> {
        // While a graph is recorded cubecl keeps its memory; glake's own can go all the same.
        let _ = self.collect();
        self.hook.trim(self.device(), keep_bytes)
    }

    /// Moves the pool's free memory into one run of addresses. Live memory stays where it is. It waits for
    /// the device.
    ///
    /// # Errors
    /// The driver refused.
    pub fn defragment(&self) -> Result<Defragmented, AllocError> {
        self.hook.defragment(self.device())
    }

    /// Sets the most bytes that the pool may hold. What is free above it goes back to the driver; returns
    /// those bytes.
    ///
    /// # Errors
    /// The driver refused to take memory back; the limit is set all the same.
    pub fn limit_bytes(&self, limit_bytes: u64) -> Result<u64, AllocError> {
        self.hook.limit_bytes(self.device(), limit_bytes)
    }
}

/// Ends a scope, also where the work panics.
struct Untag<'a> {
    gpu: &'a Gpu,
    scope: u64,
}

impl Drop for Untag<'_> {
    fn drop(&mut self) {
        let (hook, scope) = (self.gpu.hook, self.scope);
        // Where the thread is gone, its tags are, too.
        let _ = self.gpu.client.exclusive(move || tags::end(hook, scope));
    }
}
