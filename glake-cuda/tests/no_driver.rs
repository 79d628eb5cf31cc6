//! Without a GPU, opening says so, and nothing panics.

use glake_cuda::OpenError;

#[test]
fn opening_without_a_driver_is_an_error_with_advice() {
    match glake_cuda::open() {
        Ok(driver) => assert!(glake_core::driver::Driver::n_devices(&driver) > 0),
        Err(error @ OpenError::NoDriver) => {
            assert!(error.to_string().contains("install NVIDIA's driver"), "{error}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
