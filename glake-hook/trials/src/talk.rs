//! What the hook says, and what it is told.

use std::ffi::{CString, c_char, c_void};
use std::fs;
use std::ptr;

use cudarc::driver::sys;
use glake_hook::{Config, Mode, OptionError};

use crate::driver::{FIRST, MIB, Program, address};

pub(crate) fn what_is_said_of_memory_fits_the_pool() {
    let program = Program::new(Config::new());
    let stream = program.context.new_stream().unwrap();
    let slack = 4 * MIB;
    let free = || program.context.mem_get_info().unwrap().0;
    drop(stream.alloc_zeros::<u8>(MIB).unwrap());
    let before = free();
    let large = stream.alloc_zeros::<u8>(100 * MIB).unwrap();
    assert!(free().abs_diff(before - 100 * MIB) < slack);
    let inside = address(&large).0 + 77 * MIB as u64;
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: an address and a size are written.
    unsafe { sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, inside) }.result().unwrap();
    assert_eq!((base, bytes), (address(&large).0, 100 * MIB));
    // SAFETY: either may be left out.
    unsafe { sys::cuMemGetAddressRange_v2(ptr::null_mut(), &raw mut bytes, base) }.result().unwrap();
    assert_eq!(program.glake.allocation_at(address(&large)).unwrap().bytes, 100 << 20);
    // SAFETY: zero is a value of it.
    let mut handle = unsafe { std::mem::zeroed::<sys::CUipcMemHandle>() };
    // SAFETY: a handle would be written.
    let refused = unsafe { sys::cuIpcGetMemHandle(&raw mut handle, base) };
    assert_eq!(refused, sys::CUresult::CUDA_ERROR_NOT_SUPPORTED);
    drop(large);
    // What the pool keeps counts as free.
    assert!(program.stats().reserved_bytes >= 100 << 20);
    assert!(free().abs_diff(before) < slack);
    // SAFETY: refused.
    let nothing = unsafe { sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, inside) };
    assert_eq!(nothing, sys::CUresult::CUDA_ERROR_INVALID_VALUE, "nothing is allocated there");
    stream.synchronize().unwrap();
    assert!(program.glake.fragmentation_ratio(FIRST) < 0.1);
    program.glake.defragment(FIRST).unwrap();
    assert!(program.glake.trim(FIRST, 0).unwrap() >= 100 << 20);
    assert_eq!(program.stats().reserved_bytes, 0);
    program.is_clean();
}

