//! Copies between the host and the pool, over several links.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, sys};
use glake_hook::{Config, Copied, DevicePtr, Multipath};

use crate::driver::{MIB, Program, address, delay, delay_on, is_standin, n_calls};

pub(crate) mod left;

/// The least that is taken from the driver, where the trials say so.
const LEAST: usize = 4 * MIB;

fn small() -> Multipath {
    Multipath::new().chunk_bytes(1 << 20).from_bytes(LEAST as u64)
}

fn small_chunks() -> Config {
    Config::new().multipath(small())
}

pub(crate) fn noise(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|i| ((i ^ (i >> 8) ^ (i >> 16)).wrapping_mul(31).wrapping_add(seed) % 251) as u8).collect()
}

/// Which stream a program means by 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Default {
    Legacy,
    PerThread,
}

type OnStream = unsafe extern "C" fn(u64, u64, usize, sys::CUstream) -> sys::CUresult;
type Waiting = unsafe extern "C" fn(u64, u64, usize) -> sys::CUresult;

/// A function that copies so many bytes to the first address from the second.
#[derive(Clone, Copy)]
enum Call {
    OnStream(OnStream),
    Waiting(Waiting),
}

impl Call {
    /// The function of that name, as a program finds it.
    fn find(name: &str, default: Default) -> Self {
        let is_on_stream = name.ends_with("Async");
        let name = CString::new(name).unwrap();
        let mut found: *mut c_void = ptr::null_mut();
        let flags = if default == Default::Legacy { 0 } else { 2 };
        // SAFETY: a C string; a function is written.
        unsafe { sys::cuGetProcAddress_v2(name.as_ptr(), &raw mut found, 12_000, flags, ptr::null_mut()) }
            .result()
            .unwrap();
        if is_on_stream {
            // SAFETY: the function's type; addresses are words.
            Self::OnStream(unsafe { std::mem::transmute::<*mut c_void, OnStream>(found) })
        } else {
            // SAFETY: as above.
            Self::Waiting(unsafe { std::mem::transmute::<*mut c_void, Waiting>(found) })
        }
    }

    /// Copies, on the stream if it is of those that take one.
    ///
    /// # Safety
    /// As the driver's.
    unsafe fn copy(self, dst: u64, src: u64, bytes: usize, stream: sys::CUstream) -> sys::CUresult {
        match self {
            // SAFETY: the caller's arguments.
            Self::OnStream(call) => unsafe { call(dst, src, bytes, stream) },
            // SAFETY: as above.
            Self::Waiting(call) => unsafe { call(dst, src, bytes) },
        }
    }
}

/// A program's way to copy.
#[derive(Clone, Copy)]
struct Way {
    to_device: Call,
    to_host: Call,
}

impl Way {
    fn of(to_device: &str, to_host: &str, default: Default) -> Self {
        Self { to_device: Call::find(to_device, default), to_host: Call::find(to_host, default) }
    }

    fn all() -> Vec<Self> {
        let names = [
            ("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"),
            ("cuMemcpyHtoD", "cuMemcpyDtoH"),
            ("cuMemcpyAsync", "cuMemcpyAsync"),
            ("cuMemcpy", "cuMemcpy"),
        ];
        let of = |default| names.map(|(to_device, to_host)| Self::of(to_device, to_host, default));
        [of(Default::Legacy), of(Default::PerThread)].concat()
    }

    fn on_streams() -> Self {
        Self::of("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", Default::Legacy)
    }

    fn waiting() -> Self {
        Self::of("cuMemcpyHtoD", "cuMemcpyDtoH", Default::Legacy)
    }

    fn write(self, dst: DevicePtr, src: &[u8], stream: sys::CUstream) {
        // SAFETY: the source is there, and the place is the caller's.
        unsafe { self.to_device.copy(dst.0, host(src), src.len(), stream) }.result().unwrap();
    }

    fn read(self, src: DevicePtr, dst: &mut [u8], stream: sys::CUstream) {
        // SAFETY: as above.
        unsafe { self.to_host.copy(host(dst), src.0, dst.len(), stream) }.result().unwrap();
    }
}

fn host(bytes: &[u8]) -> u64 {
    bytes.as_ptr().expose_provenance() as u64
}

