//! Copies that are the driver's, and those that become its.

use super::*;
use crate::devices::second;
use crate::driver::{fail, is_late, past_the_hook, pin, unpin};
use crate::order::a_context_of_its_own;

const GLOBAL: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const MODE: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

/// A slice of pinned memory, which `unpin` ends.
fn pinned<'a>(bytes: usize) -> &'a mut [u8] {
    let start = pin(bytes).cast::<u8>();
    // SAFETY: the memory is that long, and nobody else's.
    unsafe { start.write_bytes(0, bytes) };
    // SAFETY: as above, and written.
    unsafe { std::slice::from_raw_parts_mut(start, bytes) }
}

pub(crate) fn copies_of_pinned_memory_return_at_once() {
    let program = Program::new(small_chunks());
    let (stream, slice) = memory(&program, 20 * MIB);
    let host = pinned(20 * MIB);
    host.copy_from_slice(&noise(20 * MIB, 1));
    delay(&stream);
    let (enqueued, ()) =
        copied(&program, || Way::on_streams().write(address(&slice), host, stream.cu_stream()));
    assert!(is_none(enqueued));
    if is_late() {
        // SAFETY: the stream is alive.
        let busy = unsafe { sys::cuStreamQuery(stream.cu_stream()) };
        assert_eq!(busy, sys::CUresult::CUDA_ERROR_NOT_READY, "the call has not waited");
    }
    stream.synchronize().unwrap();
    // What waits anyway goes over all links, if there are several. Where nothing is done before somebody waits for
    // it, no answer comes from lanes that are asked.
    let has_relays = second().is_some();
    let mut expected = host.to_vec();
    let large = if is_standin() && is_late() { 10 * MIB } else { 20 * MIB };
    for bytes in [8 * MIB, large] {
        let part = &mut host[..bytes];
        let (waited, ()) = copied(&program, || Way::waiting().read(address(&slice), part, ptr::null_mut()));
        assert_eq!(waited.n_copies, usize::from(has_relays && bytes > 16 * MIB));
        assert!(*host == expected);
        host.fill(7);
        expected[..bytes].fill(7);
        Way::waiting().write(address(&slice), &host[..bytes], ptr::null_mut());
        host.copy_from_slice(&expected);
    }
    unpin(host.as_mut_ptr().cast());
    drop(slice);
    stream.synchronize().unwrap();
    program.is_clean();
}

