//! Traces of requests, as files and ready to be replayed.

use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use glake::kvcache::Token;

use crate::Outcome;

/// Tokens that an id of a Mooncake trace stands for.
pub(crate) const ID_TOKENS: u32 = 512;

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Where its prompt lies in [`Trace::tokens`].
    pub(crate) start: usize,
    pub(crate) prompt_tokens: u32,
    /// Tokens that it generates.
    pub(crate) output_tokens: u32,
    /// Tokens of the trace that it has in the end, for the waste.
    pub(crate) real_tokens: u64,
    /// Blocks that it has in the end.
    pub(crate) n_blocks: u64,
}

/// A trace, ready to be replayed.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) kind: &'static str,
    /// Tokens in a block of the trace.
    pub(crate) block_tokens: u32,
    /// Tokens in a block of the cache.
    pub(crate) kept_tokens: u32,
    pub(crate) tokens: Vec<Token>,
    pub(crate) requests: Vec<Request>,
}

#[derive(serde::Deserialize)]
struct Line {
    input_length: u64,
    hash_ids: Vec<u32>,
}

impl Trace {
    /// Reads a trace, packed by gzip or not. `block_tokens` is for those that name no blocks, `whole` for those that do.
    pub(crate) fn read(path: &Path, block_tokens: u32, whole: bool) -> Outcome<Self> {
        let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut text = String::new();
        if bytes.starts_with(&[0x1f, 0x8b]) {
            GzDecoder::new(&bytes[..]).read_to_string(&mut text)?;
        } else {
            text = String::from_utf8(bytes)?;
        }
        if text.starts_with('{') { Self::mooncake(&text, whole) } else { Self::azure(&text, block_tokens) }
    }

    fn mooncake(text: &str, whole: bool) -> Outcome<Self> {
        let kept_tokens = if whole { ID_TOKENS } else { 2 };
        let (mut tokens, mut requests) = (Vec::new(), Vec::new());
        for (number, line) in (1..).zip(text.lines()) {
            let line: Line = serde_json::from_str(line).map_err(|error| format!("line {number}: {error}"))?;
            let n_full = usize::try_from(line.input_length / u64::from(ID_TOKENS))?;
            let is_short = !line.input_length.is_multiple_of(u64::from(ID_TOKENS));
            if line.hash_ids.len() != n_full + usize::from(is_short) || line.hash_ids.is_empty() {
                return Err(format!("line {number}: ids do not fit the length of the prompt").into());
            }
            let start = tokens.len();
            for (at, id) in line.hash_ids.iter().enumerate() {
                // A block that the prompt does not fill has one token less: it is no full block of the cache's either.
                let n = kept_tokens - u32::from(at == n_full);
                tokens.extend((0..n).map(|token| id.wrapping_mul(if whole { token + 1 } else { 1 - token })));
            }
            requests.push(Request {
                start,
                prompt_tokens: u32::try_from(tokens.len() - start)?,
                output_tokens: 0,
                real_tokens: line.input_length,
                n_blocks: line.hash_ids.len() as u64,
            });
        }
        Ok(Self { kind: "mooncake", block_tokens: ID_TOKENS, kept_tokens, tokens, requests })
    }

    fn azure(text: &str, block_tokens: u32) -> Outcome<Self> {
        let mut requests = Vec::new();
        let mut longest = 0;
        for (number, line) in (1..).zip(text.lines()).skip(1) {
            let mut numbers = line.trim().split(',').skip(1).map(str::parse);
            let (Some(Ok(prompt_tokens)), Some(Ok(output_tokens))) = (numbers.next(), numbers.next()) else {
                return Err(format!("line {number}: not a time and two lengths").into());
            };
            let real_tokens = u64::from(prompt_tokens) + u64::from(output_tokens);
            // From a token of its own on: no two prompts have a block in common.
            let start = requests.len();
            longest = longest.max(start + prompt_tokens as usize);
            let n_blocks = real_tokens.div_ceil(u64::from(block_tokens.max(1)));
            requests.push(Request { start, prompt_tokens, output_tokens, real_tokens, n_blocks });
        }
        let tokens = (0..u32::try_from(longest)?).map(|at| at.wrapping_mul(0x9e37_79b9)).collect();
        Ok(Self { kind: "azure", block_tokens, kept_tokens: block_tokens, tokens, requests })
    }
}

impl Request {
    pub(crate) fn prompt<'a>(&self, trace: &'a Trace) -> &'a [Token] {
        &trace.tokens[self.start..][..self.prompt_tokens as usize]
    }
}
