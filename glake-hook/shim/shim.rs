//! The shim: each hooked function jumps to what the hook wrote in a table. Everything else is found in
//! `libcuda.so.1`, which the shim needs.
#![no_std]
#![allow(non_snake_case, non_camel_case_types, reason = "the driver's names")]

use core::arch::naked_asm;
use core::cell::UnsafeCell;

include!("../src/hooked.rs");

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

macro_rules! functions {
    ($($name:ident)*) => {
        /// The functions' places in the table.
        enum At {
            $($name,)*
            End,
        }

        $(
            #[cfg(target_arch = "x86_64")]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            extern "C" fn $name() {
                naked_asm!(
                    "lea rax, [rip + {table}]",
                    "jmp qword ptr [rax + 8 * {at}]",
                    table = sym TABLE,
                    at = const At::$name as usize,
                )
            }

            #[cfg(target_arch = "aarch64")]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            extern "C" fn $name() {
                naked_asm!(
                    "adrp x16, {table}",
                    "add x16, x16, :lo12:{table}",
                    "ldr x16, [x16, #8 * {at}]",
                    "br x16",
                    table = sym TABLE,
                    at = const At::$name as usize,
                )
            }
        )*
    };
}

hooked!(functions);

/// Where the functions jump to.
#[repr(transparent)]
struct Table(UnsafeCell<[usize; At::End as usize]>);

// SAFETY: the hook fills the table before anybody can find the functions, and it is only read then.
unsafe impl Sync for Table {}

static TABLE: Table = Table(UnsafeCell::new([0; At::End as usize]));

/// The table, for the hook to fill.
#[unsafe(no_mangle)]
extern "C" fn glake_hook_table() -> *mut usize {
    TABLE.0.get().cast()
}