pub(crate) fn a_recording_can_be_replayed() {
    let program = Program::new(Config::new());
    let stream = program.context.new_stream().unwrap();
    let early = stream.alloc_zeros::<u8>(100).unwrap();
    let path = std::env::temp_dir().join(format!("glake-trial-{}.csv", std::process::id()));
    let recording = program.glake.record(FIRST, &path).unwrap();
    assert_eq!(program.glake.record(FIRST, &path).unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    let a = stream.alloc_zeros::<u8>(1000).unwrap();
    drop(early);
    let b = stream.alloc_zeros::<u8>(3 * MIB).unwrap();
    drop(a);
    recording.finish().unwrap();
    drop(b);
    let text = fs::read_to_string(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let lines: Vec<_> = text.lines().map(|line| line.rsplit_once(',').map_or(line, |line| line.0)).collect();
    assert_eq!(lines, ["# glake-trace v1", "a,0,1000,0", "a,1,3145728,0", "f,0,,"]);
    assert!(program.glake.record(FIRST, "/nowhere/at/all.csv").is_err());
    drop(program.glake.record(FIRST, &path).unwrap());
    fs::remove_file(&path).unwrap();
    stream.synchronize().unwrap();
    program.is_clean();
}

pub(crate) fn a_recording_ends_no_other() {
    let program = Program::new(Config::new());
    let stream = program.context.new_stream().unwrap();
    let paths =
        [1, 2].map(|n| std::env::temp_dir().join(format!("glake-trial-{}-{n}.csv", std::process::id())));
    let (first_path, second_path) = (&paths[0], &paths[1]);
    let glake = program.glake;
    std::thread::scope(|scope| {
        for _ in 0..200 {
            let first = glake.record(FIRST, first_path).unwrap();
            let other = scope.spawn(move || {
                loop {
                    if let Ok(recording) = glake.record(FIRST, second_path) {
                        return recording;
                    }
                }
            });
            first.finish().unwrap();
            let second = other.join().unwrap();
            drop(stream.alloc_zeros::<u8>(1000).unwrap());
            second.finish().unwrap();
            let text = fs::read_to_string(second_path).unwrap();
            assert_eq!(text.lines().count(), 3, "an allocation and a free:\n{text}");
        }
    });
    paths.iter().for_each(|path| fs::remove_file(path).unwrap());
    stream.synchronize().unwrap();
    program.is_clean();
}

pub(crate) fn tags_say_who_holds_memory() {
    let program = Program::new(Config::new());
    let stream = program.context.new_stream().unwrap();
    let untagged = stream.alloc_zeros::<u8>(100).unwrap();
    let (weights, cache);
    {
        let _tag = program.glake.tag("weights");
        weights = stream.alloc_zeros::<u8>(1000).unwrap();
        {
            let _tag = program.glake.tag("cache");
            cache = stream.alloc_zeros::<u8>(MIB).unwrap();
        }
        // Another thread has tags of its own.
        std::thread::scope(|scope| {
            scope.spawn(|| drop(stream.alloc_zeros::<u8>(MIB).unwrap()));
        });
    }
    let bytes: Vec<_> = program.glake.tagged_bytes().into_iter().collect();
    assert_eq!(bytes, [("cache".to_owned(), MIB as u64), ("weights".to_owned(), 1000)]);
    drop((untagged, weights, cache));
    assert!(program.glake.tagged_bytes().is_empty());
    stream.synchronize().unwrap();
    program.is_clean();
}

pub(crate) fn options_are_set_by_name() {
    let program = Program::new(Config::new().mode(Mode::Compact));
    let stream = program.context.new_stream().unwrap();
    program.glake.set_option("GLAKE_POOL_LIMIT", "16MiB").unwrap();
    assert!(stream.alloc_zeros::<u8>(17 * MIB).is_err());
    program.glake.set_option("GLAKE_POOL_LIMIT", "32 MiB").unwrap();
    drop(stream.alloc_zeros::<u8>(17 * MIB).unwrap());
    assert_eq!(program.glake.set_option("GLAKE_POOL", "1"), Err(OptionError::Unknown));
    let late = program.glake.set_option("GLAKE_POOL_MODE", "default").unwrap_err();
    assert_eq!(late, OptionError::TooLate("GLAKE_POOL_MODE"));
    assert!(matches!(program.glake.set_option("GLAKE_POOL_LIMIT", "x"), Err(OptionError::BadValue { .. })));
    stream.synchronize().unwrap();
    program.is_clean();
}

pub(crate) fn limits_can_change() {
    let program = Program::new(Config::new());
    let stream = program.context.new_stream().unwrap();
    drop(stream.alloc_zeros::<u8>(100 * MIB).unwrap());
    stream.synchronize().unwrap();
    assert!(program.glake.limit_bytes(FIRST, 32 << 20).unwrap() >= 60 << 20);
    assert!(program.stats().reserved_bytes <= 32 << 20);
    assert!(stream.alloc_zeros::<u8>(40 * MIB).is_err());
    assert_eq!(program.glake.limit_bytes(FIRST, u64::MAX).unwrap(), 0);
    drop(stream.alloc_zeros::<u8>(40 * MIB).unwrap());
    stream.synchronize().unwrap();
    program.is_clean();
}

pub(crate) fn functions_are_found_by_name() {
    let program = Program::new(Config::new());
    program.context.bind_to_thread().unwrap();
    let find = |name: &str, flags| {
        let name = CString::new(name).unwrap();
        let mut function: *mut c_void = ptr::null_mut();
        // SAFETY: a C string; a function is written.
        unsafe { sys::cuGetProcAddress_v2(name.as_ptr(), &raw mut function, 12_000, flags, ptr::null_mut()) }
            .result()
            .unwrap();
        function
    };
    type Allocate = unsafe extern "C" fn(*mut sys::CUdeviceptr, usize, sys::CUstream) -> sys::CUresult;
    let found = find("cuMemAllocAsync", 0);
    // SAFETY: the function of that name.
    let allocate = unsafe { std::mem::transmute::<*mut c_void, Allocate>(found) };
    let stream = program.context.new_stream().unwrap();
    let mut ptr = 0;
    // SAFETY: an address is written.
    unsafe { allocate(&raw mut ptr, 5000, stream.cu_stream()) }.result().unwrap();
    assert!(program.glake.owns(glake_hook::DevicePtr(ptr)));
    // SAFETY: given up.
    unsafe { sys::cuMemFreeAsync(ptr, stream.cu_stream()) }.result().unwrap();
    // From CUDA 12 on it takes one argument more.
    type Find = unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64, *mut u32) -> sys::CUresult;
    // SAFETY: the function of that name and version.
    let find_again = unsafe { std::mem::transmute::<*mut c_void, Find>(find("cuGetProcAddress", 0)) };
    let (mut again, mut status) = (ptr::null_mut(), u32::MAX);
    let name = c"cuMemAllocAsync".as_ptr();
    // SAFETY: a C string; a function and a status are written.
    unsafe { find_again(name, &raw mut again, 12_000, 0, &raw mut status) }.result().unwrap();
    assert_eq!((again, status), (found, 0));
    // With per-thread default streams there is another function.
    let per_thread = find("cuMemAllocAsync", 2);
    assert!(!per_thread.is_null() && per_thread != found);
    assert_ne!(find("cuMemcpyHtoD", 2), find("cuMemcpyHtoD", 0));
    assert!(!find("cuMemAlloc", 0).is_null() && !find("cuMemMap", 0).is_null());
    stream.synchronize().unwrap();
    program.is_clean();
}
