//! Device work: what it is, and what happens when it runs.

use std::sync::Arc;

use super::Machine;
use super::kernel::Launch;
use super::space::{Engine, Need};
use crate::abi::{Callback, to_usize};
use crate::code::{Code, Result};
use crate::raw;

/// What one step of a fill writes.
const STEP_BYTES: usize = 1 << 20;

/// One end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// An address that the devices know.
    Device(u64),
    /// Plain memory of the host, for which the caller vouches.
    Host(u64),
}

/// One item of work.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Waits only.
    Nothing,
    Copy {
        dst: Side,
        src: Side,
        bytes: u64,
    },
    /// A copy from host memory that was read when it was enqueued.
    Write {
        dst: u64,
        bytes: Arc<[u8]>,
    },
    /// `n` values of as many bytes as `value` has.
    Fill {
        dst: u64,
        value: Value,
        n: u64,
    },
    Kernel(Launch),
    Record {
        event: u64,
        nth: u64,
    },
    Free {
        start: u64,
    },
    Graph {
        exec: u64,
        ops: Arc<[Op]>,
    },
    Host(Callback),
}

/// What a fill repeats: 1, 2 or 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    bytes: [u8; 4],
    n_bytes: usize,
}

impl Value {
    /// The low `n_bytes` bytes, 1, 2 or 4, of a value.
    pub(crate) fn new(value: u32, n_bytes: usize) -> Self {
        Self { bytes: value.to_le_bytes(), n_bytes }
    }

    fn len(self) -> u64 {
        self.n_bytes as u64
    }
}

impl Side {
    fn address(self) -> u64 {
        let (Self::Device(address) | Self::Host(address)) = self;
        address
    }
}

impl Machine {
    /// Whether the device of a context may do so.
    fn may(&self, context: u64, start: u64, bytes: u64, need: Need, engine: Engine) -> Result {
        let may = self.space.may(self.device_of(context), start, bytes, need, engine);
        may.then_some(()).ok_or(Code::ILLEGAL_ADDRESS)
    }

    fn may_copy(&self, context: u64, side: Side, bytes: u64, need: Need) -> Result {
        match side {
            Side::Device(start) => self.may(context, start, bytes, need, Engine::Copy),
            Side::Host(_) => Ok(()),
        }
    }

    /// Whether the context's kernels may do so.
    pub(crate) fn may_by_kernel(&self, context: u64, start: u64, bytes: u64, need: Need) -> Result {
        let peers = self.contexts.get(&context).map_or(0, |context| context.peers);
        self.may(context, start, bytes, need, Engine::Kernel { peers })
    }

    /// Refuses copies and fills of what may not be touched when they are enqueued.
    pub(crate) fn check_op(&self, context: u64, op: &Op) -> Result {
        self.may_op(context, op).map_err(|_| Code::INVALID_VALUE)
    }

    fn may_op(&self, context: u64, op: &Op) -> Result {
        match op {
            Op::Copy { dst, src, bytes } => {
                self.may_copy(context, *src, *bytes, Need::Read)?;
                self.may_copy(context, *dst, *bytes, Need::Write)
            }
            Op::Write { dst, bytes } => {
                self.may(context, *dst, bytes.len() as u64, Need::Write, Engine::Copy)
            }
            Op::Fill { dst, value, n } => {
                let bytes = n.checked_mul(value.len()).ok_or(Code::ILLEGAL_ADDRESS)?;
                self.may(context, *dst, bytes, Need::Write, Engine::Copy)
            }
            _ => Ok(()),
        }
    }

    /// Runs an item; an error is the death of the context.
    pub(crate) fn execute(&mut self, context: u64, op: &Op) -> Result {
        self.may_op(context, op)?;
        match op {
            Op::Nothing => {}
            Op::Copy { dst, src, bytes } => {
                // SAFETY: the space says that both sides are mapped with the rights that it takes, or
                // the caller vouched for its host memory; nobody refers to device memory.
                unsafe { raw::copy(dst.address(), src.address(), *bytes) };
            }
            // SAFETY: the space says that the range is mapped and writable.
            Op::Write { dst, bytes } => unsafe { raw::store(*dst, bytes) },
            Op::Fill { dst, value, n } => fill(*dst, *value, *n),
            Op::Kernel(launch) => self.run_kernel(context, launch)?,
            Op::Record { event, nth } => self.event_passed(*event, *nth),
            Op::Free { start } => self.free(*start),
            Op::Graph { ops, .. } => {
                for op in ops.iter() {
                    self.execute(context, op)?;
                }
            }
            Op::Host(callback) => callback.call(),
        }
        Ok(())
    }

    /// Gives plain memory back.
    pub(crate) fn free(&mut self, start: u64) {
        if let Some(region) = self.space.regions.remove(&start) {
            self.freed(start, &region);
            // SAFETY: it was from `raw::allocate`; with its region gone no work touches it.
            unsafe { raw::give_back(start, region.bytes) };
        }
    }
}

/// Fills a range that is mapped and writable.
fn fill(dst: u64, value: Value, n: u64) {
    let pattern = value.bytes[..value.n_bytes].repeat(STEP_BYTES / value.n_bytes);
    let (mut at, end) = (dst, dst + n * value.len());
    while at < end {
        let step = &pattern[..to_usize((end - at).min(STEP_BYTES as u64))];
        // SAFETY: the caller has checked the range.
        unsafe { raw::store(at, step) };
        at += step.len() as u64;
    }
}
