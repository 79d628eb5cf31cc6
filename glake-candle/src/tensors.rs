//! Where a tensor lies, and tensors in the pool.

use std::collections::HashMap;

use candle_core::cuda::CudaDType;
use candle_core::cuda::cudarc::driver::{CudaSlice, DevicePtr as _, DeviceRepr, ValidAsZeroBits};
use candle_core::cuda_backend::CudaStorageSlice as Slice;
use candle_core::{CudaDevice, CudaStorage, DType, Device, Shape, Storage, Tensor, WithDType};
use glake_hook::checkpoint::Checkpoint;
use glake_hook::{DeviceId, DevicePtr};

use crate::error::Error;
use crate::foreign::{self, Memory};
use crate::weights::Weight;

/// What a tensor in the pool can be of: candle's numbers.
pub trait Element: WithDType + CudaDType + DeviceRepr + ValidAsZeroBits {}

impl<T: WithDType + CudaDType + DeviceRepr + ValidAsZeroBits> Element for T {}

pub(crate) fn address(tensor: &Tensor) -> Option<DevicePtr> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else { return None };
    let start = match &storage.slice {
        Slice::U8(slice)
        | Slice::F6E2M3(slice)
        | Slice::F6E3M2(slice)
        | Slice::F4(slice)
        | Slice::F8E8M0(slice) => start(slice),
        Slice::U32(slice) => start(slice),
        Slice::I16(slice) => start(slice),
        Slice::I32(slice) => start(slice),
        Slice::I64(slice) => start(slice),
        Slice::BF16(slice) => start(slice),
        Slice::F16(slice) => start(slice),
        Slice::F32(slice) => start(slice),
        Slice::F64(slice) => start(slice),
        Slice::F8E4M3(slice) => start(slice),
    };
    let offset_bytes = layout.start_offset() * tensor.dtype().size_in_bytes();
    DevicePtr(start).checked_add(offset_bytes as u64)
}

fn start<T>(slice: &CudaSlice<T>) -> u64 {
    slice.device_ptr(slice.stream()).0
}

pub(crate) fn zeros<T: Element>(
    glake: glake_hook::Glake,
    id: DeviceId,
    shape: Shape,
    device: &Device,
) -> Result<Tensor, Error> {
    tensor::<T>(glake, id, shape, device, |slice, device| {
        device.cuda_stream().memset_zeros(slice).map_err(|error| candle_core::Error::wrap(error).into())
    })
}

pub(crate) fn uninit<T: Element>(
    glake: glake_hook::Glake,
    id: DeviceId,
    shape: Shape,
    device: &Device,
) -> Result<Tensor, Error> {
    tensor::<T>(glake, id, shape, device, |_, _| Ok(()))
}

fn tensor<T: Element>(
    glake: glake_hook::Glake,
    id: DeviceId,
    shape: Shape,
    device: &Device,
    fill: impl FnOnce(&mut CudaSlice<T>, &CudaDevice) -> Result<(), Error>,
) -> Result<Tensor, Error> {
    let cuda = cuda(device)?;
    // Nothing is allocated for nothing.
    if shape.elem_count() == 0 {
        return Ok(Tensor::zeros(shape, T::DTYPE, device)?);
    }
    let bytes = shape.elem_count().checked_mul(size_of::<T>()).map_or(u64::MAX, |bytes| bytes as u64);
    let mut slice = Memory::allocate(glake, id, bytes, cuda)?.into_slice::<T>();
    fill(&mut slice, cuda)?;
    let storage = CudaStorage::wrap_cuda_slice(slice, cuda.clone());
    Ok(Tensor::from((Storage::Cuda(storage), shape)))
}

/// The tensors of a checkpoint, which are `weights`, loaded to the pool.
pub(crate) fn load(
    glake: glake_hook::Glake,
    id: DeviceId,
    checkpoint: &Checkpoint,
    weights: Vec<Weight>,
    device: &Device,
) -> Result<HashMap<String, Tensor>, Error> {
    let cuda = cuda(device)?;
    let mut loaded = Memory::load(glake, id, checkpoint, cuda)?;
    let mut tensors = HashMap::with_capacity(weights.len());
    for Weight { name, dtype, shape } in weights {
        let tensor = match loaded.remove(&name) {
            Some(memory) => {
                let storage = CudaStorage { slice: typed(memory, dtype)?, device: cuda.clone() };
                Tensor::from((Storage::Cuda(storage), shape))
            }
            // Nothing is allocated for nothing.
            None => Tensor::zeros(shape, dtype, device)?,
        };
        tensors.insert(name, tensor);
    }
    Ok(tensors)
}

/// Memory as elements of a type.
fn typed(memory: Memory, dtype: DType) -> Result<Slice, Error> {
    Ok(match dtype {
        DType::U8 => Slice::U8(memory.into_slice()),
        DType::U32 => Slice::U32(memory.into_slice()),
        DType::I16 => Slice::I16(memory.into_slice()),
        DType::I32 => Slice::I32(memory.into_slice()),
        DType::I64 => Slice::I64(memory.into_slice()),
        DType::BF16 => Slice::BF16(memory.into_slice()),
        DType::F16 => Slice::F16(memory.into_slice()),
        DType::F32 => Slice::F32(memory.into_slice()),
        DType::F64 => Slice::F64(memory.into_slice()),
        DType::F8E4M3 => Slice::F8E4M3(memory.into_slice()),
        DType::F8E8M0 => Slice::F8E8M0(memory.into_slice()),
        DType::F6E2M3 => Slice::F6E2M3(memory.into_slice()),
        DType::F6E3M2 => Slice::F6E3M2(memory.into_slice()),
        DType::F4 => Slice::F4(memory.into_slice()),
        other => return Err(Error::NotOnCuda(other)),
    })
}

#[derive(Debug)]
pub(crate) struct Workspace {
    _memory: foreign::Workspace,
}

impl Workspace {
    pub(crate) fn new(
        glake: glake_hook::Glake,
        id: DeviceId,
        bytes: u64,
        device: &Device,
    ) -> Result<Self, Error> {
        Ok(Self { _memory: foreign::Workspace::new(glake, id, bytes, cuda(device)?)? })
    }
}

fn cuda(device: &Device) -> Result<&CudaDevice, Error> {
    match device {
        Device::Cuda(device) => Ok(device),
        other => Err(Error::NotCuda(other.location())),
    }
}
