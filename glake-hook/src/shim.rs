//! The shim: a shared object called `libcuda.so`, which whoever loads the driver by that name gets.

use std::sync::OnceLock;

use libloading::Library;

use crate::exports;

/// The shim as the build made it.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/shim.so"));

/// The function of a shim that leads to its table.
const TABLE: &[u8] = b"glake_hook_table";

type Table = unsafe extern "C" fn() -> *mut usize;

/// Who answers to `libcuda.so` in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    /// The shim of this hook.
    Here,
    /// The shim of another hook.
    Elsewhere,
    /// The driver, or nobody.
    Driver,
}

/// Loads the shim, once. What came to be bound to the name before stays bound.
pub(crate) fn load() -> Option<usize> {
    static SHIM: OnceLock<Option<usize>> = OnceLock::new();
    *SHIM.get_or_init(|| {
        let library = open()?;
        let table = table_of(&library)?;
        for (at, function) in exports::table().into_iter().enumerate() {
            // SAFETY: the shim's table has as many places, from the same list, and nobody uses it yet.
            let place = unsafe { table.add(at) };
            // SAFETY: as above.
            unsafe { place.write(function) };
        }
        // It stays, as the driver does.
        Box::leak(Box::new(library));
        Some(table.expose_provenance())
    })
}

/// Who has the name now, which is decided by asking if it was not before.
pub(crate) fn bound() -> Bound {
    // SAFETY: whatever it is, the program is about to load it.
    let Ok(library) = (unsafe { Library::new("libcuda.so") }) else { return Bound::Driver };
    match (table_of(&library), load()) {
        (Some(table), Some(ours)) if table.addr() == ours => Bound::Here,
        (Some(_), _) => Bound::Elsewhere,
        (None, _) => Bound::Driver,
    }
}

fn table_of(library: &Library) -> Option<*mut usize> {
    // SAFETY: the type is that of the function in `shim/shim.rs`.
    let table = unsafe { library.get::<Table>(TABLE) }.ok()?;
    // SAFETY: it returns an address.
    Some(unsafe { table() })
}

/// Loads the object from a file in memory.
#[cfg(target_os = "linux")]
fn open() -> Option<Library> {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;

    let file = rustix::fs::memfd_create("libcuda.so", rustix::fs::MemfdFlags::CLOEXEC).ok()?;
    let mut file = std::fs::File::from(file);
    file.write_all(OBJECT).ok()?;
    // SAFETY: the object has no initialisers of its own, and those of the driver are its users'.
    unsafe { Library::new(format!("/proc/self/fd/{}", file.as_raw_fd())) }.ok()
}

#[cfg(not(target_os = "linux"))]
fn open() -> Option<Library> {
    let _ = OBJECT;
    None
}
