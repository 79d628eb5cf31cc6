//! Bytes arrive, at the right places.

use std::sync::Mutex;

use glake_core::driver::{Copies, DeviceOps, StreamOrder};
use glake_core::units::AddressRange;

use super::super::Tensor;
use super::*;
use crate::{Priority, Progress, TransferError};

const DTYPES: [Dtype; 22] = [
    Dtype::BOOL,
    Dtype::F4,
    Dtype::F6_E2M3,
    Dtype::F6_E3M2,
    Dtype::U8,
    Dtype::I8,
    Dtype::F8_E5M2,
    Dtype::F8_E4M3,
    Dtype::F8_E8M0,
    Dtype::F8_E4M3FNUZ,
    Dtype::F8_E5M2FNUZ,
    Dtype::I16,
    Dtype::U16,
    Dtype::F16,
    Dtype::BF16,
    Dtype::I32,
    Dtype::U32,
    Dtype::F32,
    Dtype::C64,
    Dtype::F64,
    Dtype::I64,
    Dtype::U64,
];

/// Every type, no dimension, no bytes, odd names, a large one between small ones.
fn zoo() -> Vec<Made> {
    let mut all: Vec<_> = DTYPES.iter().map(|dtype| made(&format!("of.{dtype}"), *dtype, &[3, 8])).collect();
    all.push(made("scalar", Dtype::F32, &[]));
    all.push(made("nothing", Dtype::F32, &[4, 0, 2]));
    all.push(made("large", Dtype::F16, &[3, 512, 1024]));
    all.push(made("page", Dtype::U8, &[2 << 20]));
    all.push(made("one less", Dtype::U8, &[(2 << 20) - 1]));
    let odd = ["", " ", "a\"b\\c", "a/../b", "\u{1f9ca} é\n", "model.layers.0.weight\0", "__metadata"];
    all.extend(odd.iter().enumerate().map(|(n, name)| bytes(name, n as u64 * 7 + 1)));
    all
}

#[test]
fn a_single_file_arrives() {
    let folder = Folder::new();
    let path = folder.write("model.safetensors", file_of(&zoo()));
    for extent_bytes in [0, 3 * MIB, 1 << 30] {
        let mut rig = Rig::new(2);
        let loaded = rig.load(&path, extent_bytes);
        rig.check(&loaded, &zoo());
        let used: usize = zoo().iter().map(|made| made.data.len()).sum();
        assert_eq!(loaded.bytes(), used as u64);
        let extents: BTreeSet<_> = loaded.extents().iter().map(|extent| extent.ptr).collect();
        assert_eq!(extents, rig.pool.live);
        if extent_bytes == 1 << 30 {
            assert_eq!((loaded.extents().len(), loaded.reports().len()), (1, 1));
        }
        if extent_bytes == 0 {
            let with_bytes = loaded.tensors().filter(|(_, tensor)| tensor.bytes > 0);
            let starts: BTreeSet<_> = with_bytes.map(|(_, tensor)| tensor.ptr).collect();
            assert_eq!(extents, starts, "each tensor is an allocation");
        }
        loaded.free(&mut rig.pool, STREAM).unwrap();
        assert_eq!(rig.pool.live, BTreeSet::new());
    }
}

#[test]
fn shards_arrive_and_a_rank_loads_its_part() {
    let folder = Folder::new();
    let all = zoo();
    let shards: Vec<Vec<Made>> = all.chunks(7).map(<[Made]>::to_vec).collect();
    folder.write_shards(&shards);
    let mut rig = Rig::new(3);
    let loaded = rig.load(folder.0.path(), 1 << 30);
    rig.check(&loaded, &all);
    assert_eq!((loaded.extents().len(), loaded.reports().len()), (shards.len(), shards.len()));
    let checkpoint = Checkpoint::open(folder.0.path()).unwrap();
    let mine: Vec<Made> = all.into_iter().filter(|made| made.name.len() % 2 == 0).collect();
    let part = checkpoint.only(|tensor| tensor.name.len().is_multiple_of(2));
    let Rig { engine, pool, .. } = &mut rig;
    let of_rank = Loader::new(engine, GPU, STREAM).load(&part, pool).unwrap();
    rig.check(&of_rank, &mine);
    assert_eq!(of_rank.bytes(), part.bytes());
}

