//! The hook put in place, too late, twice, or not at all.

use cudarc::driver::{CudaContext, sys};
use glake_hook::{Config, Glake, InstallError};

use crate::driver::{FIRST, Program, at, is_standin, n_calls};

/// Whether the program links to the driver.
fn is_linked() -> bool {
    cfg!(feature = "linked")
}

pub(crate) fn installing_twice_is_refused() {
    assert!(Glake::installed().is_none());
    let program = Program::new(Config::new());
    assert_eq!(glake_hook::install(Config::new()).unwrap_err(), InstallError::AlreadyInstalled);
    let stream = program.context.new_stream().unwrap();
    drop(stream.alloc_zeros::<u8>(100).unwrap());
    assert_eq!(Glake::installed().unwrap().memory_stats(FIRST).n_allocations, 1);
    stream.synchronize().unwrap();
    program.is_clean();
}

pub(crate) fn installing_too_late_is_refused_or_works() {
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let early = stream.clone_htod(&[1u8, 2, 3]).unwrap();
    match glake_hook::install(Config::new()) {
        // A program that links to the driver cannot be late.
        Ok(glake) => {
            assert!(is_linked());
            let late = stream.clone_htod(&[4u8; 100]).unwrap();
            assert_eq!(glake.memory_stats(FIRST).n_live, 1);
            drop(late);
        }
        Err(error) => {
            assert!(!is_linked());
            assert_eq!(error, InstallError::TooLate);
            assert!(error.to_string().contains("first thing in `main`"));
            assert!(Glake::installed().is_none());
            drop(stream.clone_htod(&[4u8; 100]).unwrap());
        }
    }
    assert_eq!(stream.clone_dtoh(&early).unwrap(), [1, 2, 3], "the driver's own memory is as before");
    drop(early);
    stream.synchronize().unwrap();
}

pub(crate) fn a_name_that_is_taken_is_noticed() {
    // Somebody asked whether there is a driver.
    // SAFETY: loads the driver.
    let taken = unsafe { libloading::Library::new("libcuda.so") }.unwrap();
    match glake_hook::install(Config::new()) {
        Ok(_) => assert!(is_linked()),
        Err(error) => assert_eq!((error, is_linked()), (InstallError::TooLate, false)),
    }
    drop(taken);
}

pub(crate) fn without_a_hook_the_driver_serves() {
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let there = stream.clone_htod(&vec![5u8; 1000]).unwrap();
    assert_eq!(stream.clone_dtoh(&there).unwrap(), vec![5u8; 1000]);
    drop(there);
    stream.synchronize().unwrap();
    context.synchronize().unwrap();
    assert!(context.mem_get_info().unwrap().0 > 0);
    if is_standin() {
        assert_eq!((n_calls("cuMemAllocAsync"), n_calls("cuMemFreeAsync")), (1, 1));
    }
}

pub(crate) fn another_hook_is_noticed() {
    let Some(path) = std::env::var_os("GLAKE_TRIAL_LIBRARY") else {
        println!("no libglake.so: nothing to try");
        return;
    };
    // SAFETY: glake's own library.
    let other = unsafe { libloading::Library::new(path) }.unwrap();
    // SAFETY: the function's type.
    let install = unsafe { other.get::<extern "C" fn() -> i32>(b"glake_install") }.unwrap();
    assert_eq!(install(), 0);
    match glake_hook::install(Config::new()) {
        // The program's calls are linked to its own hook.
        Ok(_) => assert!(is_linked()),
        Err(error) => assert_eq!((error, is_linked()), (InstallError::OtherHook, false)),
    }
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    assert_eq!(stream.clone_dtoh(&stream.clone_htod(&[7u8; 100]).unwrap()).unwrap(), [7; 100]);
}

pub(crate) fn a_hook_in_a_library_stays() {
    let Some(path) = std::env::var_os("GLAKE_TRIAL_LIBRARY") else {
        println!("no libglake.so: nothing to try");
        return;
    };
    // SAFETY: glake's own library.
    let library = unsafe { libloading::Library::new(path) }.unwrap();
    // SAFETY: the function's type.
    let install = unsafe { library.get::<extern "C" fn() -> i32>(b"glake_install") }.unwrap();
    assert_eq!(install(), 0);
    // Its functions are called all the same.
    library.close().unwrap();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    assert_eq!(stream.clone_dtoh(&stream.clone_htod(&[7u8; 100]).unwrap()).unwrap(), [7; 100]);
}

pub(crate) fn a_fork_has_no_hook() {
    unsafe extern "C" {
        fn fork() -> i32;
        fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
        fn _exit(status: i32) -> !;
    }
    let program = Program::new(Config::new());
    let stream = program.context.new_stream().unwrap();
    drop(stream.alloc_zeros::<u8>(100).unwrap());
    // SAFETY: the child calls nothing that needs another thread.
    let child = unsafe { fork() };
    if child == 0 {
        let mut ptr = 0;
        // SAFETY: an address is written. CUDA itself refuses it here; the stand-in does not.
        let code = unsafe { sys::cuMemAllocAsync(&raw mut ptr, 100, stream.cu_stream()) };
        let is_drivers = code != sys::CUresult::CUDA_SUCCESS || !program.glake.owns(at(ptr));
        // SAFETY: ends the child without anything of the parent's.
        unsafe { _exit(i32::from(!is_drivers)) };
    }
    let mut status = -1;
    // SAFETY: a status is written.
    assert_eq!(unsafe { waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the pool's memory is not the child's");
    stream.synchronize().unwrap();
    program.is_clean();
}

/// Nothing to try on a machine that has a driver.
pub(crate) fn without_a_driver_there_is_no_hook() {
    // SAFETY: loads the driver, if there is one.
    if unsafe { libloading::Library::new("libcuda.so.1") }.is_ok() {
        return;
    }
    let error = glake_hook::install(Config::new()).unwrap_err();
    assert!(matches!(error, InstallError::NoDriver(_)), "{error}");
    assert!(error.to_string().contains("libcuda.so.1"));
    assert!(Glake::installed().is_none());
}
