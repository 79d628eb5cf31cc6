//! Memory of the pool in candle's hands, and the only unsafe code of this crate.
#![allow(unsafe_code, reason = "cudarc cannot know where the memory comes from")]

use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;

use candle_core::CudaDevice;
use candle_core::cuda::cudarc::cublas::{CudaBlas, sys};
use candle_core::cuda::cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, ValidAsZeroBits};
use glake_hook::checkpoint::Checkpoint;
use glake_hook::{DeviceId, DevicePtr, StreamId};

use crate::error::Error;

/// An allocation of the pool that nobody else knows of, uninitialised or loaded; freed when it is dropped.
#[derive(Debug)]
pub(crate) struct Memory {
    glake: glake_hook::Glake,
    stream: Arc<CudaStream>,
    /// None once a slice has it.
    address: Option<DevicePtr>,
    bytes: u64,
}

impl Memory {
    /// `bytes` bytes of a device's pool for work on `device`'s stream; not none.
    pub(crate) fn allocate(
        glake: glake_hook::Glake,
        id: DeviceId,
        bytes: u64,
        device: &CudaDevice,
    ) -> Result<Self, Error> {
        let stream = device.cuda_stream();
        bind(&stream)?;
        let address = glake.allocate(id, bytes, stream_id(&stream))?;
        Ok(Self { glake, stream, address: Some(address), bytes })
    }

    /// The tensors of a checkpoint that have bytes, by name, loaded to a device's pool for work on `device`'s stream.
    pub(crate) fn load(
        glake: glake_hook::Glake,
        id: DeviceId,
        checkpoint: &Checkpoint,
        device: &CudaDevice,
    ) -> Result<BTreeMap<String, Self>, Error> {
        let stream = device.cuda_stream();
        bind(&stream)?;
        let loaded = glake.load(id, stream_id(&stream), checkpoint)?;
        let with_bytes = loaded.tensors().filter(|(_, tensor)| tensor.bytes > 0);
        let memory = with_bytes.map(|(name, tensor)| {
            let (stream, address) = (Arc::clone(&stream), Some(tensor.ptr));
            (name.to_owned(), Self { glake, stream, address, bytes: tensor.bytes })
        });
        Ok(memory.collect())
    }

    /// As many elements as fit. Dropping the slice frees them through cudarc, whose calls come to the hook.
    ///
    /// All bits are values of the types that candle has, and the host cannot reach the memory, so that contents that
    /// nobody wrote are unspecified and no more.
    pub(crate) fn into_slice<T: DeviceRepr + ValidAsZeroBits>(mut self) -> CudaSlice<T> {
        let address = self.address.take().unwrap_or_default();
        let len = size(self.bytes) / size_of::<T>();
        // SAFETY: the pool has handed out so many elements at the address, for work on this stream, to nobody else,
        // and this gives them up.
        unsafe { self.stream.upgrade_device_ptr(address.0, len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(address) = self.address {
            // A failure leaves the memory allocated.
            let _ = self.glake.free(address, stream_id(&self.stream));
        }
    }
}

/// Memory of the pool that a cuBLAS handle works in.
#[derive(Debug)]
pub(crate) struct Workspace {
    glake: glake_hook::Glake,
    // Held, so that the handle does not outlive the memory unnoticed.
    blas: Arc<CudaBlas>,
    stream: Arc<CudaStream>,
    address: DevicePtr,
}

impl Workspace {
    pub(crate) fn new(
        glake: glake_hook::Glake,
        id: DeviceId,
        bytes: u64,
        device: &CudaDevice,
    ) -> Result<Self, Error> {
        let (blas, stream) = (device.cublas_handle(), device.cuda_stream());
        bind(&stream)?;
        let address = glake.allocate(id, bytes, stream_id(&stream))?;
        let workspace = Self { glake, blas, stream, address };
        let (start, len) = (ptr::with_exposed_provenance_mut(size(address.0)), size(bytes));
        // SAFETY: the memory is valid for work on the handle's stream until `drop` has taken it from the handle.
        let status = unsafe { sys::cublasSetWorkspace_v2(*workspace.blas.handle(), start, len) };
        // Where it was refused, `drop` frees the memory.
        if status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
            Ok(workspace)
        } else {
            Err(Error::Cublas(status as u32))
        }
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // Setting the stream, the same one, takes the handle back to its own workspace.
        // SAFETY: handle and stream are alive: both are held.
        let status = unsafe { sys::cublasSetStream_v2(*self.blas.handle(), self.stream.cu_stream().cast()) };
        if status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
            // Behind the work that uses it; a failure leaves the memory allocated.
            let _ = self.glake.free(self.address, stream_id(&self.stream));
        }
    }
}

/// Makes the stream's context the thread's, as cudarc expects it and the pool's driver calls need it.
fn bind(stream: &Arc<CudaStream>) -> Result<(), Error> {
    stream.context().bind_to_thread().map_err(|error| candle_core::Error::wrap(error).into())
}

fn stream_id(stream: &CudaStream) -> StreamId {
    match stream.cu_stream().expose_provenance() as u64 {
        0 => StreamId::LEGACY,
        raw => StreamId(raw),
    }
}

/// CUDA runs on 64 bits.
fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
