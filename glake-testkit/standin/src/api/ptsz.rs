//! Functions of programs for which stream 0 is the calling thread's own
//! (`CUDA_API_PER_THREAD_DEFAULT_STREAM`).

use std::ffi::c_void;

use super::copy::{anywhere, to_device, to_host, wait};
use super::stream::end_capture;
use crate::abi::{In, Out};
use crate::code::Result;
use crate::machine::Machine;

/// What those programs mean by a stream.
const fn of_thread(stream: u64) -> u64 {
    const PER_THREAD: u64 = 2;
    if stream == 0 { PER_THREAD } else { stream }
}

/// The calling thread's stream, for calls that name none.
fn blocking(machine: &mut Machine) -> Result<u64> {
    let stream = machine.stream(of_thread(0))?;
    machine.check_unsafe()?;
    Ok(stream)
}

driver_functions! {
    fn cuMemcpyHtoDAsync_v2_ptsz(dst: u64, src: In<u8>, bytes: u64, stream: u64) |machine| {
        let stream = machine.stream(of_thread(stream))?;
        to_device(machine, dst, &src, bytes, stream)
    }

    fn cuMemcpyDtoHAsync_v2_ptsz(dst: *mut c_void, src: u64, bytes: u64, stream: u64) |machine| {
        let stream = machine.stream(of_thread(stream))?;
        to_host(machine, dst, src, bytes, stream)
    }

    fn cuMemcpyAsync_ptsz(dst: u64, src: u64, bytes: u64, stream: u64) |machine| {
        let stream = machine.stream(of_thread(stream))?;
        anywhere(machine, dst, src, bytes, stream)
    }

    fn cuMemcpy_ptds(dst: u64, src: u64, bytes: u64) |machine| {
        let stream = blocking(machine)?;
        anywhere(machine, dst, src, bytes, stream)
    }

    fn cuMemcpyHtoD_v2_ptds(dst: u64, src: In<u8>, bytes: u64) |machine| {
        let stream = blocking(machine)?;
        to_device(machine, dst, &src, bytes, stream)?;
        wait(machine, stream)
    }

    fn cuMemcpyDtoH_v2_ptds(dst: *mut c_void, src: u64, bytes: u64) |machine| {
        let stream = blocking(machine)?;
        to_host(machine, dst, src, bytes, stream)?;
        wait(machine, stream)
    }

    fn cuMemAllocAsync_ptsz(start: Out<u64>, bytes: u64, stream: u64) |machine| {
        start.put(machine.allocate_async(bytes, None, of_thread(stream))?)
    }

    fn cuMemAllocFromPoolAsync_ptsz(start: Out<u64>, bytes: u64, pool: u64, stream: u64) |machine| {
        start.put(machine.allocate_async(bytes, Some(pool), of_thread(stream))?)
    }

    fn cuMemFreeAsync_ptsz(start: u64, stream: u64) |machine| { machine.free_async(start, of_thread(stream)) }

    fn cuStreamBeginCapture_v2_ptsz(stream: u64, mode: u32) |machine| {
        machine.begin_capture(of_thread(stream), mode, None)
    }

    fn cuStreamEndCapture_ptsz(stream: u64, graph: Out<u64>) |machine| {
        end_capture(machine, of_thread(stream), &graph)
    }
}
