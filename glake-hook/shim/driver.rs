//! A shared object without contents, in place of the driver while the shim is linked.
#![no_std]

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
