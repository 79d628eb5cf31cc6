//! Checkpoints, loaded into burn's modules.
//!
//! cubecl makes tensors of bytes on the host, and has no way to take memory that is filled. So the tensors are made
//! empty, and the engine writes the files' bytes to where they lie: nothing passes through a buffer of burn's.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use burn_core::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn_tensor::kind::Basic;
use burn_tensor::{DType, Device, Int, Shape, Tensor};
use glake_hook::checkpoint::{self, Checkpoint, Dtype};
use glake_hook::{DevicePtr, StreamId, WithCauses};

use crate::naming::{Order, Origin, Path};
use crate::tensors::{self, TensorError};
use crate::{Gpu, Granularity};

/// Why a module was not loaded. It is as it was.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A tensor of the file has another shape than the parameter.
    #[error(
        "the parameter {parameter:?} needs {expected:?} in the file, which has {found:?}: see `Origin`, or load another \
         configuration of the model"
    )]
    Shape {
        /// The parameter.
        parameter: Box<str>,
        /// What the file should have.
        expected: Box<[usize]>,
        /// What it has.
        found: Box<[u64]>,
    },
    /// A tensor of the file has a type that the parameter cannot have.
    #[error(
        "the parameter {parameter:?} cannot be of {found}: convert the file, or leave the tensor out by `Checkpoint::only`"
    )]
    Dtype {
        /// The parameter.
        parameter: Box<str>,
        /// What the file has.
        found: Dtype,
    },
    /// A parameter is not on this GPU.
    #[error("the parameter {0:?} is on another device: make the module on this one, or move it there first")]
    Elsewhere(Box<str>),
    /// A tensor could not be made.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The device failed earlier, or while it was waited for.
    #[error("the device failed before anything was loaded: {0}")]
    Device(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The bytes did not arrive.
    #[error("{}", WithCauses(&**.0))]
    Load(Box<glake_hook::LoadError>),
}

impl fmt::Debug for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What became of a module's parameters and of a checkpoint's tensors, each by its name there, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "parameters that are missing in the files keep their values"]
pub struct Applied {
    /// Parameters that were loaded.
    pub loaded: Vec<String>,
    /// Parameters that the files do not have, or not for each that asks, and booleans, which are not loaded. They keep their values.
    pub missing: Vec<String>,
    /// Tensors of the files that no parameter takes.
    pub unused: Vec<String>,
    /// Bytes that were loaded.
    pub bytes: u64,
}

impl Gpu {
    /// Loads a checkpoint into the parameters of `module`, which are on this GPU, over every link of the machine, and
    /// blocks until they are there. Each parameter is an allocation of glake, of the file's type.
    ///
    /// Parameters that burn has not initialised yet are not initialised first. Others are freed when the new ones are
    /// there. It waits for the calling thread's work on the device.
    ///
    /// Not for modules with linear layers of `LinearLayout::Col`: burn turns their weights round once more.
    ///
    /// # Errors
    /// [`LoadError`]; the module is as before.
    pub fn load<M: Module>(
        &self,
        module: &mut M,
        checkpoint: &Checkpoint,
        origin: Origin,
    ) -> Result<Applied, LoadError> {
        let mut plan = Plan::new(self, checkpoint, origin);
        module.visit(&mut plan);
        let Plan { slots, missing, error, .. } = plan;
        if let Some(error) = error {
            return Err(error);
        }
        let (made, addresses) = self.make(slots)?;
        let wanted = checkpoint.only(|tensor| addresses.contains_key(&*tensor.name));
        let names = |checkpoint: &Checkpoint| -> BTreeSet<String> {
            checkpoint.tensors().iter().map(|tensor| tensor.name.to_string()).collect()
        };
        let place = |tensor: &checkpoint::Tensor| addresses.get(&*tensor.name).copied().unwrap_or_default();
        // Everything is waited for already, and so any stream is behind it.
        let filled = self.hook.fill(self.device(), StreamId::LEGACY, &wanted, place);
        filled.map_err(|error| LoadError::Load(Box::new(error)))?;
        let loaded = made.keys().cloned().collect();
        *module = module.clone().map(&mut Apply { path: Path::default(), made });
        let unused = names(checkpoint).difference(&names(&wanted)).cloned().collect();
        Ok(Applied { loaded, missing, unused, bytes: wanted.bytes() })
    }

    /// Makes the tensors, each an allocation that cubecl does not move; waits until the memory is theirs.
    fn make(
        &self,
        slots: Vec<Slot>,
    ) -> Result<(BTreeMap<String, Made>, BTreeMap<String, DevicePtr>), LoadError> {
        let by_tensors = Self { granularity: Granularity::Tensor, ..self.clone() };
        by_tensors.run(|| {
            let (mut made, mut addresses, mut device) = (BTreeMap::new(), BTreeMap::new(), None);
            for Slot { parameter, source, order, make, .. } in slots {
                let Empty { tensor, address, on } = make()?;
                addresses.insert(source, address);
                made.insert(parameter, Made { tensor, order });
                device = Some(on);
            }
            match device.map(|device| device.sync()) {
                Some(Err(error)) => Err(LoadError::Device(Box::new(error))),
                _ => Ok((made, addresses)),
            }
        })
    }
}