/// What is copied while `work` is done.
fn copied<T>(program: &Program, work: impl FnOnce() -> T) -> (Copied, T) {
    let before = program.glake.copied();
    let done = work();
    let mut after = program.glake.copied();
    after.n_copies -= before.n_copies;
    after.to_device_bytes -= before.to_device_bytes;
    after.to_host_bytes -= before.to_host_bytes;
    after.relayed_bytes -= before.relayed_bytes;
    (after, done)
}

fn is_none(copied: Copied) -> bool {
    copied.n_copies == 0 && copied.to_device_bytes == 0 && copied.to_host_bytes == 0
}

/// A blocking stream of the current context.
fn blocking_stream() -> sys::CUstream {
    let mut stream = ptr::null_mut();
    // SAFETY: a stream is written.
    unsafe { sys::cuStreamCreate(&raw mut stream, 0) }.result().unwrap();
    stream
}

/// Fills `slice` on `stream`, late.
fn fill(slice: &CudaSlice<u8>, value: u8, stream: sys::CUstream) {
    // SAFETY: the slice's own bytes; the caller orders their use.
    unsafe { sys::cuMemsetD8Async(address(slice).0, value, slice.len(), stream) }.result().unwrap();
}

fn memory(program: &Program, bytes: usize) -> (Arc<CudaStream>, CudaSlice<u8>) {
    let stream = program.context.new_stream().unwrap();
    let slice = stream.alloc_zeros::<u8>(bytes).unwrap();
    stream.synchronize().unwrap();
    (stream, slice)
}

pub(crate) fn large_copies_are_the_engines() {
    let program = Program::new(small_chunks());
    let (stream, slice) = memory(&program, 12 * MIB);
    let start = address(&slice);
    let blocking = blocking_stream();
    let default = [0, 1, 2].map(ptr::without_provenance_mut);
    let streams = [default.as_slice(), &[stream.cu_stream(), blocking]].concat();
    let mut seed = 0;
    for (nth, way) in Way::all().into_iter().enumerate() {
        for (bytes, offset) in [(LEAST - 1, 0), (LEAST, 0), (LEAST + 1, 1), (9 * MIB + 13, 4099)] {
            seed += 1;
            let on = streams[(nth + seed) % streams.len()];
            let source = noise(bytes + 3, seed);
            let mut found = vec![0xee; bytes + 10];
            let (copied, ()) = copied(&program, || {
                way.write(start + offset as u64, &source[3..], on);
                way.read(start + offset as u64, &mut found[5..5 + bytes], on);
            });
            assert!(found[5..5 + bytes] == source[3..], "way {nth}, {bytes} bytes at {offset}");
            assert!([&found[..5], &found[5 + bytes..]].concat().iter().all(|byte| *byte == 0xee));
            let expected = if bytes < LEAST { 0 } else { bytes as u64 };
            assert_eq!((copied.to_device_bytes, copied.to_host_bytes), (expected, expected), "way {nth}");
        }
    }
    // SAFETY: made above, done.
    unsafe { sys::cuStreamDestroy_v2(blocking) }.result().unwrap();
    // cudarc's own.
    let source = noise(5 * MIB, 1);
    let (copied, back) = copied(&program, || {
        let slice = stream.clone_htod(&source).unwrap();
        stream.clone_dtoh(&slice).unwrap()
    });
    assert!(back == source);
    assert_eq!((copied.n_copies, copied.to_device_bytes, copied.to_host_bytes), (2, 5 << 20, 5 << 20));
    drop(slice);
    stream.synchronize().unwrap();
    // What the engine holds is not the program's.
    program.is_clean();
}

pub(crate) fn copies_are_the_drivers_until_switched_on() {
    let program = Program::new(Config::new());
    let (stream, mut slice) = memory(&program, 16 * MIB);
    let mut round_trip = |seed| {
        let source = noise(16 * MIB, seed);
        let (copied, found) = copied(&program, || {
            stream.memcpy_htod(&source, &mut slice).unwrap();
            stream.clone_dtoh(&slice).unwrap()
        });
        assert!(found == source);
        copied
    };
    assert!(is_none(round_trip(1)));
    assert_eq!((n_calls("cuPointerGetAttribute"), n_calls("cuMemHostAlloc")), (0, 0));
    program.glake.set_option("GLAKE_MULTIPATH", "on").unwrap();
    assert_eq!(round_trip(2).n_copies, 2);
    program.glake.set_option("GLAKE_MULTIPATH", "off").unwrap();
    assert!(is_none(round_trip(3)));
    drop(slice);
    stream.synchronize().unwrap();
    program.is_clean();
}

