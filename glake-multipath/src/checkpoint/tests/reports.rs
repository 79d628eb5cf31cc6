//! Defects of other loaders that were reported in public.

use glake_core::driver::DriverError;
use glake_core::sim::{Fault, Target};
use glake_testkit::spy::Spy;

use super::*;
use crate::{Progress, TransferError};

/// safetensors #729: a file that is mapped and not in memory is slow as the source of copies.
#[test]
fn safetensors_729_files_are_not_mapped() {
    let folder = Folder::new();
    let path = folder.write("weights.safetensors", file_of(&[bytes("a", 4 * MIB)]));
    let checkpoint = Checkpoint::open(&path).unwrap();
    let mut rig = Rig::new(1);
    let is_mapped = || fs::read_to_string("/proc/self/maps").unwrap().contains(path.to_str().unwrap());
    let tell = |_: Progress| assert!(!is_mapped());
    let Rig { engine, pool, .. } = &mut rig;
    let loaded = Loader::new(engine, GPU, STREAM).on_progress(&tell).load(&checkpoint, pool).unwrap();
    loaded.free(pool, STREAM).unwrap();
}

/// Nor is a file read by its name again: one that is put in its place, longer or shorter, changes nothing.
#[test]
fn a_file_that_is_replaced_is_read_through_the_open_descriptor() {
    for other_bytes in [8 * MIB, 3] {
        let folder = Folder::new();
        let all = [bytes("a", 3 * MIB), bytes("b", 77)];
        let path = folder.write("weights.safetensors", file_of(&all));
        let checkpoint = Checkpoint::open(&path).unwrap();
        let other = folder.write("other", file_of(&[bytes("other", other_bytes)]));
        fs::rename(other, &path).unwrap();
        let mut rig = Rig::new(2);
        let Rig { engine, pool, .. } = &mut rig;
        let loaded = Loader::new(engine, GPU, STREAM).load(&checkpoint, pool).unwrap();
        rig.check(&loaded, &all);
    }
}

/// safetensors #858: pinned memory is kept from tensor to tensor.
#[test]
fn safetensors_858_pinned_memory_does_not_grow_with_the_tensors() {
    let pinned_bytes = |n: u64| {
        let folder = Folder::new();
        let all: Vec<Made> = (0..n).map(|at| bytes(&format!("t{at}"), 10_000 + at)).collect();
        let shards: Vec<Vec<Made>> = all.chunks(100).map(<[Made]>::to_vec).collect();
        folder.write_shards(&shards);
        let driver = Arc::new(SimConfig::h200(1).completion(Completion::Lag(1000)).build());
        let spy = Spy::new(driver.clone());
        let mut rig = Rig::over(driver, spy.clone(), small().pinned_bytes(3 * SLOT_BYTES));
        for _ in 0..3 {
            let loaded = rig.load(folder.0.path(), 1 << 30);
            rig.check(&loaded, &all);
            loaded.free(&mut rig.pool, STREAM).unwrap();
        }
        spy.pinned_bytes()
    };
    for n in [20, 600] {
        let pinned = pinned_bytes(n);
        assert!(pinned > 0 && pinned <= 3 * SLOT_BYTES, "{n} tensors: {pinned}");
    }
}

/// pytorch #152335, `InstantTensor` #19: registering whole files fails where the limit of locked memory is low, and what was
/// registered by then stays so.
#[test]
fn pytorch_152335_where_no_memory_can_be_pinned_nothing_leaks() {
    let folder = Folder::new();
    let all = [bytes("a", 3 * MIB)];
    let path = folder.write("x.safetensors", file_of(&all));
    let mut rig = Rig::new(1);
    for _ in 0..3 {
        rig.driver.plan(Fault::nth(0).of(Target::Copies).error(DriverError::OutOfMemory).from_then_on());
        let error = rig.try_load(&path, 1 << 30).unwrap_err();
        let LoadError::Transfer { source, .. } = error else { panic!("{error:?}") };
        let TransferError::NoPath { source, .. } = *source else { panic!("{source:?}") };
        assert_eq!(*source, DriverError::OutOfMemory);
        assert_eq!(rig.pool.live, BTreeSet::new());
        rig.driver.clear_faults();
    }
    let loaded = rig.load(&path, 1 << 30);
    rig.check(&loaded, &all);
}
