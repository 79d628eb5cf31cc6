//! One round over a trace.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use glake::kvcache::policy::Policy;
use glake::kvcache::{CacheError, Config, KvCache, Request, SequenceId, Stats};

use crate::Outcome;
use crate::trace::{self, Trace};

/// What a round came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) time: Duration,
    pub(crate) stats: Stats,
    /// Requests for which there was no room, even alone.
    pub(crate) refused: u64,
    /// Blocks of the others.
    pub(crate) block_refs: u64,
    /// What of these blocks' room the trace's tokens do not fill.
    pub(crate) waste: f64,
}

/// Replays `trace` through a cache of `pool` blocks, with `n_running` sequences at once.
#[allow(clippy::disallowed_methods, reason = "it measures time")]
#[allow(clippy::cast_precision_loss, reason = "a share of counts")]
pub(crate) fn round<P: Policy>(trace: &Trace, pool: u32, policy: P, n_running: usize) -> Outcome<Round> {
    let mut cache = KvCache::with(&Config::new(pool, trace.kept_tokens), policy, ())?;
    let mut running = VecDeque::new();
    let (mut refused, mut block_refs, mut real_tokens) = (0, 0, 0);
    let start = Instant::now();
    for request in &trace.requests {
        while running.len() >= n_running.max(1) {
            end_oldest(&mut cache, &mut running)?;
        }
        match begin(&mut cache, &mut running, trace, request)? {
            Some(sequence) => {
                running.push_back(sequence);
                block_refs += request.n_blocks;
                real_tokens += request.real_tokens;
            }
            None => refused += 1,
        }
    }
    while !running.is_empty() {
        end_oldest(&mut cache, &mut running)?;
    }
    let time = start.elapsed();
    let room = block_refs * u64::from(trace.block_tokens);
    let waste = if room == 0 { 0.0 } else { 1.0 - real_tokens as f64 / room as f64 };
    Ok(Round { time, stats: cache.stats(), refused, block_refs, waste })
}

type Running = VecDeque<SequenceId>;

fn end_oldest<P: Policy>(cache: &mut KvCache<P>, running: &mut Running) -> Outcome<()> {
    if let Some(sequence) = running.pop_front() {
        cache.free(sequence)?;
    }
    Ok(())
}

/// A request up to its last token; `None` if there is no room for it.
fn begin<P: Policy>(
    cache: &mut KvCache<P>,
    running: &mut Running,
    trace: &Trace,
    request: &trace::Request,
) -> Outcome<Option<SequenceId>> {
    let started = loop {
        match cache.start(Request::new(request.prompt(trace))) {
            Ok(started) => break started,
            Err(CacheError::NoBlocks { .. }) if !running.is_empty() => end_oldest(cache, running)?,
            Err(CacheError::NoBlocks { .. } | CacheError::EmptyPrompt) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    };
    let sequence = started.sequence;
    cache.commit(sequence, request.prompt_tokens)?;
    for token in 0..request.output_tokens {
        let appended = loop {
            match cache.append(sequence, token) {
                Ok(appended) => break appended,
                Err(CacheError::NoBlocks { .. }) if !running.is_empty() => end_oldest(cache, running)?,
                Err(CacheError::NoBlocks { .. }) => {
                    cache.free(sequence)?;
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            }
        };
        if appended.offset + 1 == trace.kept_tokens {
            cache.commit(sequence, request.prompt_tokens + token + 1)?;
        }
    }
    Ok(Some(sequence))
}