pub(crate) fn the_engines_own_calls_are_the_drivers() {
    // Each chunk is as large as copies that are taken.
    let multipath = Multipath::new().chunk_bytes(1 << 20).from_bytes(1 << 20);
    let program = Program::new(Config::new().multipath(multipath));
    let (stream, slice) = memory(&program, 32 * MIB);
    let (asked, source) = (n_calls("cuPointerGetAttribute"), noise(32 * MIB, 1));
    let (copied, ()) =
        copied(&program, || Way::on_streams().write(address(&slice), &source, stream.cu_stream()));
    assert_eq!(copied.to_device_bytes, 32 << 20);
    if is_standin() {
        // For both ends of the source, by the hook and by the engine; not for any of the 32 chunks.
        assert!((2..=6).contains(&(n_calls("cuPointerGetAttribute") - asked)));
    }
    drop(slice);
    stream.synchronize().unwrap();
    program.is_clean();
}

pub(crate) fn copies_are_in_the_order_of_their_stream() {
    let program = Program::new(small_chunks());
    let (stream, slice) = memory(&program, 6 * MIB);
    let other = stream.alloc_zeros::<u8>(6 * MIB).unwrap();
    let per_thread = Way::of("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", Default::PerThread);
    let null = ptr::null_mut();
    for (nth, (way, on)) in
        [(Way::on_streams(), stream.cu_stream()), (Way::on_streams(), null), (per_thread, null)]
            .into_iter()
            .cycle()
            .take(6)
            .enumerate()
    {
        let value = nth as u8 + 1;
        // The handle of the same stream to those for whom 0 is the legacy one.
        let same: sys::CUstream = if nth % 3 == 2 { ptr::without_provenance_mut(2) } else { on };
        if on == stream.cu_stream() {
            delay(&stream);
        }
        fill(&slice, value, same);
        let mut found = vec![0; 6 * MIB];
        way.read(address(&slice), &mut found, on);
        assert!(found.iter().all(|byte| *byte == value), "{nth}: what was enqueued before is seen");
        fill(&slice, value, same);
        let mut source = vec![100 + value; 6 * MIB];
        let (copied, ()) = copied(&program, || way.write(address(&slice), &source, on));
        assert_eq!(copied.n_copies, 1);
        source.fill(0);
        drop(source);
        // SAFETY: both are as long.
        unsafe { sys::cuMemcpyDtoDAsync_v2(address(&other).0, address(&slice).0, 6 * MIB, same) }
            .result()
            .unwrap();
        fill(&slice, 0, same);
        way.read(address(&other), &mut found, on);
        assert!(found.iter().all(|byte| *byte == 100 + value), "{nth}: what comes after sees the copy");
    }
    drop((slice, other));
    stream.synchronize().unwrap();
    program.is_clean();
}

pub(crate) fn waiting_copies_are_behind_blocking_streams() {
    unsafe extern "C" fn write(source: *mut c_void) {
        // SAFETY: the program's source, which nobody uses meanwhile.
        unsafe { source.cast::<u8>().write_bytes(9, 5 * MIB) };
    }
    let program = Program::new(small_chunks());
    let (stream, slice) = memory(&program, 5 * MIB);
    let blocking = blocking_stream();
    let mut found = vec![0; 5 * MIB];
    delay_on(&program.context, blocking);
    fill(&slice, 7, blocking);
    Way::waiting().read(address(&slice), &mut found, ptr::null_mut());
    assert!(found.iter().all(|byte| *byte == 7));
    // The source, too, may be written by what comes before.
    let mut source = vec![1u8; 5 * MIB];
    delay_on(&program.context, blocking);
    // SAFETY: the source stays until the copy behind is done.
    unsafe { sys::cuLaunchHostFunc(blocking, Some(write), source.as_mut_ptr().cast()) }.result().unwrap();
    let (copied, ()) = copied(&program, || Way::waiting().write(address(&slice), &source, ptr::null_mut()));
    assert_eq!(copied.n_copies, 1);
    Way::waiting().read(address(&slice), &mut found, ptr::null_mut());
    assert!(found.iter().all(|byte| *byte == 9));
    // SAFETY: made above, done.
    unsafe { sys::cuStreamDestroy_v2(blocking) }.result().unwrap();
    drop(slice);
    stream.synchronize().unwrap();
    program.is_clean();
}