/// Memory that is never there.
#[derive(Debug)]
struct Vacant;

impl Allocator for Vacant {
    fn allocate(&mut self, _: Request) -> Result<Allocation, AllocError> {
        Err(AllocError::OutOfMemory(Box::default()))
    }

    fn free(&mut self, ptr: DevicePtr, _: StreamId) -> Result<(), AllocError> {
        Err(AllocError::NotAllocated(ptr))
    }

    fn record_use(&mut self, ptr: DevicePtr, _: StreamId) -> Result<(), AllocError> {
        Err(AllocError::NotAllocated(ptr))
    }

    fn trim(&mut self, _: u64) -> Result<u64, AllocError> {
        Ok(0)
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }
}

#[test]
fn no_tensors_need_no_memory() {
    let folder = Folder::new();
    let path = folder.write("x.safetensors", file_of(&[made("nothing", Dtype::U8, &[0])]));
    let rig = Rig::new(1);
    let checkpoint = Checkpoint::open(path).unwrap();
    let loader = Loader::new(&rig.engine, GPU, STREAM);
    for checkpoint in [checkpoint.only(|_| false), checkpoint] {
        let loaded = loader.clone().load(&checkpoint, &mut Vacant).unwrap();
        assert_eq!(loaded.tensors().len(), checkpoint.tensors().len());
        assert_eq!((loaded.bytes(), loaded.ns(), loaded.extents()), (0, 0, &[][..]));
    }
}

#[test]
fn neighbours_without_a_gap_are_one_segment() {
    let folder = Folder::new();
    let of = [
        bytes("a", 2 << 20),
        bytes("b", 4 << 20),
        bytes("c", 256),
        bytes("d", 512),
        bytes("e", 5),
        bytes("f", 5),
    ];
    let path = folder.write("x.safetensors", file_of(&of));
    let checkpoint = Checkpoint::open(path).unwrap();
    let places = [0, 2 << 20, 6 << 20, (6 << 20) + 256, (6 << 20) + 768, (6 << 20) + 1024];
    let at = checkpoint.tensors().iter().zip(places.map(|at| DevicePtr(1 << 30) + at));
    let segments = super::super::segments::segments(at);
    let start = checkpoint.tensors()[0].offset_bytes;
    let found: Vec<_> =
        segments.iter().map(|s| (s.host_offset - start, s.device.0 - (1 << 30), s.bytes)).collect();
    let all = (6 << 20) + 773;
    assert_eq!(found, [(0, 0, all), (all, (6 << 20) + 1024, 5)]);
}

/// A tensor that is left out leaves a gap in the file, and none on the device.
#[test]
fn neighbours_on_the_device_alone_are_two_segments() {
    let folder = Folder::new();
    let of = [bytes("a", 256), bytes("b", 256), bytes("c", 256)];
    let path = folder.write("x.safetensors", file_of(&of));
    let mut rig = Rig::new(1);
    let part = Checkpoint::open(path).unwrap().only(|tensor| &*tensor.name != "b");
    let Rig { engine, pool, .. } = &mut rig;
    let loaded = Loader::new(engine, GPU, STREAM).load(&part, pool).unwrap();
    assert_eq!(loaded.get("c").unwrap().ptr, loaded.get("a").unwrap().ptr + 256);
    rig.check(&loaded, &[of[0].clone(), of[2].clone()]);
}

