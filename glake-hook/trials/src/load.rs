//! Checkpoints, loaded to the pool.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, sys};
use glake_hook::checkpoint::{Checkpoint, Loaded};
use glake_hook::{AddressRange, Config, DeviceId, DevicePtr, DriverError, LoadError, StreamId};

use crate::copies::noise;
use crate::driver::{DELAY_NS, FIRST, Kernel, MIB, Program, address, n_calls};

/// A page of the device.
const PAGE: usize = 2 * MIB;

/// A folder with a sharded checkpoint, which goes when it is dropped.
struct Files {
    folder: PathBuf,
    tensors: Vec<(String, Vec<u8>)>,
}

impl Files {
    /// Shards with tensors of so many bytes.
    fn new(shards: &[&[usize]]) -> Self {
        let folder = std::env::temp_dir().join(format!("glake-trial-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (mut tensors, mut index) = (Vec::new(), String::new());
        for (shard, sizes) in shards.iter().enumerate() {
            let file = format!("{shard}.safetensors");
            let (mut header, mut data) = (String::new(), Vec::new());
            for bytes in *sizes {
                let (name, start) = (format!("t{}", tensors.len()), data.len());
                data.extend(noise(*bytes, tensors.len()));
                let entry = format!(
                    r#""{name}":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[{start},{}]}},"#,
                    data.len()
                );
                header += &entry;
                index += &format!(r#""{name}":"{file}","#);
                tensors.push((name, data[start..].to_vec()));
            }
            let header = format!("{{{}}}", header.trim_end_matches(','));
            let length = (header.len() as u64).to_le_bytes();
            fs::write(folder.join(file), [&length, header.as_bytes(), &data].concat()).unwrap();
        }
        let index = format!(r#"{{"weight_map":{{{}}}}}"#, index.trim_end_matches(','));
        fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
        Self { folder, tensors }
    }

    fn open(&self) -> Checkpoint {
        Checkpoint::open(&self.folder).unwrap()
    }

    fn shard(&self, n: usize) -> PathBuf {
        self.folder.join(format!("{n}.safetensors"))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn id(stream: &CudaStream) -> StreamId {
    StreamId(stream.cu_stream().expose_provenance() as u64)
}

/// What lies at an address, as a program reads it.
fn read(stream: &Arc<CudaStream>, ptr: DevicePtr, bytes: usize) -> Vec<u8> {
    let mut found = vec![0xee; bytes];
    // SAFETY: the buffer is as long, and read behind the synchronisation.
    unsafe { sys::cuMemcpyDtoHAsync_v2(found.as_mut_ptr().cast(), ptr.0, bytes, stream.cu_stream()) }
        .result()
        .unwrap();
    stream.synchronize().unwrap();
    found
}

/// A tensor as a slice of the program's, which frees it.
fn slice(stream: &Arc<CudaStream>, loaded: &Loaded, name: &str) -> CudaSlice<u8> {
    let tensor = loaded.get(name).unwrap();
    // SAFETY: the tensor's allocation, which nobody else frees.
    unsafe { stream.upgrade_device_ptr(tensor.ptr.0, usize::try_from(tensor.bytes).unwrap()) }
}

pub(crate) fn a_checkpoint_is_loaded_to_the_pool() {
    let program = Program::new(Config::new());
    let files = Files::new(&[&[5 * MIB + 3, 0, 700], &[PAGE, 12 * MIB, 1, PAGE - 1]]);
    for stream in [program.context.new_stream().unwrap(), program.context.per_thread_stream()] {
        let (pinned, before) = (n_calls("cuMemHostAlloc"), program.glake.copied());
        let loaded = program.glake.load(FIRST, id(&stream), &files.open()).unwrap();
        assert_eq!(loaded.tensors().len(), files.tensors.len());
        let after = program.glake.copied();
        assert_eq!(after.n_copies - before.n_copies, 2, "one for each shard");
        assert_eq!(after.to_device_bytes - before.to_device_bytes, loaded.bytes());
        if before.n_copies > 0 {
            assert_eq!(n_calls("cuMemHostAlloc"), pinned, "the engine and its slots are kept");
        }
        for (name, data) in files.tensors.iter().filter(|(_, data)| !data.is_empty()) {
            let ptr = loaded.get(name).unwrap().ptr;
            let allocation = program.glake.allocation_at(ptr).unwrap();
            assert_eq!(allocation.start, ptr, "{name} is an allocation of its own");
            if data.len() >= PAGE {
                assert!(ptr.is_aligned(PAGE as u64), "{name} at {ptr}");
                assert_eq!(allocation.bytes % PAGE as u64, 0, "{name} has pages of its own");
            }
            assert!(read(&stream, ptr, data.len()) == *data, "{name}");
        }
        // The program's own copies stay the driver's.
        assert_eq!(program.glake.copied(), after);
        // Each is freed by itself, and its memory serves the next.
        let (large, page) = (slice(&stream, &loaded, "t4"), slice(&stream, &loaded, "t3"));
        let at = address(&large);
        drop(large);
        let next = stream.alloc_zeros::<u8>(12 * MIB).unwrap();
        assert_eq!(address(&next), at);
        assert!(stream.clone_dtoh(&page).unwrap() == files.tensors[3].1);
        drop((next, page, ["t0", "t2", "t5", "t6"].map(|name| slice(&stream, &loaded, name))));
        stream.synchronize().unwrap();
        program.is_clean();
        let again = program.glake.load(FIRST, id(&stream), &files.open()).unwrap();
        program.glake.unload(&again, id(&stream)).unwrap();
        program.is_clean();
        assert!(program.glake.unload(&again, id(&stream)).is_err());
    }
}

pub(crate) fn weights_fill_memory_that_is_there() {
    let program = Program::new(Config::new());
    let files = Files::new(&[&[5 * MIB + 3, 0, 700], &[PAGE]]);
    let stream = program.context.new_stream().unwrap();
    let memory = stream.alloc_zeros::<u8>(9 * MIB).unwrap();
    let kernel = Kernel::load(&program.context, "glake_delay");
    // SAFETY: the kernel takes one number, and touches no memory.
    unsafe { kernel.launch(&stream, 1, &mut [DELAY_NS]) };
    // SAFETY: the slice's own bytes.
    unsafe { sys::cuMemsetD8Async(address(&memory).0, 0xaa, 9 * MIB, stream.cu_stream()) }.result().unwrap();
    let start = |name: &str| match name {
        "t0" => 3 * MIB + 1,
        "t2" => 5,
        _ => MIB - 1,
    };
    let place = |name: &str| address(&memory) + start(name) as u64;
    let reports = program.glake.fill(FIRST, id(&stream), &files.open(), |t| place(&t.name)).unwrap();
    assert_eq!(reports.iter().map(|report| report.bytes).sum::<u64>(), (7 * MIB + 703) as u64);
    let mut expected = vec![0xaa; 9 * MIB];
    for (name, data) in &files.tensors {
        expected[start(name)..start(name) + data.len()].copy_from_slice(data);
    }
    assert!(stream.clone_dtoh(&memory).unwrap() == expected, "behind what the stream had");
    // One byte too far: nothing is copied.
    let end = address(&memory) + (9 * MIB) as u64;
    let end = program.glake.allocation_at(address(&memory)).map_or(end, AddressRange::end);
    let beyond =
        |name: &str, bytes: u64| if name == "t3" { DevicePtr(end.0 + 1 - bytes) } else { place(name) };
    let error = program.glake.fill(FIRST, id(&stream), &files.open(), |t| beyond(&t.name, t.bytes));
    assert!(matches!(error, Err(LoadError::Place { bytes, .. }) if bytes == PAGE as u64), "{error:?}");
    assert!(stream.clone_dtoh(&memory).unwrap() == expected);
    drop(memory);
    stream.synchronize().unwrap();
    program.is_clean();
}

pub(crate) fn what_cannot_be_loaded_leaves_nothing() {
    let program = Program::new(Config::new().limit_bytes(64 << 20));
    let files = Files::new(&[&[3 * MIB], &[9 * MIB, 700]]);
    let stream = program.context.new_stream().unwrap();
    let load =
        |checkpoint: &Checkpoint, stream: &CudaStream| program.glake.load(FIRST, id(stream), checkpoint);
    let is_empty = || assert_eq!((program.stats().n_live, program.stats().requested_bytes), (0, 0));
    // No such device, no such stream.
    let error = program.glake.load(DeviceId(77), id(&stream), &files.open()).unwrap_err();
    assert!(matches!(error, LoadError::Device(DriverError::InvalidDevice(_))), "{error:?}");
    // A stream that is captured; the capture goes on.
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    let error = load(&files.open(), &stream).unwrap_err();
    assert!(matches!(error, LoadError::Device(DriverError::Capturing(_))), "{error:?}");
    stream
        .end_capture(sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
        .unwrap();
    is_empty();
    // More than the limit.
    let large = Files { folder: files.folder.join("large"), tensors: Vec::new() };
    sparse(&large.folder, 80 * MIB);
    let error = load(&large.open(), &stream).unwrap_err();
    assert!(error.to_string().contains("no memory"), "{error}");
    is_empty();
    // A file that is cut short after it was opened.
    let checkpoint = files.open();
    let whole = fs::read(files.shard(1)).unwrap();
    fs::write(files.shard(1), &whole[..whole.len() - MIB]).unwrap();
    let error = load(&checkpoint, &stream).unwrap_err();
    assert!(error.to_string().contains("1.safetensors"), "{error}");
    is_empty();
    // Nothing of that stays.
    fs::write(files.shard(1), whole).unwrap();
    let loaded = load(&files.open(), &stream).unwrap();
    for (name, data) in &files.tensors {
        assert!(read(&stream, loaded.get(name).unwrap().ptr, data.len()) == *data, "{name}");
    }
    program.glake.unload(&loaded, id(&stream)).unwrap();
    stream.synchronize().unwrap();
    program.is_clean();
}

/// A checkpoint of one tensor of zeros, which takes no room.
fn sparse(folder: &Path, bytes: usize) {
    fs::create_dir_all(folder).unwrap();
    let header = format!(r#"{{"t":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[0,{bytes}]}}}}"#);
    let path = folder.join("model.safetensors");
    fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()).unwrap();
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_len((8 + header.len() + bytes) as u64).unwrap();
}
