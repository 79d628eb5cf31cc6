//! The exported functions, by subject.

use std::ffi::c_void;

/// Defines exported functions: each enters the machine under its name, and can be found by it.
macro_rules! driver_functions {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) |$machine:pat_param| $body:block)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of cuda.h.")]
            ///
            /// # Safety
            /// Pointers are valid, as CUDA's documentation of the function says.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "CUDA's name")]
            #[allow(clippy::too_many_arguments, reason = "CUDA's arguments")]
            #[allow(clippy::missing_const_for_fn, reason = "exported")]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
                $crate::call::enter(stringify!($name), |$machine| $body)
            }
        )*

        /// The address of one of these functions.
        pub(crate) fn find(name: &str) -> Option<*const std::ffi::c_void> {
            match name {
                $(stringify!($name) => Some($name as *const std::ffi::c_void),)*
                _ => None,
            }
        }
    };
}

pub mod context;
pub mod copy;
pub mod device;
pub mod entry;
pub mod event;
pub mod graph;
pub mod host;
pub mod memory;
pub mod module;
pub mod pool;
pub mod ptsz;
pub mod stream;
pub mod vmm;

/// The address of an exported function.
pub(crate) fn find(name: &str) -> Option<*const c_void> {
    let subjects = [
        context::find,
        copy::find,
        device::find,
        entry::find,
        event::find,
        graph::find,
        host::find,
        memory::find,
        module::find,
        pool::find,
        ptsz::find,
        stream::find,
        vmm::find,
    ];
    subjects.into_iter().find_map(|find| find(name))
}
