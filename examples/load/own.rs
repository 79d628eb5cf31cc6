//! A small checkpoint to load where none is named.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;

use glake_testkit::rng::Rng;
use safetensors::tensor::{Dtype, TensorView, serialize};
use tempfile::TempDir;

const N_LAYERS: usize = 3;
const WIDTH: usize = 1024;

/// A sharded checkpoint of a few MiB, one shard for each layer, in a folder that goes when it is dropped.
pub fn checkpoint() -> Result<TempDir, Box<dyn Error>> {
    let folder = TempDir::new()?;
    let mut weight_map = BTreeMap::new();
    for layer in 0..N_LAYERS {
        let file = format!("model-{:05}-of-{N_LAYERS:05}.safetensors", layer + 1);
        let weights = weights(layer);
        let views = weights
            .iter()
            .map(|(name, shape, data)| Ok((name, TensorView::new(Dtype::BF16, shape.clone(), data)?)))
            .collect::<Result<Vec<_>, safetensors::SafeTensorError>>();
        let content = views.and_then(|views| serialize(views, None)).map_err(|error| format!("{error:?}"))?;
        fs::write(folder.path().join(&file), content)?;
        weight_map.extend(weights.into_iter().map(|(name, ..)| (name, file.clone())));
    }
    let index = serde_json::json!({ "weight_map": weight_map });
    fs::write(folder.path().join("model.safetensors.index.json"), index.to_string())?;
    Ok(folder)
}

/// Name, shape and bytes of a layer's tensors.
fn weights(layer: usize) -> Vec<(String, Vec<usize>, Vec<u8>)> {
    let shapes = [
        ("mlp.weight", vec![WIDTH, WIDTH]),
        ("attention.weight", vec![WIDTH, 640]),
        ("norm.weight", vec![WIDTH]),
    ];
    let mut rng = Rng::new(layer as u64);
    let tensor = |(name, shape): (&str, Vec<usize>)| {
        let n_words = shape.iter().product::<usize>() * 2 / 8;
        let data = (0..n_words).flat_map(|_| rng.next().to_le_bytes()).collect();
        (format!("layers.{layer}.{name}"), shape, data)
    };
    shapes.into_iter().map(tensor).collect()
}
