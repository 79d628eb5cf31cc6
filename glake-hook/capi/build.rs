//! Keeps libglake.so loaded: the driver and the shim call it for as long as the process lives.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-cdylib=-Wl,-z,nodelete");
}