#[test]
fn progress_is_of_all_shards() {
    let folder = Folder::new();
    folder.write_shards(&[
        vec![bytes("a", MIB)],
        vec![bytes("none", 0)],
        vec![bytes("b", 2 * MIB), bytes("c", 9)],
    ]);
    let checkpoint = Checkpoint::open(folder.0.path()).unwrap();
    let mut rig = Rig::new(1);
    let told = Mutex::new(Vec::new());
    let tell = |progress: Progress| told.lock().unwrap().push(progress);
    let Rig { engine, pool, .. } = &mut rig;
    let loader = Loader::new(engine, GPU, STREAM).priority(Priority::High).on_progress(&tell);
    loader.load(&checkpoint, pool).unwrap().free(pool, STREAM).unwrap();
    let mut told: Vec<_> = told.into_inner().unwrap().iter().map(|p| (p.done_bytes, p.total_bytes)).collect();
    told.sort_unstable();
    told.dedup();
    let total = 3 * MIB + 9;
    assert!(told.iter().all(|(_, of)| *of == total), "{told:?}");
    assert!(told.len() > 8 && told.contains(&(MIB, total)), "{told:?}");
    assert_eq!(told.last(), Some(&(total, total)));
}

/// Memory from a pool is valid behind the work of its stream only.
#[test]
fn bytes_arrive_behind_what_the_memory_was_used_for() {
    let folder = Folder::new();
    let path = folder.write("x.safetensors", file_of(&[bytes("a", 3 * MIB)]));
    let mut rig = Rig::new(1);
    let stream = rig.driver.create_stream(GPU).unwrap();
    let before = rig.pool.allocate(Request::new(4 * MIB, stream)).unwrap();
    rig.driver.delay(stream, 1_000_000_000).unwrap();
    rig.driver.fill(AddressRange::new(before.ptr, 4 * MIB), 0xee, stream).unwrap();
    rig.pool.free(before.ptr, stream).unwrap();
    let checkpoint = Checkpoint::open(path).unwrap();
    let Rig { engine, pool, .. } = &mut rig;
    let loaded = Loader::new(engine, GPU, stream).load(&checkpoint, pool).unwrap();
    let at = loaded.get("a").unwrap().ptr;
    assert_eq!(at, before.ptr, "the test needs the same memory");
    rig.driver.complete_all();
    rig.check(&loaded, &[bytes("a", 3 * MIB)]);
}

#[test]
fn memory_that_is_there_is_filled() {
    let folder = Folder::new();
    let of = [bytes("a", 3 * MIB + 1), bytes("none", 0), bytes("b", 700), bytes("c", 2 * MIB)];
    folder.write_shards(&[of[..2].to_vec(), of[2..].to_vec()]);
    let checkpoint = Checkpoint::open(folder.0.path()).unwrap();
    let mut rig = Rig::new(2);
    let stream = rig.driver.create_stream(GPU).unwrap();
    let memory = rig.pool.allocate(Request::new(8 * MIB, stream)).unwrap();
    rig.driver.delay(stream, 1_000_000_000).unwrap();
    rig.driver.fill(AddressRange::new(memory.ptr, 8 * MIB), 0xee, stream).unwrap();
    // Not aligned to anything, and in another order.
    let at = BTreeMap::from([("a", 2 * MIB + 705), ("none", 8 * MIB), ("b", 3), ("c", 704)]);
    let loader = Loader::new(&rig.engine, GPU, stream);
    let mut asked = Vec::new();
    let place = |tensor: &Tensor| {
        asked.push(tensor.name.clone());
        memory.ptr + at[&*tensor.name]
    };
    let reports = loader.clone().fill(&checkpoint, place).unwrap();
    assert_eq!(asked, checkpoint.tensors().iter().map(|tensor| tensor.name.clone()).collect::<Vec<_>>());
    assert_eq!(reports.iter().map(|report| report.bytes).collect::<Vec<_>>(), [3 * MIB + 1, 2 * MIB + 700]);
    rig.driver.complete_all();
    let mut expected = vec![0xee; 8 << 20];
    for made in &of {
        let start = usize::try_from(at[&*made.name]).unwrap();
        expected[start..start + made.data.len()].copy_from_slice(&made.data);
    }
    assert!(rig.read(memory.ptr, expected.len()) == expected);
    let overlapping = loader.fill(&checkpoint, |_| memory.ptr).unwrap_err();
    let LoadError::Transfer { path, source } = overlapping else { panic!("{overlapping:?}") };
    assert_eq!(&*path, checkpoint.shards()[1].path());
    assert!(matches!(*source, TransferError::Segments(_)), "{source:?}");
    rig.pool.free(memory.ptr, stream).unwrap();
}
