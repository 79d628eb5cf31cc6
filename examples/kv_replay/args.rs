//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Replays a trace of requests through the books of a KV cache: how much of the prompts is found, what that costs on
/// the host, and how much room is wasted.
///
/// Two kinds of traces are known. Mooncake's (JSON lines with `hash_ids`) names each 512-token block of a prompt
/// by an id; a reference is one such id, and a request is started, committed and freed. The cache hashes, compares and keeps
/// two tokens for each id (the id itself), or with `--whole` 512 tokens made of it; a block that the prompt does not fill is
/// never shared. Azure's (CSV of prompt and output lengths) says nothing of contents: prompts share nothing, outputs are
/// appended token by token and committed block by block, and a reference is a block of either.
///
/// The time of a reference is that of a whole round over the references: hashing, looking up, comparing, evicting, allocating,
/// storing tokens, indexing and freeing. Reading the trace and making tokens of it is not in it.
#[derive(Debug, Parser)]
#[command(name = "kv_replay")]
pub(crate) struct Args {
    /// The trace.
    #[arg(long, value_name = "FILE", default_value = "traces/mooncake_conversation.jsonl.gz")]
    pub(crate) trace: PathBuf,
    /// Blocks of the cache.
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub(crate) pool: u32,
    /// Tokens in a block of an Azure trace.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(crate) block_tokens: u32,
    /// Which cached blocks are given up first.
    #[arg(long, default_value = "lru")]
    pub(crate) policy: Order,
    /// Sequences that run at once, each freed when one more is to begin.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) running: usize,
    /// Rounds over the trace, each with a new cache: the fastest counts.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Hashes and compares 512 tokens for each id of a Mooncake trace.
    #[arg(long)]
    pub(crate) whole: bool,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Order {
    /// What was used least recently.
    Lru,
    /// The same, but what was hit outlives what was not, up to a quarter of all blocks.
    Segmented,
}