pub(crate) fn copies_beside_captures_are_the_drivers() {
    let program = Program::new(small_chunks());
    // SAFETY: each slice is used on one stream; events of others would break the capture.
    unsafe { program.context.disable_event_tracking() };
    let (stream, slice) = memory(&program, 5 * MIB);
    let (other, other_slice) = memory(&program, 5 * MIB);
    let (source, host) = (noise(5 * MIB, 3), pinned(5 * MIB));
    host.copy_from_slice(&noise(5 * MIB, 4));
    // SAFETY: the stream is alive.
    unsafe { sys::cuStreamBeginCapture_v2(stream.cu_stream(), GLOBAL) }.result().unwrap();
    let (captured, ()) =
        copied(&program, || Way::on_streams().write(address(&slice), host, stream.cu_stream()));
    // Another thread copies as ever, and does not break the capture.
    let (beside, found) = copied(&program, || {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                program.context.bind_to_thread().unwrap();
                Way::on_streams().write(address(&other_slice), &source, other.cu_stream());
                let mut found = vec![0; 5 * MIB];
                Way::on_streams().read(address(&other_slice), &mut found, other.cu_stream());
                found
            });
            thread.join().unwrap()
        })
    });
    assert!(found == source);
    assert!(is_none(captured));
    assert_eq!((beside.to_device_bytes, beside.to_host_bytes), (5 << 20, 5 << 20));
    let (mut graph, mut exec) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the graph is written, made to run, run, and destroyed.
    unsafe {
        sys::cuStreamEndCapture(stream.cu_stream(), &raw mut graph).result().unwrap();
        sys::cuGraphInstantiateWithFlags(&raw mut exec, graph, 0).result().unwrap();
        sys::cuGraphLaunch(exec, stream.cu_stream()).result().unwrap();
    }
    assert!(stream.clone_dtoh(&slice).unwrap() == *host, "the copy is in the graph");
    // SAFETY: made above, done.
    unsafe {
        sys::cuGraphExecDestroy(exec).result().unwrap();
        sys::cuGraphDestroy(graph).result().unwrap();
    }
    // A copy of memory that is not pinned, on a stream that is captured, past and through the hook.
    // SAFETY: the function's type.
    let past = Call::OnStream(unsafe { past_the_hook("cuMemcpyHtoDAsync_v2") });
    // What waits may break captures, and so the driver answers.
    let mut waited = vec![0; 5 * MIB];
    let codes = [past, Way::on_streams().to_device].map(|call| {
        // SAFETY: the source stays; the graph is never run.
        unsafe {
            sys::cuStreamBeginCapture_v2(stream.cu_stream(), MODE).result().unwrap();
            let code = call.copy(address(&slice).0, super::host(&source), source.len(), stream.cu_stream());
            let (by_driver, ()) = copied(&program, || {
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        program.context.bind_to_thread().unwrap();
                        Way::waiting().read(address(&other_slice), &mut waited, ptr::null_mut());
                    });
                });
            });
            assert!(is_none(by_driver));
            let ended = sys::cuStreamEndCapture(stream.cu_stream(), &raw mut graph);
            if ended == sys::CUresult::CUDA_SUCCESS {
                sys::cuGraphDestroy(graph).result().unwrap();
            }
            (code, ended)
        }
    });
    assert_eq!(codes[0], codes[1]);
    assert!(waited == source);
    let (after, ()) = copied(&program, || Way::waiting().write(address(&slice), &source, ptr::null_mut()));
    assert_eq!(after.n_copies, 1, "the captures are over");
    unpin(host.as_mut_ptr().cast());
    drop((slice, other_slice));
    program.context.synchronize().unwrap();
    program.is_empty();
}

pub(crate) fn copies_of_other_memory_are_the_drivers() {
    type Allocate = unsafe extern "C" fn(*mut u64, usize) -> sys::CUresult;
    let program = Program::new(small_chunks());
    let (stream, slice) = memory(&program, 5 * MIB);
    let (source, mut found, null) = (noise(5 * MIB, 3), vec![0; 5 * MIB], ptr::null_mut());
    // SAFETY: the function's type.
    let allocate = unsafe { past_the_hook::<Allocate>("cuMemAlloc_v2") };
    let mut foreign = 0;
    // SAFETY: an address is written.
    unsafe { allocate(&raw mut foreign, 5 * MIB) }.result().unwrap();
    let any = Way::of("cuMemcpy", "cuMemcpy", Default::Legacy);
    let (by_driver, ()) = copied(&program, || {
        Way::waiting().write(DevicePtr(foreign), &source, null);
        any.read(DevicePtr(foreign), &mut found, null);
        // From device to device, the pool's or not.
        // SAFETY: both are as long.
        unsafe { any.to_device.copy(address(&slice).0, foreign, 5 * MIB, null) }.result().unwrap();
    });
    assert!(is_none(by_driver) && found == source);
    // SAFETY: given up.
    unsafe { sys::cuMemFree_v2(foreign) }.result().unwrap();
    assert!(stream.clone_dtoh(&slice).unwrap() == source);
    // In another context than the device's own.
    let other = a_context_of_its_own(&program);
    let at = address(&slice);
    other.bind_to_thread().unwrap();
    let (there, ()) = copied(&program, || {
        Way::waiting().write(at, &found, null);
        // A driver may refuse the stream of another context than the current one.
        // SAFETY: the source stays, as it is pageable.
        let _ = unsafe {
            Way::on_streams().to_device.copy(at.0, super::host(&found), found.len(), stream.cu_stream())
        };
    });
    assert!(is_none(there));
    program.context.bind_to_thread().unwrap();
    drop(slice);
    stream.synchronize().unwrap();
    program.is_empty();
}

