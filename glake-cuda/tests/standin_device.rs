//! What only the CUDA driver does, over the stand-in: work completes late, so that what waits for it shows.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "some tests are about time")]

#[path = "shared/device.rs"]
mod shared;

use glake_core::driver::{Driver as _, VirtualMemory as _};
use glake_core::units::DeviceId;

fn driver() -> glake_cuda::CudaDriver {
    glake_standin::enter().complete(glake_standin::Completion::Lag(2_000));
    glake_cuda::open().expect("the stand-in is there")
}

#[test]
fn asking_where_devices_sit_makes_no_context() {
    let name = "asking_where_devices_sit_makes_no_context";
    glake_standin::alone(name, &[("GLAKE_STANDIN_DEVICES", "8")], |stand_in| {
        let driver = glake_cuda::open().unwrap();
        let seven = driver.device_info(DeviceId(7)).unwrap();
        assert_eq!(seven.pci.unwrap().to_string(), "0000:08:00.0");
        assert_eq!(seven.peers, [0, 1, 2, 3, 4, 5, 6].map(DeviceId));
        assert_eq!(stand_in.n_calls("cuDevicePrimaryCtxRetain"), 0);
        driver.memory_info(DeviceId(7)).unwrap();
        assert_eq!(stand_in.n_calls("cuDevicePrimaryCtxRetain"), 1, "this one needs it");
    });
}
