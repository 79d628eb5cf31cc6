//! A sharded safetensors checkpoint of a Llama-shaped model, whose bytes can be made again.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::args::Float;
use crate::random::Random;

const VOCABULARY: u64 = 32_000;
/// The longest shard, as such checkpoints are cut.
const SHARD_BYTES: u64 = 4 << 30;
const INDEX: &str = "model.safetensors.index.json";
/// Bytes that are made at once.
const BLOCK_BYTES: usize = 1 << 20;

/// A tensor of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    pub(crate) name: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) bytes: u64,
}

/// Which tensors there are, by shards.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    dtype: &'static str,
    seed: u64,
    shards: Vec<Vec<Weight>>,
}

impl Layout {
    /// A model of width `dim`, with as many layers as `bytes` hold, at least one.
    pub(crate) fn new(dtype: Float, dim: u64, bytes: u64, seed: u64) -> Self {
        let (dtype, size) = match dtype {
            Float::F32 => ("F32", 4),
            Float::Bf16 => ("BF16", 2),
        };
        let weight = |name: String, shape: &[u64]| {
            let bytes = size * shape.iter().product::<u64>();
            Weight { name, shape: shape.to_vec(), bytes }
        };
        let mut weights = vec![
            weight("model.embed_tokens.weight".to_owned(), &[VOCABULARY, dim]),
            weight("model.norm.weight".to_owned(), &[dim]),
            weight("lm_head.weight".to_owned(), &[VOCABULARY, dim]),
        ];
        let mut left = bytes.saturating_sub(sum(&weights));
        // Llama 2's: 11,008 for 4096.
        let hidden = (dim * 8 / 3).next_multiple_of(256);
        for layer in 0.. {
            let of_layer: Vec<_> = [
                ("self_attn.q_proj", vec![dim, dim]),
                ("self_attn.k_proj", vec![dim, dim]),
                ("self_attn.v_proj", vec![dim, dim]),
                ("self_attn.o_proj", vec![dim, dim]),
                ("mlp.gate_proj", vec![hidden, dim]),
                ("mlp.up_proj", vec![hidden, dim]),
                ("mlp.down_proj", vec![dim, hidden]),
                ("input_layernorm", vec![dim]),
                ("post_attention_layernorm", vec![dim]),
            ]
            .into_iter()
            .map(|(name, shape)| weight(format!("model.layers.{layer}.{name}.weight"), &shape))
            .collect();
            let taken = sum(&of_layer);
            if layer > 0 && taken > left {
                break;
            }
            left = left.saturating_sub(taken);
            weights.extend(of_layer);
        }
        Self { dtype, seed, shards: cut(weights, SHARD_BYTES) }
    }

    pub(crate) fn weights(&self) -> impl Iterator<Item = &Weight> {
        self.shards.iter().flatten()
    }

    pub(crate) fn n_shards(&self) -> usize {
        self.shards.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.weights().map(|weight| weight.bytes).sum()
    }

    fn file(&self, shard: usize) -> String {
        format!("model-{:05}-of-{:05}.safetensors", shard + 1, self.n_shards())
    }

    pub(crate) fn paths(&self, folder: &Path) -> Vec<PathBuf> {
        (0..self.n_shards()).map(|shard| folder.join(self.file(shard))).collect()
    }

