//! Calls that concern the whole pool: figures, memory given back, streams and captures.

use std::sync::PoisonError;

use glake_core::alloc::{AllocError, Allocator};
use glake_core::stats::Stats;
use glake_core::units::{DeviceId, StreamId};

use super::{SharedPool, report};
use crate::background::Step;
use crate::capture::GraphMemory;
use crate::pool::StitchPool;
use crate::streams::Mark;
use crate::trim::Defragmented;

impl SharedPool {
    /// Gives physical memory back to the device, free units of the shards included.
    ///
    /// # Errors
    /// As [`Allocator::trim`]; [`AllocError::Poisoned`] if a thread panicked inside.
    pub fn trim(&self, keep_bytes: u64) -> Result<u64, AllocError> {
        self.central(|pool| {
            self.collect_for(pool, keep_bytes)?;
            pool.trim_to(keep_bytes)
        })
    }

    /// As [`StitchPool::defragment`].
    ///
    /// # Errors
    /// As [`StitchPool::defragment`].
    pub fn defragment(&self) -> Result<Defragmented, AllocError> {
        self.central(|pool| {
            self.collect(pool)?;
            pool.defragment()
        })
    }

    /// As [`StitchPool::set_limit_bytes`].
    ///
    /// # Errors
    /// As [`StitchPool::set_limit_bytes`].
    pub fn set_limit_bytes(&self, limit_bytes: u64) -> Result<u64, AllocError> {
        self.central(|pool| {
            let collected = self.collect_for(pool, limit_bytes);
            let set = pool.set_limit_bytes(limit_bytes)?;
            collected.map(|()| set)
        })
    }

    /// Figures of this moment. The peaks of requested and allocated bytes count the small objects of a
    /// stream as they were when it last took or gave back a unit, or now.
    pub fn stats(&self) -> Stats {
        let mut pool = self.central.lock().unwrap_or_else(PoisonError::into_inner);
        self.free_late(&mut pool);
        for (_, shard) in self.shards() {
            report(&mut pool, &mut shard.state.lock().unwrap_or_else(PoisonError::into_inner));
        }
        pool.stats()
    }

    /// As [`StitchPool::grant_access`].
    ///
    /// # Errors
    /// As [`StitchPool::grant_access`].
    pub fn grant_access(&self, device: DeviceId) -> Result<(), AllocError> {
        self.central(|pool| pool.grant_access(device))
    }

    /// As [`StitchPool::leave_to_steps`].
    ///
    /// # Errors
    /// [`AllocError::Poisoned`].
    pub fn leave_to_steps(&self) -> Result<(), AllocError> {
        self.central(|pool| {
            pool.leave_to_steps();
            Ok(())
        })
    }

    /// As [`StitchPool::step`]; a [`Worker`](crate::Worker) calls it.
    ///
    /// # Errors
    /// As [`StitchPool::step`].
    pub fn step(&self) -> Result<Step, AllocError> {
        self.central(StitchPool::step)
    }

    /// As [`StitchPool::stream_ends`].
    ///
    /// # Errors
    /// As [`StitchPool::stream_ends`].
    pub fn stream_ends(&self, stream: StreamId) -> Result<(), AllocError> {
        self.central(|pool| pool.stream_ends(stream))
    }

    /// As [`StitchPool::mark`].
    ///
    /// # Errors
    /// [`AllocError::Poisoned`].
    pub fn mark(&self) -> Result<Mark, AllocError> {
        self.central(|pool| Ok(pool.mark()))
    }

    /// As [`StitchPool::synchronized`].
    ///
    /// # Errors
    /// [`AllocError::Poisoned`].
    pub fn synchronized(&self, mark: Mark) -> Result<(), AllocError> {
        self.central(|pool| {
            pool.synchronized(mark);
            self.shards().try_for_each(|(index, _)| self.settle(pool, index).map(drop))
        })
    }

    /// As [`StitchPool::begin_capture`]. Small objects of the capture lie in units of their own.
    ///
    /// # Errors
    /// As [`StitchPool::begin_capture`].
    pub fn begin_capture(&self, stream: StreamId) -> Result<GraphMemory, AllocError> {
        self.central(|pool| pool.begin_capture(stream))
    }

    /// As [`StitchPool::join_capture`].
    ///
    /// # Errors
    /// As [`StitchPool::join_capture`].
    pub fn join_capture(&self, memory: &mut GraphMemory, stream: StreamId) -> Result<(), AllocError> {
        self.central(|pool| pool.join_capture(memory, stream))
    }

    /// As [`StitchPool::end_capture`].
    ///
    /// # Errors
    /// [`AllocError::Poisoned`].
    pub fn end_capture(&self, stream: StreamId) -> Result<(), AllocError> {
        self.central(|pool| {
            pool.end_capture(stream);
            Ok(())
        })
    }

    /// As [`StitchPool::close`].
    ///
    /// # Errors
    /// As [`StitchPool::close`].
    pub fn close(self) -> Result<(), AllocError> {
        let mut pool = self.central.lock().map_err(|_| self.poison())?;
        self.free_late(&mut pool);
        pool.finish()
    }
}
