//! What a checkpoint's tensors are in candle's terms: pure.

use candle_core::{DType, Shape, Tensor};
use glake_hook::checkpoint::{self, Checkpoint};

use crate::error::Error;

/// A tensor to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
}

/// The tensors of a checkpoint, in its order.
///
/// # Errors
/// candle has no tensors of the type of one of them.
pub(crate) fn of(checkpoint: &Checkpoint) -> Result<Vec<Weight>, Error> {
    checkpoint.tensors().iter().map(weight).collect()
}

fn weight(tensor: &checkpoint::Tensor) -> Result<Weight, Error> {
    let refused = || Error::Dtype { tensor: tensor.name.clone(), dtype: tensor.dtype };
    let dtype = DType::try_from(tensor.dtype).map_err(|_| refused())?;
    // CUDA runs on 64 bits.
    let length = |length: &u64| usize::try_from(*length).unwrap_or(usize::MAX);
    let shape = Shape::from(tensor.shape.iter().map(length).collect::<Vec<_>>());
    Ok(Weight { name: tensor.name.as_ref().to_owned(), dtype, shape })
}

/// The tensor in `dtype`, if it is of another type of floating-point numbers.
///
/// # Errors
/// candle's.
pub(crate) fn converted(tensor: Tensor, dtype: DType) -> candle_core::Result<Tensor> {
    if tensor.dtype().is_float() { tensor.to_dtype(dtype) } else { Ok(tensor) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use candle_core::Device;
    use candle_core::safetensors::save;

    use super::*;

    /// A checkpoint of these tensors, in a file that is gone again.
    fn checkpoint(tensors: &HashMap<&str, Tensor>, test: &str) -> Checkpoint {
        let path =
            std::env::temp_dir().join(format!("glake-candle-{}-{test}.safetensors", std::process::id()));
        save(tensors, &path).unwrap();
        let opened = Checkpoint::open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        opened
    }

    #[test]
    fn tensors_keep_name_type_and_shape() {
        let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &Device::Cpu).unwrap();
        let made = [
            ("scalar", zeros(&[], DType::F32)),
            ("nothing", zeros(&[4, 0], DType::F16)),
            ("matrix", zeros(&[3, 5], DType::BF16)),
            ("ids", zeros(&[7], DType::I64)),
            ("mask", zeros(&[2, 2, 2], DType::U8)),
        ];
        let found = of(&checkpoint(&made.clone().into(), "kept")).unwrap();
        assert_eq!(found.len(), made.len());
        for (name, tensor) in made {
            let weight = found.iter().find(|weight| weight.name == name).unwrap();
            assert_eq!((weight.dtype, &weight.shape), (tensor.dtype(), tensor.shape()), "{name}");
        }
    }

    #[test]
    fn what_candle_has_no_type_for_is_named() {
        let header = r#"{"flags":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}}"#;
        let path = std::env::temp_dir().join(format!("glake-candle-{}-bool.safetensors", std::process::id()));
        std::fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0, 1]].concat())
            .unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        let error = of(&checkpoint).unwrap_err();
        assert!(error.to_string().contains("\"flags\"") && error.to_string().contains("only"), "{error}");
        assert_eq!(of(&checkpoint.only(|tensor| &*tensor.name != "flags")).unwrap(), []);
    }

    #[test]
    fn only_numbers_with_a_point_are_converted() {
        let tensor = |dtype| Tensor::ones(3, dtype, &Device::Cpu).unwrap();
        for (from, becomes) in
            [(DType::F32, DType::BF16), (DType::BF16, DType::BF16), (DType::I64, DType::I64)]
        {
            assert_eq!(converted(tensor(from), DType::BF16).unwrap().dtype(), becomes);
        }
    }
}
