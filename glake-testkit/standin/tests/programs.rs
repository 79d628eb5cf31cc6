//! Programs over unmodified cudarc run on the stand-in.
#![allow(clippy::unwrap_used, reason = "tests panic to fail")]

use std::sync::Arc;

use cudarc::driver::sys::{CUevent_flags, CUresult};
use cudarc::driver::{CudaContext, CudaFunction, DriverError, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use glake_standin::{Completion, StandIn, alone};

const PTX: &str = include_str!("../../../glake-cuda/kernels/glake.ptx");
const DELAY_NS: u64 = 5_000_000;

/// Runs a test in a process of its own: whoever waits for a context runs the work of all its streams.
fn over(name: &str, completion: Completion, test: fn(StandIn, &Arc<CudaContext>)) {
    alone(name, &[], |stand_in| {
        stand_in.complete(completion);
        test(stand_in, &CudaContext::new(0).unwrap());
    });
}

fn late(name: &str, test: fn(StandIn, &Arc<CudaContext>)) {
    over(name, Completion::Manual, test);
}

fn kernel(context: &Arc<CudaContext>, name: &str) -> CudaFunction {
    context.load_module(Ptx::from_src(PTX)).unwrap().load_function(name).unwrap()
}

fn failed<T>(result: Result<T, DriverError>) -> Option<CUresult> {
    result.err().map(|error| error.0)
}

#[test]
fn a_program_on_two_streams_allocates_copies_launches_and_frees() {
    late("a_program_on_two_streams_allocates_copies_launches_and_frees", |stand_in, context| {
        assert_eq!(context.name().unwrap(), "NVIDIA H200 (stand-in)");
        assert_eq!(context.compute_capability().unwrap(), (9, 0));
        let (first, second) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let copy = kernel(context, "glake_copy");
        let values: Vec<u32> = (0..10_000).collect();
        let bytes = 40_000u64;
        let source = first.clone_htod(&values).unwrap();
        let mut copied = second.alloc_zeros::<u32>(values.len()).unwrap();
        let config = LaunchConfig::for_num_elems(10_000);
        // SAFETY: the kernel takes two addresses and the bytes that lie at both.
        unsafe { second.launch_builder(&copy).arg(&mut copied).arg(&source).arg(&bytes).launch(config) }
            .unwrap();
        assert!(stand_in.n_pending(second.cu_stream().addr() as u64) > 0, "nothing has run");
        assert_eq!(first.clone_dtoh(&copied).unwrap(), values, "read on the other stream, behind the event");
        let (before, _) = context.mem_get_info().unwrap();
        drop((source, copied));
        context.synchronize().unwrap();
        assert!(context.mem_get_info().unwrap().0 > before, "memory went back");
    });
}

#[test]
fn kernels_that_nobody_knows_do_nothing_and_missing_ones_are_not_found() {
    late("kernels_that_nobody_knows_do_nothing_and_missing_ones_are_not_found", |_, context| {
        let stream = context.new_stream().unwrap();
        let module =
            context.load_module(Ptx::from_src(".version 8.0\n.visible .entry scale(\n)\n{\n}\n")).unwrap();
        let scale = module.load_function("scale").unwrap();
        let mut values = stream.clone_htod(&[1u8, 2, 3]).unwrap();
        // SAFETY: the kernel touches nothing.
        unsafe { stream.launch_builder(&scale).arg(&mut values).launch(LaunchConfig::for_num_elems(3)) }
            .unwrap();
        assert_eq!(stream.clone_dtoh(&values).unwrap(), [1, 2, 3]);
        assert_eq!(failed(module.load_function("shift")), Some(CUresult::CUDA_ERROR_NOT_FOUND));
    });
}

#[test]
fn the_clock_of_the_device_goes_on_with_its_work() {
    late("the_clock_of_the_device_goes_on_with_its_work", |_, context| {
        let stream = context.new_stream().unwrap();
        let delay = kernel(context, "glake_delay");
        let timed = || stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).unwrap();
        let start = timed();
        let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the kernel takes a time.
        unsafe { stream.launch_builder(&delay).arg(&DELAY_NS).launch(one) }.unwrap();
        let end = timed();
        assert_eq!(end.try_is_complete(), Ok(false));
        let ms = start.elapsed_ms(&end).unwrap();
        assert!((5.0..6.0).contains(&ms), "{ms} ms");
        let untimed = stream.record_event(None).unwrap();
        assert_eq!(failed(start.elapsed_ms(&untimed)), Some(CUresult::CUDA_ERROR_INVALID_HANDLE));
    });
}