pub(crate) fn what_the_engine_cannot_do_the_driver_does() {
    let program = Program::new(Config::new().multipath(small().n_links(1)));
    let (stream, slice) = memory(&program, 12 * MIB);
    let round_trip = |seed| {
        let (source, mut found) = (noise(12 * MIB, seed), vec![0; 12 * MIB]);
        let (copied, ()) = copied(&program, || {
            Way::on_streams().write(address(&slice), &source, stream.cu_stream());
            Way::on_streams().read(address(&slice), &mut found, stream.cu_stream());
        });
        assert!(found == source, "round trip {seed}");
        (copied.to_device_bytes >> 20, copied.to_host_bytes >> 20)
    };
    let switch_on = || program.glake.set_option("GLAKE_MULTIPATH", "on").unwrap();
    // Before anything is copied. Then the driver does the rest, too.
    if fail("cuStreamCreate", 1) {
        assert_eq!((round_trip(1), round_trip(2)), ((0, 0), (0, 0)));
        switch_on();
    }
    assert_eq!(round_trip(3), (12, 12));
    // Half-way: the driver copies all of it.
    if fail("cuMemcpyHtoDAsync_v2", 3) {
        assert_eq!(round_trip(4), (0, 0));
        switch_on();
    }
    if fail("cuMemcpyDtoHAsync_v2", 3) {
        assert_eq!((round_trip(5), round_trip(6)), ((12, 0), (0, 0)));
        switch_on();
    }
    assert_eq!(round_trip(7), (12, 12));
    drop(slice);
    stream.synchronize().unwrap();
    program.is_clean();
}

/// Copies 32 MiB there and back; how much of that another device relayed.
fn relayed_bytes(n_links: usize) -> u64 {
    let program = Program::new(Config::new().multipath(small().n_links(n_links)));
    let (stream, mut slice) = memory(&program, 32 * MIB);
    let source = noise(32 * MIB, 2);
    let (copied, found) = copied(&program, || {
        stream.memcpy_htod(&source, &mut slice).unwrap();
        stream.clone_dtoh(&slice).unwrap()
    });
    assert!(found == source);
    assert_eq!((copied.to_device_bytes, copied.to_host_bytes), (32 << 20, 32 << 20));
    drop(slice);
    stream.synchronize().unwrap();
    program.is_clean();
    copied.relayed_bytes
}

pub(crate) fn copies_go_over_the_links_of_several_devices() {
    let relayed = relayed_bytes(usize::MAX);
    // Where copies are done at once, one lane may take them all.
    assert!(relayed > 0 || !is_late() || second().is_none());
}

pub(crate) fn copies_stay_on_the_link_that_is_allowed() {
    assert_eq!(relayed_bytes(1), 0);
}

pub(crate) fn threads_copy_at_the_same_time() {
    const N: u64 = 4;
    let program = Program::new(small_chunks());
    let context = &program.context;
    std::thread::scope(|scope| {
        for thread in 0..N {
            scope.spawn(move || {
                context.bind_to_thread().unwrap();
                let stream =
                    if thread % 2 == 0 { context.per_thread_stream() } else { context.new_stream().unwrap() };
                for seed in 0..3 {
                    let bytes = 5 * MIB + 1000 * seed;
                    let source = noise(bytes, seed + 10 * thread as usize);
                    let slice = stream.clone_htod(&source).unwrap();
                    assert!(stream.clone_dtoh(&slice).unwrap() == source);
                }
                stream.synchronize().unwrap();
            });
        }
    });
    assert_eq!(program.glake.copied().n_copies as u64, 2 * 3 * N);
    context.synchronize().unwrap();
    program.is_clean();
}
