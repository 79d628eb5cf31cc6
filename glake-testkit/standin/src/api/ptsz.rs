//! Functions of programs for which stream 0 is the calling thread's own
//! (`CUDA_API_PER_THREAD_DEFAULT_STREAM`).

use super::stream::end_capture;
use crate::abi::Out;

/// What those programs mean by a stream.
const fn of_thread(stream: u64) -> u64 {
    const PER_THREAD: u64 = 2;
    if stream == 0 { PER_THREAD } else { stream }
}

driver_functions! {
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
