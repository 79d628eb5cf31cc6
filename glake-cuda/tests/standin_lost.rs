//! Laws that end with the device lost, over the stand-in, each in a process of its own.
#![allow(clippy::expect_used, reason = "tests panic to fail")]

use glake_core::driver::Driver;
use glake_testkit::laws::destructive;

fn alone(name: &str, law: fn(&dyn Driver)) {
    glake_standin::alone(name, &[("GLAKE_STANDIN_COMPLETION", "manual")], |_| {
        law(&glake_cuda::open().expect("the stand-in is there"));
    });
}

#[test]
fn unmapping_under_a_kernel_loses_the_device() {
    let law = destructive::unmapping_under_a_kernel_loses_the_device;
    alone("unmapping_under_a_kernel_loses_the_device", law);
}

#[test]
fn taking_the_right_to_write_under_a_kernel_loses_the_device() {
    let law = destructive::taking_the_right_to_write_under_a_kernel_loses_the_device;
    alone("taking_the_right_to_write_under_a_kernel_loses_the_device", law);
}
