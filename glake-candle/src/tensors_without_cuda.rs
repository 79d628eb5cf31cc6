//! What `tensors` has, where candle has no CUDA: no tensor is in a pool.

use std::collections::HashMap;

use candle_core::{Device, Shape, Tensor, WithDType};
use glake_hook::checkpoint::Checkpoint;
use glake_hook::{DeviceId, DevicePtr};

use crate::error::Error;
use crate::weights::Weight;

/// What a tensor in the pool can be of: candle's numbers.
pub trait Element: WithDType {}

impl<T: WithDType> Element for T {}

pub(crate) fn address(_: &Tensor) -> Option<DevicePtr> {
    None
}

#[allow(clippy::extra_unused_type_parameters, reason = "as in `tensors`")]
pub(crate) fn zeros<T: Element>(
    _: glake_hook::Glake,
    _: DeviceId,
    _: Shape,
    device: &Device,
) -> Result<Tensor, Error> {
    Err(Error::NotCuda(device.location()))
}

pub(crate) fn uninit<T: Element>(
    glake: glake_hook::Glake,
    id: DeviceId,
    shape: Shape,
    device: &Device,
) -> Result<Tensor, Error> {
    zeros::<T>(glake, id, shape, device)
}

#[allow(clippy::needless_pass_by_value, reason = "as in `tensors`")]
pub(crate) fn load(
    _: glake_hook::Glake,
    _: DeviceId,
    _: &Checkpoint,
    _: Vec<Weight>,
    device: &Device,
) -> Result<HashMap<String, Tensor>, Error> {
    Err(Error::NotCuda(device.location()))
}

#[derive(Debug)]
pub(crate) struct Workspace;

impl Workspace {
    pub(crate) fn new(_: glake_hook::Glake, _: DeviceId, _: u64, device: &Device) -> Result<Self, Error> {
        Err(Error::NotCuda(device.location()))
    }
}
