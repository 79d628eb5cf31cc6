//! The shadow oracle beside a run.

use super::{Observed, Pools, Watch};
use crate::oracle::Oracle;

/// Tells an [`Oracle`] what the pools do.
#[derive(Debug)]
pub struct Check(pub Oracle);

impl Watch for Check {
    fn see(&mut self, _: usize, _: &Pools, observed: Observed<'_>) {
        match observed {
            Observed::Allocated(allocation) => self.0.allocated(allocation),
            Observed::Freeing(allocation) => self.0.freed(allocation.ptr, allocation.stream),
            Observed::Allocating(_) | Observed::Refused(_) | Observed::Freed(_) => {}
        }
    }
}
