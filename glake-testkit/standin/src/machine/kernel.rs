//! The kernels of `glake-cuda/kernels/glake.cu`, on the host.

use super::Machine;
use super::space::Need;
use crate::code::{Code, Result};
use crate::raw;

/// A kernel that the stand-in knows. All take 64-bit words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    Copy,
    Gather,
    Compare,
    FillPattern,
    CheckPattern,
    Delay,
    /// Checks nothing and does nothing.
    Unknown,
}

/// A kernel with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    pub(crate) kernel: Kernel,
    pub(crate) words: Vec<u64>,
    /// Where its module counts wrong words, if it does.
    pub(crate) mismatches: Option<u64>,
}

const WORD_BYTES: u64 = 8;
/// Words in each piece of a gather's table: destination, source, bytes.
const PIECE_WORDS: u64 = 3;

impl Kernel {
    pub(crate) fn named(name: &str) -> Self {
        match name {
            "glake_copy" => Self::Copy,
            "glake_gather" => Self::Gather,
            "glake_compare" => Self::Compare,
            "glake_fill_pattern" => Self::FillPattern,
            "glake_check_pattern" => Self::CheckPattern,
            "glake_delay" => Self::Delay,
            _ => Self::Unknown,
        }
    }

    /// How many arguments it takes.
    pub(crate) const fn n_words(self) -> usize {
        match self {
            Self::Unknown => 0,
            Self::Delay => 1,
            Self::Gather => 2,
            Self::Copy | Self::FillPattern | Self::CheckPattern => 3,
            Self::Compare => 4,
        }
    }
}

/// The finaliser of `SplitMix64` over seed and word.
fn pattern_word(seed: u64, index: u64) -> u64 {
    let mut x = seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Machine {
    /// Runs a kernel of a context; an error is the death of the context.
    pub(crate) fn run_kernel(&mut self, context: u64, launch: &Launch) -> Result {
        match (launch.kernel, launch.words.as_slice()) {
            (Kernel::Copy, &[dst, src, bytes]) => self.copy_piece(context, dst, src, bytes),
            (Kernel::Gather, &[table, n]) => self.gather(context, table, n),
            (Kernel::Compare, &[a, b, bytes, found]) => self.compare(context, a, b, bytes, found),
            (Kernel::FillPattern, &[start, n, seed]) => {
                self.check_words(context, start, n, Need::Write)?;
                for index in 0..n {
                    // SAFETY: the words are mapped, writable and aligned.
                    unsafe { raw::store_word(start + index * WORD_BYTES, pattern_word(seed, index)) };
                }
                Ok(())
            }
            (Kernel::CheckPattern, &[start, n, seed]) => self.check_pattern(context, launch, start, n, seed),
            (Kernel::Delay, &[ns]) => {
                self.now_ns = self.now_ns.saturating_add(ns);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Whether a kernel may touch words.
    fn check_words(&self, context: u64, start: u64, n: u64, need: Need) -> Result {
        if !start.is_multiple_of(WORD_BYTES) {
            return Err(Code::MISALIGNED_ADDRESS);
        }
        let bytes = n.checked_mul(WORD_BYTES).ok_or(Code::ILLEGAL_ADDRESS)?;
        self.may_by_kernel(context, start, bytes, need)
    }

    fn load(&self, context: u64, address: u64) -> Result<u64> {
        self.check_words(context, address, 1, Need::Read)?;
        // SAFETY: the word is mapped, readable and aligned.
        Ok(unsafe { raw::load_word(address) })
    }

    fn store(&self, context: u64, address: u64, word: u64) -> Result {
        self.check_words(context, address, 1, Need::Write)?;
        // SAFETY: the word is mapped, writable and aligned.
        unsafe { raw::store_word(address, word) };
        Ok(())
    }

    fn copy_piece(&self, context: u64, dst: u64, src: u64, bytes: u64) -> Result {
        self.may_by_kernel(context, src, bytes, Need::Read)?;
        self.may_by_kernel(context, dst, bytes, Need::Write)?;
        // SAFETY: both ranges are mapped with the rights that it takes.
        unsafe { raw::copy(dst, src, bytes) };
        Ok(())
    }

    fn gather(&self, context: u64, table: u64, n: u64) -> Result {
        for piece in 0..n {
            let word = |index| self.load(context, table + (piece * PIECE_WORDS + index) * WORD_BYTES);
            self.copy_piece(context, word(0)?, word(1)?, word(2)?)?;
        }
        Ok(())
    }

    fn compare(&self, context: u64, a: u64, b: u64, bytes: u64, found: u64) -> Result {
        self.may_by_kernel(context, a, bytes, Need::Read)?;
        self.may_by_kernel(context, b, bytes, Need::Read)?;
        // SAFETY: both ranges are mapped and readable, and nothing else runs under the lock.
        if unsafe { raw::equal(a, b, bytes) } { Ok(()) } else { self.store(context, found, 1) }
    }

    fn check_pattern(&self, context: u64, launch: &Launch, start: u64, n: u64, seed: u64) -> Result {
        self.check_words(context, start, n, Need::Read)?;
        let is_wrong = |index: &u64| {
            // SAFETY: the words are mapped, readable and aligned.
            let word = unsafe { raw::load_word(start + index * WORD_BYTES) };
            word != pattern_word(seed, *index)
        };
        let n_wrong = (0..n).filter(is_wrong).count() as u64;
        match launch.mismatches {
            Some(counter) if n_wrong > 0 => {
                let before = self.load(context, counter)?;
                self.store(context, counter, before.wrapping_add(n_wrong))
            }
            _ => Ok(()),
        }
    }
}
