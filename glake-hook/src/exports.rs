//! The hooked functions. In a program that links to the driver they stand in its place; in one that loads
//! it, the shim jumps to them.
//!
//! Each asks the hook for an answer and otherwise passes the call on.
#![allow(non_snake_case, reason = "the driver's names")]

/// Calls the driver's own function.
macro_rules! real {
    ($name:ident($($argument:expr),*)) => {
        match crate::real::real() {
            // SAFETY: the caller's arguments, passed on.
            Some(real) => unsafe { (real.$name)($($argument),*) },
            None => crate::real::NOT_INITIALIZED,
        }
    };
}

mod copies;
mod host;
mod info;
pub(crate) mod memory;
mod order;
mod pools;

#[allow(clippy::wildcard_imports, reason = "the list of names is in `hooked.rs`")]
use {copies::*, host::*, info::*, memory::*, order::*, pools::*};

use crate::real::{Code, SUCCESS};

include!("hooked.rs");

macro_rules! table {
    ($($name:ident)*) => {
        /// The hooked functions in the order of the shim's table.
        pub(crate) fn table() -> Vec<usize> {
            vec![$($name as *const () as usize,)*]
        }

        /// The hooked function called `name` with `suffix` behind it.
        pub(crate) fn by_name(name: &str, suffix: &str) -> Option<usize> {
            let is = |known: &str| known.strip_prefix(name) == Some(suffix);
            $(if is(stringify!($name)) { return Some($name as *const () as usize) })*
            None
        }
    };
}

hooked!(table);

/// Writes what was answered through the caller's pointer.
///
/// # Safety
/// `to` can be written.
unsafe fn give<T>(to: *mut T, answer: Result<T, Code>) -> Code {
    match answer {
        Ok(value) => {
            // SAFETY: the caller vouches for it.
            unsafe { to.write(value) };
            SUCCESS
        }
        Err(code) => code,
    }
}
