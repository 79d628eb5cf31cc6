//! What the threads of a staged transfer do, and how slots come to them and back.

use std::io;

use crossbeam_channel::{Receiver, Sender};
use glake_core::driver::HostBuffer;

use crate::chunk::Chunk;
use crate::ends::Ends;
use crate::lane::Direction;

/// The queues between the calling thread and the others.
pub(super) struct Queues {
    pub(super) jobs: Sender<Job>,
    /// The jobs once more, for the calling thread to help.
    pub(super) waiting: Receiver<Job>,
    pub(super) done: Receiver<DoneJob>,
    /// Whether it helps without having waited.
    pub(super) helps: bool,
}

/// A slot that a thread has, or is to have.
pub(super) struct Job {
    pub(super) chunk: Chunk,
    pub(super) slot: HostBuffer,
}

/// A slot that a thread is done with.
pub(super) struct DoneJob {
    pub(super) job: Job,
    pub(super) outcome: io::Result<()>,
}

/// What threads do with slots.
pub(super) struct Desk<'m> {
    pub(super) direction: Direction,
    pub(super) ends: Ends<'m>,
}

impl Desk<'_> {
    pub(super) fn perform(&self, mut job: Job) -> DoneJob {
        let slot = (*job.slot).as_mut();
        let outcome = match self.direction {
            Direction::ToDevice => self.ends.fill(&job.chunk, slot),
            Direction::ToHost => {
                self.ends.empty(&job.chunk, slot);
                Ok(())
            }
        };
        DoneJob { job, outcome }
    }

    /// One thread's part.
    pub(super) fn work(&self, jobs: &Receiver<Job>, done: &Sender<DoneJob>) {
        while let Ok(job) = jobs.recv() {
            if done.send(self.perform(job)).is_err() {
                return;
            }
        }
    }
}
