//! What threads do for a staged transfer, and how slots come to them and back.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use glake_core::driver::HostBuffer;
use rayon_core::Scope;

use crate::chunk::Chunk;
use crate::ends::Ends;
use crate::lane::Direction;

/// A slot that is to be filled or emptied.
pub(super) struct Job {
    pub(super) chunk: Chunk,
    pub(super) slot: HostBuffer,
}

/// A slot that was.
pub(super) struct DoneJob {
    pub(super) job: Job,
    pub(super) outcome: io::Result<()>,
}

/// What is done with slots.
pub(super) struct Work<'m> {
    pub(super) direction: Direction,
    pub(super) ends: Ends<'m>,
}

impl Work<'_> {
    fn perform(&self, mut job: Job) -> DoneJob {
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
}

/// Where the calling thread leaves slots, and gets them back.
pub(super) struct Desk<'s, 'scope, 'm> {
    work: &'scope Work<'m>,
    /// The threads that do it; without them the calling one does.
    threads: Option<&'s Scope<'scope>>,
    tell: Sender<DoneJob>,
    done: Receiver<DoneJob>,
}

impl<'s, 'scope, 'm> Desk<'s, 'scope, 'm> {
    pub(super) fn new(work: &'scope Work<'m>, threads: Option<&'s Scope<'scope>>) -> Self {
        let (tell, done) = channel();
        Self { work, threads, tell, done }
    }

    /// Has a slot filled or emptied.
    pub(super) fn leave(&self, job: Job) {
        let (work, tell) = (self.work, self.tell.clone());
        // The other end is at this desk.
        let perform = move || drop(tell.send(work.perform(job)));
        match self.threads {
            Some(threads) => threads.spawn(move |_| perform()),
            None => perform(),
        }
    }

    /// A slot that is done.
    pub(super) fn take(&self) -> Option<DoneJob> {
        self.done.try_recv().ok()
    }

    /// Waits a while for a slot that is done.
    pub(super) fn wait(&self, most: Duration) -> Option<DoneJob> {
        self.done.recv_timeout(most).ok()
    }
}
