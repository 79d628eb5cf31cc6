//! The command line of the burn programs.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use serde::Serialize;

/// Trains a transformer on generated data whose batch and length vary from step to step.
#[derive(Clone, Debug, Parser, Serialize)]
pub struct Args {
    /// Optimiser steps.
    #[arg(long, default_value_t = 200)]
    pub steps: usize,
    /// Steps at the beginning that the times leave out: kernels are compiled there.
    #[arg(long, default_value_t = 40)]
    pub warm_up: usize,
    /// Whether burn's device memory comes from glake's pool.
    #[arg(long, value_enum, default_value_t = Glake::On)]
    pub glake: Glake,
    /// What is one allocation of the driver (or of glake, which stands in its place).
    #[arg(long, value_enum, default_value_t = Granularity::Tensor)]
    pub granularity: Granularity,
    /// The driver's allocator that cubecl asks when glake is off; with glake it is always `async`.
    #[arg(long, value_enum, default_value_t = Allocator::Sync)]
    pub allocator: Allocator,
    /// Where to train.
    #[arg(long, value_enum, default_value_t = Device::Cuda)]
    pub device: Device,
    /// Seed of weights, data and shapes.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Transformer blocks.
    #[arg(long, default_value_t = 6)]
    pub layers: usize,
    /// Width of the model.
    #[arg(long, default_value_t = 512)]
    pub width: usize,
    /// Attention heads.
    #[arg(long, default_value_t = 8)]
    pub heads: usize,
    /// The largest batch; the smallest is a quarter of it.
    #[arg(long, default_value_t = 16)]
    pub max_batch: usize,
    /// The longest sequence; the shortest is an eighth of it. Lengths are multiples of 8.
    #[arg(long, default_value_t = 768)]
    pub max_length: usize,
    /// glake's limit, in bytes.
    #[arg(long)]
    pub limit_bytes: Option<u64>,
    /// Record the allocations into this file, in the replay's format (with glake).
    #[arg(long)]
    pub record: Option<PathBuf>,
    /// Append the report to this file, one line of JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// Whether glake is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Glake {
    /// Under cubecl's allocations.
    On,
    /// Not called at all.
    Off,
}

/// What cubecl asks its driver for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Granularity {
    /// Pages, which cubecl divides among tensors.
    Page,
    /// Each tensor by itself.
    Tensor,
}

/// cubecl's choice among the driver's allocators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Allocator {
    /// `cuMemAlloc`.
    Sync,
    /// `cuMemAllocAsync`.
    Async,
}

/// Where to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// The first GPU.
    Cuda,
    /// The processor; needs the feature `cpu`.
    Cpu,
}