#[test]
fn work_runs_when_it_is_said_and_in_order() {
    late("work_runs_when_it_is_said_and_in_order", |stand_in, context| {
        let stream = context.new_stream().unwrap();
        let other = context.new_stream().unwrap();
        let raw = stream.cu_stream().addr() as u64;
        let events = [(); 3].map(|()| stream.record_event(None).unwrap());
        other.wait(&events[2]).unwrap();
        let behind = other.record_event(None).unwrap();
        let passed = || [0, 1, 2].map(|n| events[n].is_complete());
        assert_eq!((passed(), stand_in.n_pending(raw)), ([false; 3], 3));
        assert_eq!(stand_in.run(other.cu_stream().addr() as u64, 9), 0, "it waits for the first stream");
        assert_eq!((stand_in.run(raw, 2), passed()), (2, [true, true, false]));
        behind.synchronize().unwrap();
        assert_eq!(passed(), [true; 3], "waiting for the second stream ran the first");
    });
}

#[test]
fn lagging_work_comes_with_questions() {
    over("lagging_work_comes_with_questions", Completion::Lag(3), |_, context| {
        let stream = context.new_stream().unwrap();
        let event = stream.record_event(None).unwrap();
        assert_eq!([(); 4].map(|()| event.is_complete()), [false, false, true, true]);
    });
}

#[test]
fn blocking_and_legacy_streams_wait_for_each_other() {
    late("blocking_and_legacy_streams_wait_for_each_other", |_, context| {
        let (legacy, thread) = (context.default_stream(), context.per_thread_stream());
        let mut values = thread.clone_htod(&[1u8; 64]).unwrap();
        thread.memset_zeros(&mut values).unwrap();
        assert_eq!(legacy.clone_dtoh(&values).unwrap(), [0; 64], "the legacy stream ran the thread's first");
    });
}

#[test]
fn a_kernel_that_strays_ends_the_context_and_not_the_process() {
    alone("a_kernel_that_strays_ends_the_context_and_not_the_process", &[], |_| {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let copy = kernel(&context, "glake_copy");
        let (dst, src, bytes) = (8u64, 16u64, 8u64);
        // SAFETY: not at all: the addresses are nobody's, which is the test.
        unsafe {
            stream
                .launch_builder(&copy)
                .arg(&dst)
                .arg(&src)
                .arg(&bytes)
                .launch(LaunchConfig::for_num_elems(1))
        }
        .unwrap();
        let lost = Some(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(failed(stream.synchronize()), lost);
        assert_eq!(failed(stream.alloc_zeros::<u8>(1)), lost);
        assert_eq!(failed(context.synchronize()), lost);
        let other = CudaContext::new(1).unwrap().new_stream().unwrap();
        assert_eq!(
            other.clone_dtoh(&other.clone_htod(&[7u8]).unwrap()).unwrap(),
            [7],
            "the other device lives"
        );
    });
}

#[test]
fn calls_fail_as_the_environment_says_and_are_counted() {
    let variables = [("GLAKE_STANDIN_FAIL", "cuMemAllocAsync:2:2"), ("GLAKE_STANDIN_DEVICES", "3")];
    alone("calls_fail_as_the_environment_says_and_are_counted", &variables, |stand_in| {
        assert_eq!(CudaContext::device_count(), Ok(3));
        let stream = CudaContext::new(2).unwrap().new_stream().unwrap();
        let outcomes = [(); 3].map(|()| failed(stream.alloc_zeros::<u8>(1 << 20)));
        assert_eq!(outcomes, [None, Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY), None]);
        assert_eq!(stand_in.n_calls("cuMemAllocAsync"), 3);
        stand_in.fail("cuStreamCreate", 1, 999);
        assert_eq!(failed(stream.fork()), Some(CUresult::CUDA_ERROR_UNKNOWN));
        assert_eq!(stand_in.forget_failures(), 0);
    });
}

#[test]
fn memory_ends_where_the_device_does() {
    let variables = [("GLAKE_STANDIN_MEMORY", "10485760")];
    alone("memory_ends_where_the_device_does", &variables, |_| {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let kept = stream.alloc_zeros::<u8>(6 << 20).unwrap();
        assert_eq!(context.mem_get_info(), Ok((4 << 20, 10 << 20)));
        let refused = failed(stream.alloc_zeros::<u8>(5 << 20));
        assert_eq!(refused, Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        drop(kept);
        stream.alloc_zeros::<u8>(10 << 20).unwrap();
    });
}
