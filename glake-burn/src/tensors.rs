//! burn's devices and tensors as arguments.

use std::fmt;

use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use burn_dispatch::backends::Cube;
use burn_dispatch::{BackendTensor, DispatchDevice, DispatchTensorKind};
use burn_tensor::kind::Basic;
use burn_tensor::{Device, Tensor};
use cubecl::cuda::{CudaDevice, CudaRuntime};
use cubecl_runtime::runtime::Runtime;
use cubecl_runtime::server::ServerError;
use glake_hook::{DeviceId, DevicePtr};

use crate::{Glake, Gpu};

/// Why there is no GPU or no address.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The device or the tensor is of another backend than burn's CUDA.
    #[error("the device is not one of burn's CUDA devices")]
    NotOnCuda,
    /// burn fuses operations, and this crate was built without knowing.
    #[error("burn has the feature `fusion`: give glake-burn the feature `fusion`, too")]
    Fusion,
    /// cubecl has no memory for the tensor: what was to make it failed, or it is a view that cubecl refuses.
    #[error("cubecl has no memory for the tensor: {0}")]
    NoMemory(#[source] Box<ServerError>),
}

impl fmt::Debug for TensorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Glake {
    /// The GPU that `device` is, with autodiff or without. It starts cubecl's server of the device.
    ///
    /// # Errors
    /// [`TensorError::NotOnCuda`].
    pub fn gpu(&self, device: &Device) -> Result<Gpu, TensorError> {
        Ok(self.gpu_of(CudaRuntime::client(&cuda_device(device)?)))
    }

    /// Where `tensor` lies in the device's memory; a view, where its first element does. It waits until
    /// what makes the tensor has been submitted to the device.
    ///
    /// The address holds as long as the tensor, or a clone of it, and as long as cubecl does not move it:
    /// it may move what lies in pages ([`Granularity::Page`](crate::Granularity::Page)) when it is
    /// short of memory or collects.
    ///
    /// # Errors
    /// The tensor is not on a CUDA device, or has no memory.
    pub fn address<const D: usize, K: Basic>(&self, tensor: &Tensor<D, K>) -> Result<DevicePtr, TensorError> {
        address(tensor)
    }

    /// Whether `tensor` lies in glake's memory. `false` also where it has no address.
    #[must_use]
    pub fn owns<const D: usize, K: Basic>(&self, tensor: &Tensor<D, K>) -> bool {
        self.address(tensor).is_ok_and(|address| self.hook.owns(address))
    }
}

/// cubecl's device behind one of burn's, with autodiff or without.
fn cuda_device(device: &Device) -> Result<CudaDevice, TensorError> {
    match device.as_dispatch().clone().inner() {
        DispatchDevice::Cube(CubeDevice::Cuda(cuda)) => Ok(cuda),
        _ => Err(TensorError::NotOnCuda),
    }
}

/// The device behind one of burn's, as glake counts them.
pub(crate) fn cuda(device: &Device) -> Result<DeviceId, TensorError> {
    Ok(DeviceId(u32::from(CudaRuntime::client(&cuda_device(device)?).service_id().device.index_id)))
}

/// [`Glake::address`].
pub(crate) fn address<const D: usize, K: Basic>(tensor: &Tensor<D, K>) -> Result<DevicePtr, TensorError> {
    let kind = match tensor.clone().into_dispatch().kind {
        DispatchTensorKind::Autodiff(kind) => *kind,
        kind => kind,
    };
    let DispatchTensorKind::Cube(tensor) = kind else { return Err(TensorError::NotOnCuda) };
    let CubeTensor { client, handle, device: CubeDevice::Cuda(_), .. } = cube(tensor)? else {
        return Err(TensorError::NotOnCuda);
    };
    let managed = client
        .get_resource::<<CudaRuntime as Runtime>::Server>(handle)
        .map_err(|error| TensorError::NoMemory(Box::new(error)))?;
    Ok(DevicePtr(managed.resource().ptr))
}

/// The tensor of cubecl in one of the backend's.
#[cfg(not(feature = "fusion"))]
fn cube(tensor: BackendTensor<Cube>) -> Result<CubeTensor, TensorError> {
    /// With burn's feature `fusion` on and this crate's off the types differ, and no test of a feature
    /// tells: features are each crate's own.
    fn downcast(tensor: impl std::any::Any) -> Result<CubeTensor, TensorError> {
        let tensor: Box<dyn std::any::Any> = Box::new(tensor);
        tensor.downcast().map(|tensor| *tensor).map_err(|_| TensorError::Fusion)
    }
    match tensor {
        BackendTensor::Float(tensor) => downcast(tensor),
        BackendTensor::Int(tensor) => downcast(tensor),
        BackendTensor::Bool(tensor) => downcast(tensor),
        BackendTensor::Quantized(tensor) => downcast(tensor),
        tensor @ BackendTensor::Autodiff(_) => downcast(tensor.autodiff_inner()),
    }
}

/// The tensor of cubecl in one of the backend's: operations that burn holds back are submitted first.
#[cfg(feature = "fusion")]
#[allow(clippy::unnecessary_wraps, reason = "without fusion it can fail")]
fn cube(tensor: BackendTensor<Cube>) -> Result<CubeTensor, TensorError> {
    use burn_cubecl::CubeBackend;

    Ok(match tensor {
        BackendTensor::Float(tensor) => tensor.client.clone().resolve_tensor_float::<CubeBackend>(tensor),
        BackendTensor::Int(tensor) => tensor.client.clone().resolve_tensor_int::<CubeBackend>(tensor),
        BackendTensor::Bool(tensor) => tensor.client.clone().resolve_tensor_bool::<CubeBackend>(tensor),
        BackendTensor::Quantized(tensor) => tensor.client.clone().resolve_tensor_int::<CubeBackend>(tensor),
        tensor @ BackendTensor::Autodiff(_) => {
            let tensor = tensor.autodiff_inner();
            tensor.client.clone().resolve_tensor_float::<CubeBackend>(tensor)
        }
    })
}
