//! Locks and atomics, which a model checker replaces.

#[cfg(all(loom, test))]
pub(crate) use loom::sync::atomic::AtomicU32;
#[cfg(all(loom, test))]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(all(loom, test)))]
pub(crate) use std::sync::atomic::AtomicU32;
#[cfg(not(all(loom, test)))]
pub(crate) use std::sync::{Mutex, MutexGuard};
