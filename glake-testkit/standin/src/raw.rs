//! The host's memory: the only file that maps it, or touches what lies at an address.

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsFd;
use std::ptr;

use rustix::mm::{self, MapFlags, MprotectFlags, ProtFlags};

use crate::abi::to_usize;

/// An address as a pointer.
fn at<T>(address: u64) -> *mut T {
    ptr::with_exposed_provenance_mut(to_usize(address))
}

/// An address as C's untyped pointer.
pub(crate) fn pointer(address: u64) -> *mut c_void {
    at(address)
}

/// Fresh addresses without memory, aligned to `align`, a power of two of whole host pages.
pub(crate) fn reserve(bytes: u64, align: u64) -> Option<u64> {
    let room = bytes.checked_add(align)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping wherever the host likes touches nothing that is there.
    let start = unsafe { mm::mmap_anonymous(ptr::null_mut(), to_usize(room), ProtFlags::empty(), flags) };
    let start = start.ok()?.expose_provenance() as u64;
    let aligned = start.next_multiple_of(align);
    for (from, to) in [(start, aligned), (aligned + bytes, start + room)] {
        if from < to {
            // SAFETY: the ends of the mapping made above, which nobody knows yet.
            unsafe { give_back(from, to - from) };
        }
    }
    Some(aligned)
}

/// Fresh memory, zero and writable.
pub(crate) fn allocate(bytes: u64) -> Option<u64> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping wherever the host likes touches nothing that is there.
    let start = unsafe { mm::mmap_anonymous(ptr::null_mut(), to_usize(bytes), prot, flags) };
    Some(start.ok()?.expose_provenance() as u64)
}

/// Gives addresses, and the memory there, back to the host.
///
/// # Safety
/// They are from [`reserve`] or [`allocate`], and nobody uses them any more.
pub(crate) unsafe fn give_back(start: u64, bytes: u64) {
    // SAFETY: the caller owns the addresses. A failure costs addresses and nothing else.
    let _ = unsafe { mm::munmap(at(start), to_usize(bytes)) };
}

/// Shows `bytes` bytes of `file` from `offset` on at reserved addresses, without access.
///
/// # Safety
/// The addresses are from [`reserve`], and nobody holds a reference into them.
pub(crate) unsafe fn map(start: u64, bytes: u64, file: &File, offset: u64) -> bool {
    let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the caller owns the addresses.
    unsafe { mm::mmap(at(start), to_usize(bytes), ProtFlags::empty(), flags, file.as_fd(), offset) }.is_ok()
}

/// Makes addresses reserved ones without memory again.
///
/// # Safety
/// As [`map`].
pub(crate) unsafe fn unmap(start: u64, bytes: u64) -> bool {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the caller owns the addresses.
    unsafe { mm::mmap_anonymous(at(start), to_usize(bytes), ProtFlags::empty(), flags) }.is_ok()
}

/// What may be done at mapped addresses, by anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    Nothing,
    Read,
    Write,
}

/// Sets what may be done.
///
/// # Safety
/// As [`map`].
pub(crate) unsafe fn protect(start: u64, bytes: u64, protection: Protection) -> bool {
    let flags = match protection {
        Protection::Nothing => MprotectFlags::empty(),
        Protection::Read => MprotectFlags::READ,
        Protection::Write => MprotectFlags::READ | MprotectFlags::WRITE,
    };
    // SAFETY: the caller owns the addresses.
    unsafe { mm::mprotect(at(start), to_usize(bytes), flags) }.is_ok()
}

/// Copies; the ranges may overlap.
///
/// # Safety
/// Both ranges are mapped with the access that it takes; nobody holds a reference into `dst`.
pub(crate) unsafe fn copy(dst: u64, src: u64, bytes: u64) {
    // SAFETY: the caller vouches for both ranges.
    unsafe { ptr::copy(at::<u8>(src).cast_const(), at::<u8>(dst), to_usize(bytes)) }
}

/// The bytes at `src`.
///
/// # Safety
/// The range is readable.
pub(crate) unsafe fn bytes(src: u64, n_bytes: u64) -> Vec<u8> {
    let mut bytes = vec![0; to_usize(n_bytes)];
    // SAFETY: the caller vouches for the source; the vector is as long and new.
    unsafe { ptr::copy_nonoverlapping(at::<u8>(src).cast_const(), bytes.as_mut_ptr(), bytes.len()) };
    bytes
}

/// Writes bytes.
///
/// # Safety
/// The range is writable, and nobody holds a reference into it.
pub(crate) unsafe fn store(dst: u64, bytes: &[u8]) {
    // SAFETY: the caller vouches for the destination; a slice of the host lies elsewhere.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at::<u8>(dst), bytes.len()) }
}

/// Whether two ranges hold the same bytes.
///
/// # Safety
/// Both are readable, and nobody writes them meanwhile.
pub(crate) unsafe fn equal(a: u64, b: u64, n_bytes: u64) -> bool {
    let slice = |start| std::ptr::slice_from_raw_parts(at::<u8>(start).cast_const(), to_usize(n_bytes));
    // SAFETY: the caller vouches for the range.
    let a = unsafe { &*slice(a) };
    // SAFETY: as above.
    let b = unsafe { &*slice(b) };
    a == b
}

/// The word at an aligned address.
///
/// # Safety
/// It is readable.
pub(crate) unsafe fn load_word(address: u64) -> u64 {
    // SAFETY: the caller vouches for the address.
    unsafe { at::<u64>(address).read_volatile() }
}

/// Writes a word at an aligned address.
///
/// # Safety
/// It is writable, and nobody holds a reference to it.
pub(crate) unsafe fn store_word(address: u64, word: u64) {
    // SAFETY: the caller vouches for the address.
    unsafe { at::<u64>(address).write_volatile(word) }
}
