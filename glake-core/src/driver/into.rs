//! What stands for a driver.

use std::sync::Arc;

use super::Driver;

/// A driver by value or shared: what a pool can be built on.
pub trait IntoDriver {
    /// The driver, to be shared.
    fn into_driver(self) -> Arc<dyn Driver>;
}

impl<D: Driver + 'static> IntoDriver for D {
    fn into_driver(self) -> Arc<dyn Driver> {
        Arc::new(self)
    }
}

impl<D: Driver + 'static> IntoDriver for Arc<D> {
    fn into_driver(self) -> Arc<dyn Driver> {
        self
    }
}

impl IntoDriver for Arc<dyn Driver> {
    fn into_driver(self) -> Arc<dyn Driver> {
        self
    }
}
