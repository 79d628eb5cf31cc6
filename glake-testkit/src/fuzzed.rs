//! Programs coded in bytes, for a fuzzer and for the corpus that it left.
//!
//! The first byte is the [`Setup`], every four after it are an [`Op`]: a byte for kind and stream, three
//! for the operands. So any bytes are a program, a changed byte changes one operation, and files of the
//! corpus stay what they are.

use glake_core::alloc::Request;
use glake_core::driver::{Call, DriverError};
use glake_core::sim::{Completion, Fault, Target};
use glake_core::units::PAGE_BYTES;

/// More would make a run slow, and find no more.
const MAX_OPS: usize = 1000;

/// A program for a pool over a simulated driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The pool and its driver.
    pub setup: Setup,
    /// What is done with them.
    pub ops: Vec<Op>,
}

/// How the pool and its driver are set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Which of the pool's modes, modulo their number.
    pub mode: usize,
    /// When device work is done.
    pub completion: Completion,
    /// The pool's threshold of that name.
    pub stitch_above_bytes: u64,
}

/// One operation. Streams and picks count modulo what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Allocate.
    Allocate {
        /// Size, zero included.
        bytes: u64,
        /// Alignment, a power of two.
        align_bytes: u64,
        /// The stream that uses it first.
        stream: usize,
    },
    /// Free a live allocation.
    Free {
        /// Which one.
        pick: usize,
        /// The stream that used it last.
        stream: usize,
    },
    /// Try to free what is not a live allocation.
    FreeWrongly {
        /// The live allocation whose inside is meant.
        pick: usize,
        /// How far inside.
        offset_bytes: u64,
    },
    /// Give memory back.
    Trim {
        /// How much to keep.
        keep_bytes: u64,
    },
    /// Set the pool's limit.
    Limit {
        /// To this.
        bytes: u64,
    },
    /// Gather what is free.
    Defragment,
    /// Let the device do some of its work.
    Complete {
        /// Of this stream.
        stream: usize,
        /// So many pieces.
        n: usize,
    },
    /// Let a driver call fail later on.
    Fail {
        /// Which one, and how.
        fault: Fault,
    },
}

/// The program that `bytes` stand for. Bytes at the end that are no whole operation are left out.
#[must_use]
pub fn decode(bytes: &[u8]) -> Program {
    let (setup, ops) = bytes.split_first().map_or((0, bytes), |(&setup, ops)| (setup, ops));
    Program {
        setup: self::setup(setup),
        ops: ops.as_chunks().0.iter().copied().take(MAX_OPS).map(op).collect(),
    }
}

fn setup(byte: u8) -> Setup {
    Setup {
        mode: usize::from(byte & 3),
        completion: match byte >> 2 & 3 {
            0 => Completion::Immediate,
            1 => Completion::Lag(3_000_000),
            _ => Completion::Manual,
        },
        stitch_above_bytes: if byte >> 4 & 3 == 3 { 1 << 28 } else { 0 },
    }
}

fn op([kind, a, b, c]: [u8; 4]) -> Op {
    let stream = usize::from(kind >> 4);
    let pick = usize::from(u16::from_le_bytes([a, b]));
    match kind & 15 {
        0..6 => Op::Allocate { bytes: size(a, b, c), align_bytes: align(c), stream },
        6..11 => Op::Free { pick, stream },
        11 => Op::FreeWrongly { pick, offset_bytes: 1 << (c % 32) },
        12 => Op::Trim { keep_bytes: size(a, b, c) },
        13 if a < 128 => Op::Limit { bytes: size(a, b, c) },
        13 if a < 192 => Op::Limit { bytes: u64::MAX },
        13 => Op::Defragment,
        14 => Op::Complete { stream, n: usize::from(a % 64) },
        _ => Op::Fail { fault: fault(a, b, c) },
    }
}

/// A size of up to 2 GiB: two bytes of exponent and mantissa, and one that chooses a neighbour.
fn size(exponent: u8, mantissa: u8, neighbour: u8) -> u64 {
    let bytes = (256 + u64::from(mantissa)) << (exponent % 31) >> 8;
    match neighbour & 3 {
        0 => bytes,
        1 => bytes - 1,
        2 => bytes + 1,
        _ => bytes.next_multiple_of(PAGE_BYTES),
    }
}

/// One in three is not the least.
fn align(byte: u8) -> u64 {
    (byte >> 2).checked_sub(42).map_or(Request::MIN_ALIGN_BYTES, |shift| 1 << shift)
}

fn fault(n: u8, call: u8, how: u8) -> Fault {
    let target = Call::ALL.get(usize::from(call % 16)).map_or(Target::All, |&call| Target::One(call));
    let fault = Fault::nth(u64::from(n % 32)).of(target);
    let fault = if how & 1 == 0 { fault } else { fault.error(DriverError::OutOfMemory) };
    if how & 6 == 6 { fault.from_then_on() } else { fault }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_are_a_program() {
        assert_eq!(decode(&[]), decode(&[0]));
        assert!(decode(&[7; 4]).ops.is_empty());
        assert_eq!(decode(&[7; 5]).ops.len(), 1);
        assert_eq!(decode(&[7; 1 + 4 * (MAX_OPS + 3)]).ops.len(), MAX_OPS);
    }

    #[test]
    fn sizes_have_their_edges() {
        assert_eq!([1, 0, 2].map(|neighbour| size(0, 0, neighbour)), [0, 1, 2]);
        assert_eq!([1, 0, 2].map(|n| size(21, 0, n)), [PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1]);
        assert_eq!((size(20, 1, 3), size(30, 255, 0)), (PAGE_BYTES, (2 << 30) - (1 << 22)));
    }

    #[test]
    fn every_request_is_one_that_a_pool_may_get() {
        for byte in 0..=u8::MAX {
            let align_bytes = align(byte);
            assert!(align_bytes.is_power_of_two() && align_bytes <= PAGE_BYTES, "{align_bytes}");
        }
        assert_eq!((align(0), align(42 << 2), align(u8::MAX)), (512, 1, PAGE_BYTES));
    }

    #[test]
    fn a_byte_names_kind_and_stream() {
        assert_eq!(decode(&[0, 0x26, 1, 2, 0]).ops, [Op::Free { pick: 0x201, stream: 2 }]);
        assert_eq!(decode(&[0, 0x1e, 65, 0, 0]).ops, [Op::Complete { stream: 1, n: 1 }]);
        assert_eq!(decode(&[0, 13, 192, 0, 0]).ops, [Op::Defragment]);
        let fault = Fault::nth(3).of(Target::One(Call::Map)).error(DriverError::OutOfMemory).from_then_on();
        assert_eq!(decode(&[0, 15, 3, 4, 7]).ops, [Op::Fail { fault }]);
    }
}
