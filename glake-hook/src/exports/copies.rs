//! Copies between host and device.

use std::ffi::c_void;

use glake_core::units::StreamId;
use glake_multipath::Direction;

use crate::copies::{Copy, Order, Returns};
use crate::hook::{answer, stream_id};
use crate::real::{Code, Handle, Ptr};
use crate::streams::raw;

/// A copy of a call that waits for it, behind `stream`.
fn done(stream: StreamId) -> Order {
    Order { stream, returns: Returns::Done }
}

/// A copy of a call that names `stream`.
fn enqueued(stream: StreamId) -> Order {
    Order { stream, returns: Returns::Enqueued }
}

/// A copy to the device, by the engine, or by the driver through `pass`.
///
/// # Safety
/// The arguments are as the driver's.
unsafe fn to_device(
    device: Ptr,
    src: *const c_void,
    bytes: usize,
    order: Order,
    pass: impl FnOnce() -> Code,
) -> Code {
    let copy = Copy { direction: Direction::ToDevice, device, host: src.cast_mut().cast(), bytes };
    // SAFETY: the program promises the driver, too, that the source is there and stays as it is until the
    // call returns; it is only read.
    answer(|hook| unsafe { hook.copy(copy, order) }).unwrap_or_else(pass)
}

/// A copy to the host, by the engine, or by the driver through `pass`.
///
/// # Safety
/// The arguments are as the driver's.
unsafe fn to_host(
    dst: *mut c_void,
    device: Ptr,
    bytes: usize,
    order: Order,
    pass: impl FnOnce() -> Code,
) -> Code {
    let copy = Copy { direction: Direction::ToHost, device, host: dst.cast(), bytes };
    // SAFETY: the program promises the driver, too, that the place is there and nobody else's until the call
    // returns.
    answer(|hook| unsafe { hook.copy(copy, order) }).unwrap_or_else(pass)
}

/// A copy between two addresses, by the engine, or by the driver through `pass`.
///
/// # Safety
/// The arguments are as the driver's.
unsafe fn anywhere(dst: Ptr, src: Ptr, bytes: usize, order: Order, pass: impl FnOnce() -> Code) -> Code {
    // SAFETY: as for the others, whichever side is the host's.
    answer(|hook| unsafe { hook.copy_anywhere((dst, src), bytes, order) }).unwrap_or_else(pass)
}

macro_rules! waiting {
    ($any:ident, $to_device:ident, $to_host:ident, $stream:expr) => {
        /// # Safety
        /// As the driver's.
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $any(dst: Ptr, src: Ptr, bytes: usize) -> Code {
            let pass = || real!($any(dst, src, bytes));
            // SAFETY: the caller's arguments.
            unsafe { anywhere(dst, src, bytes, done($stream), pass) }
        }

        /// # Safety
        /// As the driver's.
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $to_device(dst: Ptr, src: *const c_void, bytes: usize) -> Code {
            let pass = || real!($to_device(dst, src, bytes));
            // SAFETY: the caller's arguments.
            unsafe { to_device(dst, src, bytes, done($stream), pass) }
        }

        /// # Safety
        /// As the driver's.
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $to_host(dst: *mut c_void, src: Ptr, bytes: usize) -> Code {
            let pass = || real!($to_host(dst, src, bytes));
            // SAFETY: the caller's arguments.
            unsafe { to_host(dst, src, bytes, done($stream), pass) }
        }
    };
}

waiting!(cuMemcpy, cuMemcpyHtoD_v2, cuMemcpyDtoH_v2, StreamId::LEGACY);
waiting!(cuMemcpy_ptds, cuMemcpyHtoD_v2_ptds, cuMemcpyDtoH_v2_ptds, StreamId::PER_THREAD);

macro_rules! on_a_stream {
    ($any:ident, $to_device:ident, $to_host:ident, $default:expr) => {
        /// # Safety
        /// As the driver's.
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $any(dst: Ptr, src: Ptr, bytes: usize, stream: Handle) -> Code {
            let stream = stream_id(stream, $default);
            let pass = || real!(cuMemcpyAsync(dst, src, bytes, raw(stream)));
            // SAFETY: the caller's arguments.
            unsafe { anywhere(dst, src, bytes, enqueued(stream), pass) }
        }

        /// # Safety
        /// As the driver's.
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $to_device(
            dst: Ptr,
            src: *const c_void,
            bytes: usize,
            stream: Handle,
        ) -> Code {
            let stream = stream_id(stream, $default);
            let pass = || real!(cuMemcpyHtoDAsync_v2(dst, src, bytes, raw(stream)));
            // SAFETY: the caller's arguments.
            unsafe { to_device(dst, src, bytes, enqueued(stream), pass) }
        }

        /// # Safety
        /// As the driver's.
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $to_host(
            dst: *mut c_void,
            src: Ptr,
            bytes: usize,
            stream: Handle,
        ) -> Code {
            let stream = stream_id(stream, $default);
            let pass = || real!(cuMemcpyDtoHAsync_v2(dst, src, bytes, raw(stream)));
            // SAFETY: the caller's arguments.
            unsafe { to_host(dst, src, bytes, enqueued(stream), pass) }
        }
    };
}

on_a_stream!(cuMemcpyAsync, cuMemcpyHtoDAsync_v2, cuMemcpyDtoHAsync_v2, StreamId::LEGACY);
on_a_stream!(cuMemcpyAsync_ptsz, cuMemcpyHtoDAsync_v2_ptsz, cuMemcpyDtoHAsync_v2_ptsz, StreamId::PER_THREAD);
