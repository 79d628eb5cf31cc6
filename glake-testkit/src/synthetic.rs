//! Generated traces: training steps that repeat, and churn.

use glake_core::trace::{Event, Op};

use crate::rng::Rng;

const LAYERS: usize = 24;
const STEP_US: u64 = 100_000;

/// `n_steps` training steps whose shapes take turns: `n_shapes` = 1 for fixed shapes, 2 for two
/// in alternation. Each step is the same as the one `n_shapes` before it, size by size.
///
/// A step is what a transformer does: weights and optimizer state that live throughout, made
/// before the first step; activations and workspaces forward; gradients backward, with the
/// activations freed in reverse; an optimizer update that frees the gradients.
#[must_use]
pub fn steps(n_steps: usize, n_shapes: usize) -> Vec<Event> {
    let mut trace = Trace::default();
    let mut rng = Rng::new(7);
    for _ in 0..LAYERS {
        for _ in 0..3 {
            trace.allocate(rng.between(4 << 20, 24 << 20));
        }
        trace.allocate(rng.between(2 << 10, 16 << 10));
    }
    for step in 0..n_steps {
        trace.at_us = (step as u64 + 1) * STEP_US;
        training_step(&mut trace, &mut Rng::new(100 + (step % n_shapes.max(1)) as u64));
    }
    trace.events
}

/// Indices of the events at which the steps of [`steps`] begin, and the end.
#[must_use]
pub fn step_starts(n_steps: usize, n_shapes: usize) -> Vec<usize> {
    let events = steps(n_steps, n_shapes);
    let at = |step: usize| events.partition_point(|event| event.at_us < (step as u64 + 1) * STEP_US);
    (0..=n_steps).map(at).collect()
}

/// The most bytes that live in [`churn`].
pub const CHURN_BYTES: u64 = 4 << 30;

/// Physical memory over the peak of requested bytes with which [`churn`] makes a pool gather often
/// and lets it serve everything.
pub const CHURN_CAP: f64 = 1.06;

/// `n` allocations of 1 to 64 MiB at random. Before each, random others are freed until it fits in
/// [`CHURN_BYTES`], so that memory is always nearly full and free pieces lie scattered.
#[must_use]
pub fn churn(n: usize) -> Vec<Event> {
    let mut trace = Trace::default();
    let mut rng = Rng::new(11);
    let mut live: Vec<(u64, u64)> = Vec::new();
    let mut live_bytes = 0;
    for _ in 0..n {
        let bytes = rng.log_between(1 << 20, 64 << 20);
        while live_bytes + bytes > CHURN_BYTES {
            let (id, bytes) = live.swap_remove(rng.below(live.len() as u64) as usize);
            trace.free(id);
            live_bytes -= bytes;
        }
        live.push((trace.allocate(bytes), bytes));
        live_bytes += bytes;
    }
    for (id, _) in live {
        trace.free(id);
    }
    trace.events
}

fn training_step(trace: &mut Trace, rng: &mut Rng) {
    let batch = rng.between(6, 14);
    let mut saved = Vec::new();
    for _ in 0..LAYERS {
        let workspace = trace.allocate(batch * rng.between(1 << 20, 3 << 20));
        for _ in 0..4 {
            saved.push(trace.allocate(batch * rng.between(200 << 10, 900 << 10)));
            let small = trace.allocate(rng.between(1, 40 << 10));
            trace.free(small);
        }
        trace.free(workspace);
    }
    let mut gradients = Vec::new();
    for (i, activation) in saved.into_iter().rev().enumerate() {
        let workspace = trace.allocate(batch * rng.between(300 << 10, 2 << 20));
        if i % 2 == 0 {
            gradients.push(trace.allocate(rng.between(2 << 20, 12 << 20)));
        }
        trace.free(activation);
        trace.free(workspace);
    }
    for gradient in gradients {
        let update = trace.allocate(rng.between(1 << 20, 6 << 20));
        trace.free(gradient);
        trace.free(update);
    }
}

#[derive(Default)]
struct Trace {
    events: Vec<Event>,
    n_objects: u64,
    at_us: u64,
}

impl Trace {
    fn allocate(&mut self, bytes: u64) -> u64 {
        let id = self.n_objects;
        self.n_objects += 1;
        self.push(Op::Allocate { bytes, stream: 0 }, id);
        id
    }

    fn free(&mut self, id: u64) {
        self.push(Op::Free, id);
    }

    fn push(&mut self, op: Op, id: u64) {
        self.events.push(Event { op, id, at_us: self.at_us });
        self.at_us += 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(events: &[Event]) -> Vec<Op> {
        events.iter().map(|event| event.op).collect()
    }

    #[test]
    fn churn_keeps_memory_nearly_full() {
        let events = churn(2000);
        let (mut sizes, mut live, mut filled) = (std::collections::HashMap::new(), 0, false);
        for event in &events[..3000] {
            match event.op {
                Op::Allocate { bytes, .. } => {
                    sizes.insert(event.id, bytes);
                    live += bytes;
                    assert!(live <= CHURN_BYTES);
                    filled |= live > CHURN_BYTES - (64 << 20);
                    assert!(!filled || live > CHURN_BYTES - (192 << 20), "{live}");
                }
                _ => live -= sizes[&event.id],
            }
        }
        assert!(filled);
    }

    #[test]
    fn steps_repeat() {
        for n_shapes in [1, 2] {
            let events = steps(5, n_shapes);
            let starts = step_starts(5, n_shapes);
            assert_eq!(*starts.last().unwrap(), events.len());
            let step = |i: usize| sizes(&events[starts[i]..starts[i + 1]]);
            assert_eq!(step(0), step(n_shapes));
            assert_eq!(step(1), step(1 + n_shapes));
            assert_eq!(step(0) == step(1), n_shapes == 1);
        }
    }
}
