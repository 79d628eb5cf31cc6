//! Allocators made of an allocator.
//!
//! Each adaptor adds one thing and leaves the rest to the allocator inside, so they stack in any
//! order: `Locked<Limited<Tagged<Pool>>>` is a pool shared between threads, with a quota, that
//! says who holds the memory when there is none left.
//!
//! - [`Locked`]: one allocator for many threads;
//! - [`Limited`]: a quota of requested bytes, exact to the byte;
//! - [`Recorded`]: writes a [trace](crate::trace) that can be replayed;
//! - [`Tagged`]: live bytes by tag.
//!
//! An adaptor knows the allocations that were made through it. A free of another address goes to
//! the allocator inside, which decides.

mod limited;
mod locked;
mod recorded;
mod tagged;
mod tags;
#[cfg(test)]
mod tests;

pub use limited::Limited;
pub use locked::Locked;
pub use recorded::Recorded;
pub use tagged::Tagged;
pub use tags::{TagId, Tags};
