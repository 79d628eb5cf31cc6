//! What crosses the border: pointers of callers, and structures laid out as in cuda.h.

use std::ffi::{CStr, c_char, c_void};

use crate::code::{Code, Result};

/// A place of the caller's for a result.
///
/// Values of this type are arguments of exported functions only, whose callers vouch that the
/// pointer is null or valid for one `T` during the call.
#[repr(transparent)]
#[derive(Debug)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes a result; null is an invalid value.
    pub(crate) fn put(&self, value: T) -> Result {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        self.put_if_wanted(value);
        Ok(())
    }

    /// Writes a result where null means that nobody wants it.
    pub(crate) fn put_if_wanted(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the caller of the exported function vouches that the pointer is valid.
            unsafe { self.0.write_unaligned(value) }
        }
    }
}

impl<T: Copy> Out<T> {
    /// What stands there now, where the caller passes a value in as well.
    pub(crate) fn get(&self) -> Result<T> {
        In(self.0.cast_const()).get()
    }
}

impl<T> Out<T> {
    /// The same place for a value of another type, where CUDA's function takes several.
    pub(crate) fn cast<U>(&self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl Out<c_char> {
    /// Writes a string, cut where the caller has no more room.
    pub(crate) fn put_text(&self, text: &str, n_bytes: i32) -> Result {
        let room = usize::try_from(n_bytes).ok().filter(|room| *room > 0).ok_or(Code::INVALID_VALUE)?;
        let bytes = text.bytes().take(room - 1).chain([0]);
        for (index, byte) in bytes.enumerate() {
            Out(self.0.cast::<u8>().wrapping_add(index)).put(byte)?;
        }
        Ok(())
    }
}

/// A value of the caller's; as [`Out`].
#[repr(transparent)]
#[derive(Debug)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// The value; null is an invalid value.
    pub(crate) fn get(&self) -> Result<T> {
        self.at(0)
    }

    /// Value `index` of an array.
    pub(crate) fn at(&self, index: usize) -> Result<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let at = self.0.wrapping_add(index);
        // SAFETY: the caller of the exported function vouches that the array is that long.
        Ok(unsafe { at.read_unaligned() })
    }

    /// From a pointer that a caller passed inside another argument.
    pub(crate) const fn of(pointer: *const T) -> Self {
        Self(pointer)
    }

    /// None.
    pub(crate) const fn null() -> Self {
        Self(std::ptr::null())
    }

    /// Whether there is none.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Its address.
    pub(crate) fn address(&self) -> u64 {
        self.0.expose_provenance() as u64
    }
}

/// A C string of the caller's; as [`Out`].
#[repr(transparent)]
#[derive(Debug)]
pub struct Text(*const c_char);

impl Text {
    /// From a pointer that is null or a C string.
    pub(crate) const fn of(text: *const c_char) -> Self {
        Self(text)
    }

    /// The string; null, or what is not UTF-8, is an invalid value.
    pub(crate) fn get(&self) -> Result<String> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller of the exported function vouches for a string that ends in a NUL.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(str::to_owned).map_err(|_| Code::INVALID_VALUE)
    }

    /// The first byte.
    pub(crate) fn first(&self) -> Result<u8> {
        In(self.0.cast::<u8>()).get()
    }
}

/// A function of the caller's that is called back with its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Callback {
    pub(crate) function: HostFunction,
    pub(crate) data: u64,
}

/// `CUhostFn`.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

impl Callback {
    pub(crate) fn call(self) {
        let data = std::ptr::with_exposed_provenance_mut(to_usize(self.data));
        // SAFETY: whoever handed the function over vouched that it may be called with its data.
        unsafe { (self.function)(data) }
    }
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

/// `CUmemAllocationProp`; the metadata is of another system and stays 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Properties {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: Location,
    pub(crate) win32_meta: u64,
    pub(crate) flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Right {
    pub(crate) location: Location,
    pub(crate) flags: u32,
}

pub(crate) const LOCATION_DEVICE: u32 = 1;
pub(crate) const ALLOCATION_PINNED: u32 = 1;
pub(crate) const POSIX_FD: u32 = 1;

const _: () = assert!(size_of::<usize>() == size_of::<u64>(), "the stand-in needs a 64-bit host");

/// A size in the host's type.
#[allow(clippy::cast_possible_truncation, reason = "usize has 64 bits, asserted above")]
pub(crate) const fn to_usize(n: u64) -> usize {
    n as usize
}
