//! Loading that fails: what was allocated is free again.

use std::panic::{AssertUnwindSafe, catch_unwind};

use glake_core::driver::DriverError;
use glake_core::sim::{Fault, Target};

use super::*;
use crate::{Cancel, Progress, TransferError};

/// Shards with several extents each, and their tensors.
fn shards(folder: &Folder) -> Vec<Made> {
    let of = [("a", 2 * MIB + 3), ("b", 100), ("c", MIB / 2), ("d", 300), ("e", 2 * MIB)];
    let all = of.map(|(name, n_bytes)| bytes(name, n_bytes));
    folder.write_shards(&[all[..3].to_vec(), all[3..].to_vec()]);
    all.into()
}

#[test]
fn what_was_allocated_is_freed_where_memory_runs_out() {
    let folder = Folder::new();
    shards(&folder);
    let checkpoint = Checkpoint::open(folder.0.path()).unwrap();
    for refused in 0.. {
        let mut rig = Rig::new(1);
        rig.pool.refuse_at = Some(refused);
        let Rig { engine, pool, .. } = &mut rig;
        let loader = Loader::new(engine, GPU, STREAM).extent_bytes(2 * MIB);
        match loader.load(&checkpoint, pool) {
            Ok(_) => {
                assert!(refused > 3, "{refused}");
                return;
            }
            Err(LoadError::Memory(error)) => assert!(matches!(*error, AllocError::TooLarge { .. })),
            Err(error) => panic!("{error:?}"),
        }
        assert_eq!((rig.pool.live.len(), rig.pool.requests.len()), (0, refused + 1));
    }
}

#[test]
fn whichever_call_of_the_driver_fails_nothing_leaks() {
    let folder = Folder::new();
    let all = shards(&folder);
    let (mut n_failed, mut n_survived) = (0, 0);
    // A pool that cannot undo is poisoned, and its memory gone: what fails for good are copies.
    for fault in [Fault::nth, |nth| Fault::nth(nth).of(Target::Copies).from_then_on()] {
        for nth in 0.. {
            let mut rig = Rig::with(2, small().chunk_bytes(MIB).slot_bytes(MIB));
            rig.driver.plan(fault(nth));
            let outcome = rig.try_load(folder.0.path(), 2 * MIB);
            let n_faults = rig.driver.n_faults();
            rig.driver.clear_faults();
            match outcome {
                Ok(loaded) => {
                    n_survived += n_faults;
                    rig.check(&loaded, &all);
                    loaded.free(&mut rig.pool, STREAM).unwrap();
                }
                Err(_) => n_failed += 1,
            }
            assert_eq!(rig.pool.live, BTreeSet::new(), "fault {nth}");
            assert_eq!(rig.pool.stats().requested_bytes, 0, "fault {nth}");
            if n_faults == 0 {
                break;
            }
            let loaded = rig.load(folder.0.path(), 2 * MIB);
            rig.check(&loaded, &all);
        }
    }
    assert!(n_failed > 10 && n_survived > 10, "{n_failed}, {n_survived}");
}

#[test]
fn a_lost_device_is_an_error_and_nothing_hangs() {
    let folder = Folder::new();
    shards(&folder);
    for nth in [0, 10, 30] {
        let mut rig = Rig::new(1);
        rig.driver.plan(Fault::nth(nth).of(Target::Copies).lose(GPU));
        let error = rig.try_load(folder.0.path(), 1 << 30).unwrap_err();
        assert!(matches!(error, LoadError::Transfer { .. }), "{error:?}");
        assert_eq!(rig.pool.live, BTreeSet::new());
    }
}

#[test]
fn a_file_that_shrinks_after_it_was_opened_is_an_error() {
    let folder = Folder::new();
    shards(&folder);
    let checkpoint = Checkpoint::open(folder.0.path()).unwrap();
    let second = checkpoint.shards()[1].path();
    let file = fs::File::options().write(true).open(second).unwrap();
    file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    let mut rig = Rig::new(2);
    let Rig { engine, pool, .. } = &mut rig;
    let error = Loader::new(engine, GPU, STREAM).load(&checkpoint, pool).unwrap_err();
    let LoadError::Transfer { path, source } = error else { panic!("{error:?}") };
    assert_eq!(&*path, second);
    let TransferError::Source { source, .. } = *source else { panic!("{source:?}") };
    assert_eq!(source.kind(), std::io::ErrorKind::UnexpectedEof);
    assert_eq!(rig.pool.live, BTreeSet::new());
}

#[test]
fn loading_is_called_off_between_chunks_and_shards() {
    let folder = Folder::new();
    let all = shards(&folder);
    let checkpoint = Checkpoint::open(folder.0.path()).unwrap();
    for after_bytes in [0, MIB, 3 * MIB] {
        let mut rig = Rig::new(2);
        let cancel = Cancel::new();
        let tell = |progress: Progress| {
            if progress.done_bytes >= after_bytes {
                cancel.cancel();
            }
        };
        if after_bytes == 0 {
            cancel.cancel();
        }
        let Rig { engine, pool, .. } = &mut rig;
        let loader = Loader::new(engine, GPU, STREAM).cancel(&cancel).on_progress(&tell);
        let error = loader.load(&checkpoint, pool).unwrap_err();
        let LoadError::Transfer { path, source } = error else { panic!("{error:?}") };
        assert!(matches!(*source, TransferError::Cancelled { .. }), "{source:?}");
        let shard = usize::from(after_bytes > MIB);
        assert_eq!(&*path, checkpoint.shards()[shard].path());
        assert_eq!(rig.pool.live, BTreeSet::new());
        let loaded = rig.load(folder.0.path(), 1 << 30);
        rig.check(&loaded, &all);
    }
}

#[test]
fn a_panic_in_a_callback_leaks_nothing() {
    let folder = Folder::new();
    shards(&folder);
    let checkpoint = Checkpoint::open(folder.0.path()).unwrap();
    let mut rig = Rig::new(1);
    let tell = |_: Progress| panic!("planned");
    let Rig { engine, pool, .. } = &mut rig;
    let loader = Loader::new(engine, GPU, STREAM).on_progress(&tell);
    assert!(catch_unwind(AssertUnwindSafe(|| loader.load(&checkpoint, pool))).is_err());
    assert_eq!(rig.pool.live, BTreeSet::new());
}

#[test]
fn freeing_goes_on_behind_an_error() {
    let folder = Folder::new();
    shards(&folder);
    let mut rig = Rig::new(1);
    let loaded = rig.load(folder.0.path(), 2 * MIB);
    let taken = loaded.extents()[1];
    rig.pool.free(taken.ptr, STREAM).unwrap();
    let freed = loaded.free(&mut rig.pool, STREAM);
    assert_eq!(freed, Err(AllocError::NotAllocated(taken.ptr)));
    assert_eq!(rig.pool.live, BTreeSet::new());
}

#[test]
fn an_error_says_the_drivers_reason() {
    let folder = Folder::new();
    shards(&folder);
    let mut rig = Rig::new(1);
    rig.driver.plan(Fault::nth(3).of(Target::Copies).error(DriverError::OutOfMemory).from_then_on());
    let error = rig.try_load(folder.0.path(), 1 << 30).unwrap_err();
    let LoadError::Transfer { source, .. } = error else { panic!("{error:?}") };
    let TransferError::NoPath { source, .. } = *source else { panic!("{source:?}") };
    assert_eq!(*source, DriverError::OutOfMemory);
}
