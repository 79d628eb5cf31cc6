//! Streams.

use std::ffi::c_void;

use crate::abi::{Callback, HostFunction, In, Out};
use crate::code::{Code, Result};
use crate::machine::Machine;
use crate::machine::stream::Kind;
use crate::machine::work::Op;

const NON_BLOCKING: u32 = 1;

driver_functions! {
    fn cuStreamCreate(stream: Out<u64>, flags: u32) |machine| { stream.put(create(machine, flags, 0)?) }

    fn cuStreamCreateWithPriority(stream: Out<u64>, flags: u32, priority: i32) |machine| {
        stream.put(create(machine, flags, priority)?)
    }

    fn cuStreamDestroy_v2(stream: u64) |machine| { machine.destroy_stream(stream) }

    fn cuStreamSynchronize(stream: u64) |machine| {
        let stream = machine.stream(stream)?;
        machine.refuse_captured(stream)?;
        machine.check_unsafe()?;
        let context = context_of(machine, stream)?;
        machine.run_all_of(stream);
        machine.check_lost(context)
    }

    fn cuStreamQuery(stream: u64) |machine| {
        let stream = machine.stream(stream)?;
        machine.refuse_captured(stream)?;
        machine.check_unsafe()?;
        let context = context_of(machine, stream)?;
        let last = machine.last(stream);
        machine.ask(last.as_slice());
        machine.check_lost(context)?;
        if machine.last(stream).is_none() { Ok(()) } else { Err(Code::NOT_READY) }
    }

    fn cuStreamWaitEvent(stream: u64, event: u64, flags: u32) |machine| {
        let _ = flags;
        let stream = machine.stream(stream)?;
        machine.wait(stream, event)
    }

    fn cuLaunchHostFunc(stream: u64, function: Option<HostFunction>, data: *mut c_void) |machine| {
        let stream = machine.stream(stream)?;
        let function = function.ok_or(Code::INVALID_VALUE)?;
        let data = data.expose_provenance() as u64;
        machine.enqueue(stream, Op::Host(Callback { function, data }), Vec::new())
    }

    fn cuStreamGetId(stream: u64, id: Out<u64>) |machine| {
        let stream = machine.stream(stream)?;
        id.put(stream)
    }

    fn cuStreamGetCtx(stream: u64, context: Out<u64>) |machine| {
        let stream = machine.stream(stream)?;
        context.put(context_of(machine, stream)?)
    }

    fn cuStreamGetDevice(stream: u64, device: Out<i32>) |machine| {
        let stream = machine.stream(stream)?;
        let device_of = machine.device_of(context_of(machine, stream)?);
        device.put(i32::try_from(device_of).unwrap_or(0))
    }

    fn cuStreamGetFlags(stream: u64, flags: Out<u32>) |machine| {
        let stream = machine.stream(stream)?;
        let kind = machine.streams.get(&stream).map(|stream| stream.kind);
        flags.put(if kind == Some(Kind::NonBlocking) { NON_BLOCKING } else { 0 })
    }

    fn cuStreamGetPriority(stream: u64, priority: Out<i32>) |machine| {
        let stream = machine.stream(stream)?;
        priority.put(machine.streams.get(&stream).map_or(0, |stream| stream.priority))
    }

    fn cuStreamBeginCapture_v2(stream: u64, mode: u32) |machine| {
        machine.begin_capture(stream, mode, None)
    }

    fn cuStreamBeginCaptureToGraph(
        stream: u64,
        graph: u64,
        dependencies: In<u64>,
        edges: In<u64>,
        n_dependencies: u64,
        mode: u32,
    ) |machine| {
        let _ = (dependencies, edges);
        // What is captured comes behind all of the graph as it is.
        if n_dependencies > 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        machine.begin_capture(stream, mode, Some(graph))
    }

    fn cuStreamEndCapture(stream: u64, graph: Out<u64>) |machine| { end_capture(machine, stream, &graph) }

    fn cuStreamIsCapturing(stream: u64, status: Out<u32>) |machine| {
        let stream = machine.stream(stream)?;
        machine.ask_implicit(stream)?;
        status.put(capture_info(machine, stream).0)
    }

    fn cuStreamGetCaptureInfo(stream: u64, status: Out<u32>, id: Out<u64>) |machine| {
        let stream = machine.stream(stream)?;
        machine.ask_implicit(stream)?;
        let info = capture_info(machine, stream);
        status.put(info.0)?;
        id.put_if_wanted(info.1);
        Ok(())
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: u64,
        status: Out<u32>,
        id: Out<u64>,
        graph: Out<u64>,
        dependencies: Out<u64>,
        n_dependencies: Out<u64>,
    ) |machine| {
        let stream = machine.stream(stream)?;
        machine.ask_implicit(stream)?;
        let info = capture_info(machine, stream);
        status.put(info.0)?;
        id.put_if_wanted(info.1);
        graph.put_if_wanted(info.2);
        dependencies.put_if_wanted(0);
        n_dependencies.put_if_wanted(0);
        Ok(())
    }

    fn cuStreamGetCaptureInfo_v3(
        stream: u64,
        status: Out<u32>,
        id: Out<u64>,
        graph: Out<u64>,
        dependencies: Out<u64>,
        edges: Out<u64>,
        n_dependencies: Out<u64>,
    ) |machine| {
        let stream = machine.stream(stream)?;
        machine.ask_implicit(stream)?;
        let info = capture_info(machine, stream);
        status.put(info.0)?;
        id.put_if_wanted(info.1);
        graph.put_if_wanted(info.2);
        dependencies.put_if_wanted(0);
        edges.put_if_wanted(0);
        n_dependencies.put_if_wanted(0);
        Ok(())
    }
}

pub(super) fn end_capture(machine: &mut Machine, stream: u64, graph: &Out<u64>) -> Result {
    graph.put_if_wanted(0);
    graph.put(machine.end_capture(stream)?)
}

fn create(machine: &mut Machine, flags: u32, priority: i32) -> Result<u64> {
    let context = machine.current()?;
    let kind = match flags {
        0 => Kind::Blocking,
        NON_BLOCKING => Kind::NonBlocking,
        _ => return Err(Code::INVALID_VALUE),
    };
    Ok(machine.new_stream(context, kind, priority))
}

fn context_of(machine: &Machine, stream: u64) -> Result<u64> {
    machine.streams.get(&stream).map(|stream| stream.context).ok_or(Code::INVALID_HANDLE)
}

/// Status, id and graph of the capture that a stream's work goes into.
fn capture_info(machine: &Machine, stream: u64) -> (u32, u64, u64) {
    const ACTIVE: u32 = 1;
    const INVALIDATED: u32 = 2;
    let id = machine.streams.get(&stream).and_then(|stream| stream.capture);
    match id.and_then(|id| Some((id, machine.captures.get(&id)?))) {
        Some((id, capture)) if capture.is_valid => (ACTIVE, id, capture.graph),
        // CUDA promises the status only.
        Some(_) => (INVALIDATED, 0, 0),
        None => (0, 0, 0),
    }
}