    /// Writes the files, unless files of these lengths are there.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let mut index = Map::new();
        for (shard, (weights, path)) in self.shards.iter().zip(self.paths(folder)).enumerate() {
            index.extend(weights.iter().map(|weight| (weight.name.clone(), json!(self.file(shard)))));
            let header = self.header(weights);
            let bytes = 8 + header.len() as u64 + sum(weights);
            if fs::metadata(&path).is_ok_and(|file| file.len() == bytes) {
                continue;
            }
            let mut file = BufWriter::with_capacity(BLOCK_BYTES, File::create(path)?);
            file.write_all(&(header.len() as u64).to_le_bytes())?;
            file.write_all(header.as_bytes())?;
            for weight in weights {
                self.for_each_block(weight, |block| file.write_all(block))?;
            }
            file.flush()?;
        }
        fs::write(folder.join(INDEX), json!({ "weight_map": index }).to_string())
    }

    fn header(&self, weights: &[Weight]) -> String {
        let mut at = 0;
        let entry = |weight: &Weight| {
            let start = at;
            at += weight.bytes;
            let entry = json!({ "dtype": self.dtype, "shape": weight.shape, "data_offsets": [start, at] });
            (weight.name.clone(), entry)
        };
        Value::from(weights.iter().map(entry).collect::<Map<_, _>>()).to_string()
    }

    /// Whether `found` are the bytes of a tensor.
    pub(crate) fn is(&self, weight: &Weight, found: &[u8]) -> bool {
        let mut rest = found;
        let compared = self.for_each_block(weight, |block| {
            let part = rest.split_off(..block.len());
            if part == Some(block) { Ok(()) } else { Err(()) }
        });
        compared.is_ok() && rest.is_empty()
    }

    /// Makes a tensor's bytes, a block at a time.
    fn for_each_block<E>(
        &self,
        weight: &Weight,
        mut work: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut random = Random::new(
            weight
                .name
                .bytes()
                .fold(self.seed, |seed, byte| seed.wrapping_mul(0x100_0000_01b3) ^ u64::from(byte)),
        );
        let mut block = vec![0; BLOCK_BYTES];
        let mut left = weight.bytes;
        while left > 0 {
            let n = usize::try_from(left).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
            for word in block[..n].chunks_mut(8) {
                word.copy_from_slice(&random.next().to_le_bytes()[..word.len()]);
            }
            work(&block[..n])?;
            left -= n as u64;
        }
        Ok(())
    }
}

fn sum(weights: &[Weight]) -> u64 {
    weights.iter().map(|weight| weight.bytes).sum()
}

/// Shards of at most so many bytes, unless a tensor is longer.
fn cut(weights: Vec<Weight>, shard_bytes: u64) -> Vec<Vec<Weight>> {
    let mut shards: Vec<Vec<Weight>> = Vec::new();
    for weight in weights {
        match shards.last_mut() {
            Some(last) if sum(last) + weight.bytes <= shard_bytes => last.push(weight),
            _ => shards.push(vec![weight]),
        }
    }
    shards
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_as_large_as_is_asked_for() {
        let layout = Layout::new(Float::Bf16, 4096, 8 << 30, 1);
        assert!(layout.bytes() <= 8 << 30 && layout.bytes() > 7 << 30, "{}", layout.bytes());
        assert_eq!(layout.n_shards(), 2);
        let names: std::collections::BTreeSet<_> = layout.weights().map(|weight| &weight.name).collect();
        assert_eq!(names.len(), layout.weights().count());
        assert_eq!(Layout::new(Float::F32, 64, 0, 1).weights().count(), 12);
    }

    #[test]
    fn shards_are_cut_between_tensors() {
        let weight = |bytes| Weight { name: String::new(), shape: vec![], bytes };
        let cut = cut([3, 4, 1, 9, 2].map(weight).to_vec(), 8);
        let bytes: Vec<Vec<u64>> =
            cut.iter().map(|shard| shard.iter().map(|weight| weight.bytes).collect()).collect();
        assert_eq!(bytes, [vec![3, 4, 1], vec![9], vec![2]]);
    }

    #[test]
    fn other_bytes_are_noticed() {
        let layout = Layout::new(Float::F32, 64, 0, 1);
        let weight = layout.weights().nth(1).unwrap();
        let mut bytes = Vec::new();
        layout
            .for_each_block(weight, |block| -> Result<(), ()> {
                bytes.extend(block);
                Ok(())
            })
            .unwrap();
        assert!(layout.is(weight, &bytes));
        assert!(!layout.is(weight, &bytes[1..]));
        assert!(!layout.is(weight, &[&bytes[..], &[0]].concat()));
        *bytes.last_mut().unwrap() ^= 1;
        assert!(!layout.is(weight, &bytes));
    }
}