/// A parameter to be loaded.
struct Slot {
    parameter: String,
    /// The tensor's name in the checkpoint.
    source: String,
    order: Order,
    make: Box<dyn FnOnce() -> Result<Empty, TensorError> + Send>,
}

/// A tensor that waits for its bytes.
struct Empty {
    /// A `Tensor` of the parameter's rank and kind.
    tensor: Box<dyn Any + Send>,
    address: DevicePtr,
    on: Device,
}

struct Made {
    tensor: Box<dyn Any + Send>,
    order: Order,
}

fn empty<const D: usize, K: Basic + 'static>(
    shape: Vec<usize>,
    device: Device,
    dtype: DType,
) -> Result<Empty, TensorError>
where
    Tensor<D, K>: Send,
{
    let tensor = Tensor::<D, K>::empty(Shape::from(shape), (&device, dtype));
    // Nothing lies nowhere.
    let has_elements = tensor.shape().num_elements() > 0;
    let address = if has_elements { tensors::address(&tensor)? } else { DevicePtr::default() };
    Ok(Empty { tensor: Box::new(tensor), address, on: device })
}

/// Looks what a module's parameters need.
struct Plan<'a> {
    gpu: &'a Gpu,
    checkpoint: &'a Checkpoint,
    origin: Origin,
    path: Path,
    slots: Vec<Slot>,
    /// Tensors of the checkpoint that parameters take.
    taken: BTreeSet<String>,
    missing: Vec<String>,
    /// The first.
    error: Option<LoadError>,
}

impl<'a> Plan<'a> {
    fn new(gpu: &'a Gpu, checkpoint: &'a Checkpoint, origin: Origin) -> Self {
        let (path, slots, taken, missing) = (Path::default(), Vec::new(), BTreeSet::new(), Vec::new());
        Self { gpu, checkpoint, origin, path, slots, taken, missing, error: None }
    }

    fn parameter<const D: usize, K: Basic + 'static>(
        &mut self,
        shape: &Shape,
        device: Device,
        dtype: impl FnOnce(Dtype) -> Option<DType>,
    ) where
        Tensor<D, K>: Send,
    {
        let parameter = self.path.name();
        let (source, order) = self.path.source(self.origin, D);
        // What another parameter has taken is not there twice.
        let tensor = self.checkpoint.get(&source).filter(|tensor| !self.taken.contains(&*tensor.name));
        let Some(tensor) = tensor else { return self.missing.push(parameter) };
        match self.check(tensor, &parameter, order.in_file(shape), &device, dtype) {
            Ok((shape, dtype)) => {
                let make = Box::new(move || empty::<D, K>(shape, device, dtype));
                self.taken.insert(source.clone());
                self.slots.push(Slot { parameter, source, order, make });
            }
            Err(error) => self.error = self.error.take().or(Some(error)),
        }
    }

    /// The shape and the type of the tensor to be made.
    fn check(
        &self,
        tensor: &checkpoint::Tensor,
        parameter: &str,
        expected: Vec<usize>,
        device: &Device,
        dtype: impl FnOnce(Dtype) -> Option<DType>,
    ) -> Result<(Vec<usize>, DType), LoadError> {
        if tensors::cuda(device)? != self.gpu.device() {
            return Err(LoadError::Elsewhere(parameter.into()));
        }
        let (found, parameter) = (tensor.shape.clone(), parameter.into());
        if !expected.iter().map(|length| *length as u64).eq(found.iter().copied()) {
            return Err(LoadError::Shape { parameter, expected: expected.into(), found });
        }
        let found = tensor.dtype;
        let dtype = dtype(found).ok_or(LoadError::Dtype { parameter, found })?;
        Ok((expected, dtype))
    }
}

impl ModuleVisitor for Plan<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.parameter::<D, burn_tensor::Float>(&param.lazy_shape(), param.lazy_device(), float);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.parameter::<D, Int>(&param.lazy_shape(), param.lazy_device(), int);
    }

    fn visit_bool<const D: usize>(&mut self, _: &Param<Tensor<D, burn_tensor::Bool>>) {
        self.missing.push(self.path.name());
    }
}

/// Puts what was loaded into a module.
struct Apply {
    path: Path,
    made: BTreeMap<String, Made>,
}

impl Apply {
    /// The tensor for the parameter where the walk is.
    fn take<const D: usize, K: Basic + 'static>(&mut self) -> Option<Tensor<D, K>> {
        let Made { tensor, order } = self.made.remove(&self.path.name())?;
        let tensor = *tensor.downcast::<Tensor<D, K>>().ok()?;
        Some(match order {
            Order::AsInModule => tensor,
            Order::Transposed => tensor.transpose(),
        })
    }
}

impl ModuleMapper for Apply {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let id = param.id;
        match self.take() {
            Some(tensor) => param.transform_for_load(tensor, id),
            None => param,
        }
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let id = param.id;
        match self.take() {
            Some(tensor) => param.transform_for_load(tensor, id),
            None => param,
        }
    }
}

fn float(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::F64 => DType::F64,
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        _ => return None,
    })
}

fn int(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::I64 => DType::I64,
        Dtype::I32 => DType::I32,
        Dtype::I16 => DType::I16,
        Dtype::I8 => DType::I8,
        Dtype::U64 => DType::U64,
        Dtype::U32 => DType::U32,
        Dtype::U16 => DType::U16,
        Dtype::U8 => DType::U8,
        _ => return None,
    })
}
