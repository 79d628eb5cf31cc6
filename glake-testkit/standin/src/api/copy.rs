//! Copies and fills.

use std::ffi::c_void;

use crate::abi::In;
use crate::code::{Code, Result};
use crate::machine::Machine;
use crate::machine::work::{Op, Side, Value};
use crate::raw;

driver_functions! {
    fn cuMemcpyHtoDAsync_v2(dst: u64, src: In<u8>, bytes: u64, stream: u64) |machine| {
        let stream = machine.stream(stream)?;
        to_device(machine, dst, &src, bytes, stream)
    }

    fn cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: u64, bytes: u64, stream: u64) |machine| {
        let stream = machine.stream(stream)?;
        to_host(machine, dst, src, bytes, stream)
    }

    fn cuMemcpyDtoDAsync_v2(dst: u64, src: u64, bytes: u64, stream: u64) |machine| {
        let stream = machine.stream(stream)?;
        copy(machine, Side::Device(dst), Side::Device(src), bytes, stream)
    }

    fn cuMemcpyPeerAsync(
        dst: u64,
        dst_context: u64,
        src: u64,
        src_context: u64,
        bytes: u64,
        stream: u64,
    ) |machine| {
        machine.context(dst_context)?;
        machine.context(src_context)?;
        let stream = machine.stream(stream)?;
        copy(machine, Side::Device(dst), Side::Device(src), bytes, stream)
    }

    fn cuMemcpyAsync(dst: u64, src: u64, bytes: u64, stream: u64) |machine| {
        let stream = machine.stream(stream)?;
        anywhere(machine, dst, src, bytes, stream)
    }

    fn cuMemcpy(dst: u64, src: u64, bytes: u64) |machine| {
        let stream = blocking(machine)?;
        anywhere(machine, dst, src, bytes, stream)
    }

    fn cuMemcpyHtoD_v2(dst: u64, src: In<u8>, bytes: u64) |machine| {
        let stream = blocking(machine)?;
        to_device(machine, dst, &src, bytes, stream)?;
        wait(machine, stream)
    }

    fn cuMemcpyDtoH_v2(dst: *mut c_void, src: u64, bytes: u64) |machine| {
        let stream = blocking(machine)?;
        to_host(machine, dst, src, bytes, stream)?;
        wait(machine, stream)
    }

    fn cuMemcpyDtoD_v2(dst: u64, src: u64, bytes: u64) |machine| {
        let stream = blocking(machine)?;
        copy(machine, Side::Device(dst), Side::Device(src), bytes, stream)
    }

    fn cuMemsetD8Async(dst: u64, value: u8, n: u64, stream: u64) |machine| {
        let stream = machine.stream(stream)?;
        fill(machine, dst, Value::new(value.into(), 1), n, stream)
    }

    fn cuMemsetD16Async(dst: u64, value: u16, n: u64, stream: u64) |machine| {
        let stream = machine.stream(stream)?;
        fill(machine, dst, Value::new(value.into(), 2), n, stream)
    }

    fn cuMemsetD32Async(dst: u64, value: u32, n: u64, stream: u64) |machine| {
        let stream = machine.stream(stream)?;
        fill(machine, dst, Value::new(value, 4), n, stream)
    }

    fn cuMemsetD8_v2(dst: u64, value: u8, n: u64) |machine| {
        let stream = blocking(machine)?;
        fill(machine, dst, Value::new(value.into(), 1), n, stream)
    }

    fn cuMemsetD16_v2(dst: u64, value: u16, n: u64) |machine| {
        let stream = blocking(machine)?;
        fill(machine, dst, Value::new(value.into(), 2), n, stream)
    }

    fn cuMemsetD32_v2(dst: u64, value: u32, n: u64) |machine| {
        let stream = blocking(machine)?;
        fill(machine, dst, Value::new(value, 4), n, stream)
    }
}

/// The stream of calls that name none.
fn blocking(machine: &mut Machine) -> Result<u64> {
    let stream = machine.legacy()?;
    machine.check_unsafe()?;
    Ok(stream)
}

fn context_of(machine: &Machine, stream: u64) -> u64 {
    machine.streams.get(&stream).map_or(0, |stream| stream.context)
}

fn enqueue(machine: &mut Machine, op: Op, stream: u64) -> Result {
    machine.check_op(context_of(machine, stream), &op)?;
    machine.enqueue(stream, op, Vec::new())
}

fn copy(machine: &mut Machine, dst: Side, src: Side, bytes: u64, stream: u64) -> Result {
    if bytes == 0 {
        return Ok(());
    }
    enqueue(machine, Op::Copy { dst, src, bytes }, stream)
}

fn fill(machine: &mut Machine, dst: u64, value: Value, n: u64, stream: u64) -> Result {
    if n == 0 {
        return Ok(());
    }
    enqueue(machine, Op::Fill { dst, value, n }, stream)
}

fn is_captured(machine: &Machine, stream: u64) -> bool {
    machine.streams.get(&stream).is_some_and(|stream| stream.capture.is_some())
}

/// A copy between two addresses, each of which may be the device's or the host's.
pub(super) fn anywhere(machine: &mut Machine, dst: u64, src: u64, bytes: u64, stream: u64) -> Result {
    let side = |address| match machine.space.at(address) {
        Some(_) => Side::Device(address),
        None => Side::Host(address),
    };
    let (dst, src) = (side(dst), side(src));
    copy(machine, dst, src, bytes, stream)?;
    wait_for_host(machine, dst, src, stream)
}

/// From host memory: read when the copy runs if it is pinned, or in a graph; else now, because the
/// caller may change it as soon as the call returns.
pub(super) fn to_device(machine: &mut Machine, dst: u64, src: &In<u8>, bytes: u64, stream: u64) -> Result {
    if bytes == 0 {
        return Ok(());
    }
    if src.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let from = src.address();
    if machine.space.is_pinned(from, bytes) {
        return copy(machine, Side::Device(dst), Side::Device(from), bytes, stream);
    }
    if is_captured(machine, stream) {
        return copy(machine, Side::Device(dst), Side::Host(from), bytes, stream);
    }
    // SAFETY: the caller of the exported function vouches that so many bytes are there.
    let bytes = unsafe { raw::bytes(from, bytes) };
    enqueue(machine, Op::Write { dst, bytes: bytes.into() }, stream)
}

/// To host memory: later if it is pinned, or in a graph; else done when the call returns.
pub(super) fn to_host(machine: &mut Machine, dst: *mut c_void, src: u64, bytes: u64, stream: u64) -> Result {
    if bytes == 0 {
        return Ok(());
    }
    if dst.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let to = dst.expose_provenance() as u64;
    let dst = if machine.space.is_pinned(to, bytes) { Side::Device(to) } else { Side::Host(to) };
    let src = Side::Device(src);
    copy(machine, dst, src, bytes, stream)?;
    wait_for_host(machine, dst, src, stream)
}

/// Waits for a copy with plain host memory, which belongs to the caller again when the call returns.
fn wait_for_host(machine: &mut Machine, dst: Side, src: Side, stream: u64) -> Result {
    let has_host = [dst, src].iter().any(|side| matches!(side, Side::Host(_)));
    if has_host && !is_captured(machine, stream) { wait(machine, stream) } else { Ok(()) }
}

pub(super) fn wait(machine: &mut Machine, stream: u64) -> Result {
    let context = context_of(machine, stream);
    machine.run_all_of(stream);
    machine.check_lost(context)
}
