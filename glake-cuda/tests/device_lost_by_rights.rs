//! A law that ends with the device lost, in a process of its own. Fails where there is no GPU.
#![cfg(feature = "gpu")]

#[test]
fn taking_the_right_to_write_under_a_kernel_loses_the_device() {
    let driver = glake_cuda::open().expect("the feature `gpu` needs a GPU");
    glake_testkit::laws::destructive::taking_the_right_to_write_under_a_kernel_loses_the_device(&driver);
}
