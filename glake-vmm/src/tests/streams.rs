//! Several streams on one pool: who gets which bytes, behind which waits.

mod bench;
mod captures;
mod ends;
mod faults;
mod for_all;
mod frees;
mod programs;
mod reuse;
