//! The one PTX module: `kernels/glake.cu`, built by `scripts/build-ptx.sh`.

use std::ffi::CStr;

use glake_core::driver::Result;
use glake_core::units::DevicePtr;

use crate::call::kernel::{self, Grid};
use crate::call::{Function, Module};

const PTX: &str = concat!(include_str!("../kernels/glake.ptx"), "\0");

/// Threads per block.
const N_THREADS: u32 = 256;
/// Bytes that one thread of a copy moves before the loop turns: 4 words of 16 bytes.
const THREAD_BYTES: u64 = 64;
/// Blocks per processor in a grid of several rows: four rounds of the eight that fill one, so that
/// none of them waits long for the slowest.
const BLOCKS_PER_PROCESSOR: u32 = 32;
/// The most blocks in a row that CUDA takes.
const MOST_BLOCKS: u64 = (1 << 31) - 1;

/// The kernels, loaded into one context.
#[derive(Debug)]
pub(crate) struct Kernels {
    module: Module,
    pub(crate) copy: Function,
    pub(crate) gather: Function,
    pub(crate) compare: Function,
    pub(crate) fill_pattern: Function,
    pub(crate) check_pattern: Function,
    pub(crate) delay: Function,
    /// Where `check_pattern` counts, an `u64`.
    pub(crate) mismatches: DevicePtr,
}

impl Kernels {
    /// Loads the module into the current context. May wait for device work.
    pub(crate) fn load() -> Result<Self> {
        let ptx = CStr::from_bytes_with_nul(PTX.as_bytes()).unwrap_or_default();
        let module = kernel::load(ptx)?;
        Self::find_all(module).inspect_err(|_| {
            // SAFETY: the module was loaded above, and nobody knows it. The first error tells more.
            let _ = unsafe { kernel::unload(module) };
        })
    }

    /// Looks all names of the module up, which is loaded.
    fn find_all(module: Module) -> Result<Self> {
        // SAFETY: the module was loaded by the caller and is not unloaded meanwhile.
        let find = |name| unsafe { kernel::function(module, name) };
        Ok(Self {
            module,
            copy: find(c"glake_copy")?,
            gather: find(c"glake_gather")?,
            compare: find(c"glake_compare")?,
            fill_pattern: find(c"glake_fill_pattern")?,
            check_pattern: find(c"glake_check_pattern")?,
            delay: find(c"glake_delay")?,
            // SAFETY: as above.
            mismatches: unsafe { kernel::global(module, c"glake_mismatches") }?,
        })
    }

    /// Unloads the module.
    ///
    /// # Safety
    /// None of the kernels runs.
    pub(crate) unsafe fn unload(self) -> Result<()> {
        // SAFETY: the module is ours and consumed; the caller says that no kernel runs.
        unsafe { kernel::unload(self.module) }
    }
}

/// A grid for `bytes` bytes in each of `n_rows` rows, on a device of `n_processors`.
///
/// A single row gets a block for every few KiB: on an H200 that copies at 97 % of the copy engine's
/// rate, a grid that fills the device once and loops at 90 %.
pub(crate) fn grid(bytes: u64, n_rows: u64, n_processors: u32) -> Grid {
    let most = u64::from(n_processors.max(1) * BLOCKS_PER_PROCESSOR);
    let y = n_rows.clamp(1, most);
    let block_bytes = u64::from(N_THREADS) * THREAD_BYTES;
    let most_x = if y == 1 { MOST_BLOCKS } else { most.div_ceil(y) };
    let x = bytes.div_ceil(block_bytes).clamp(1, most_x);
    let narrow = |n| u32::try_from(n).unwrap_or(1);
    Grid { x: narrow(x), y: narrow(y), threads: N_THREADS }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_is_text_with_every_name() {
        let ptx = CStr::from_bytes_with_nul(PTX.as_bytes()).unwrap().to_str().unwrap();
        for name in ["copy", "gather", "compare", "fill_pattern", "check_pattern", "delay"] {
            assert!(ptx.contains(&format!(".visible .entry glake_{name}(")), "{name}");
        }
        assert!(ptx.contains(".visible .global .align 8 .u64 glake_mismatches"));
    }

    #[test]
    fn a_row_is_as_long_as_its_bytes_and_many_rows_fill_the_device() {
        let of = |bytes, rows| {
            let grid = grid(bytes, rows, 132);
            (grid.x, grid.y)
        };
        assert_eq!(of(1, 1), (1, 1));
        assert_eq!(of(32 << 10, 1), (2, 1));
        assert_eq!(of(1 << 40, 1), (1 << 26, 1));
        assert_eq!(of(1 << 60, 1), ((1 << 31) - 1, 1));
        assert_eq!(of(2 << 20, 64), (66, 64));
        assert_eq!(of(8, 1 << 40), (1, 132 * 32));
    }
}
