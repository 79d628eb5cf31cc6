//! Memory for every stream, every thread and the host at once.

use glake_core::alloc::{AllocError, Allocation, Request};

use super::SharedPool;
use crate::for_all::NO_STREAM;
use crate::order::StreamIndex;
use crate::pool::{StitchPool, checked};
use crate::small::SMALL_BYTES;

impl SharedPool {
    /// As [`StitchPool::allocate_for_all`](crate::StitchPool::allocate_for_all). Small objects have a shard
    /// of their own. Where the device has to be waited for, which is only when memory is out, that is done
    /// with the pool's lock held.
    ///
    /// # Errors
    /// As [`StitchPool::allocate_for_all`](crate::StitchPool::allocate_for_all);
    /// [`AllocError::Poisoned`] if a thread panicked inside.
    pub fn allocate_for_all(&self, bytes: u64) -> Result<Allocation, AllocError> {
        let request = Request::new(bytes, NO_STREAM);
        self.check_sound()?;
        checked(request, self.arena)?;
        let at = if bytes < SMALL_BYTES {
            let index = self.host()?;
            let at = self.state(index)?.allocate(bytes);
            at.map_or_else(|| self.central(|pool| self.refill(pool, index, bytes)), Ok)
        } else {
            self.central(|pool| {
                let admitted = pool.admit_for_all(request)?;
                self.allocate_large(pool, request, admitted)
            })
        };
        Ok(Allocation { ptr: self.arena.start + at?, bytes, stream: NO_STREAM })
    }

    /// What stands for the host, with the central lock only where that is not known.
    fn host(&self) -> Result<StreamIndex, AllocError> {
        if let Some(&index) = self.host.get() {
            return Ok(index);
        }
        let index = self.central(StitchPool::host)?;
        Ok(*self.host.get_or_init(|| index))
    }
}
