//! Captures: streams whose work goes into a graph, and what must not be called meanwhile.

use std::collections::BTreeMap;

use super::Machine;
use super::stream::Kind;
use super::work::Op;
use crate::call::{self, GLOBAL, RELAXED};
use crate::code::{Code, Result};

/// How far each stream of a capture has come: items by stream.
type Seen = BTreeMap<u64, u64>;

/// One capture that is under way.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) graph: u64,
    /// Whether the graph was there before, and is the caller's whatever comes.
    is_given: bool,
    origin: u64,
    mode: u32,
    thread: u64,
    pub(crate) is_valid: bool,
    ops: Vec<Op>,
    /// For each stream, what it is behind of; its own entry is what it has enqueued.
    seen: BTreeMap<u64, Seen>,
}

/// Captures by their id.
pub(crate) type Captures = BTreeMap<u64, Capture>;

impl Machine {
    /// Begins a capture on a stream, into a new graph or behind what a given one holds.
    pub(crate) fn begin_capture(&mut self, stream: u64, mode: u32, given: Option<u64>) -> Result {
        let stream = self.stream(stream)?;
        let Some(this) = self.streams.get(&stream) else { return Err(Code::INVALID_HANDLE) };
        if this.kind == Kind::Legacy || this.capture.is_some() {
            return Err(Code::CAPTURE_UNSUPPORTED);
        }
        if mode > RELAXED {
            return Err(Code::INVALID_VALUE);
        }
        if let Some(graph) = given {
            self.graph_len(graph)?;
            if self.captures.values().any(|capture| capture.graph == graph) {
                return Err(Code::INVALID_VALUE);
            }
        }
        let (id, graph) = (self.id(), given.unwrap_or_else(|| self.new_graph()));
        let capture = Capture {
            graph,
            is_given: given.is_some(),
            origin: stream,
            mode,
            thread: call::thread_id(),
            is_valid: true,
            ops: Vec::new(),
            seen: [(stream, Seen::new())].into(),
        };
        self.captures.insert(id, capture);
        if let Some(this) = self.streams.get_mut(&stream) {
            this.capture = Some(id);
        }
        Ok(())
    }

    /// Ends the capture that began on a stream; returns its graph.
    pub(crate) fn end_capture(&mut self, stream: u64) -> Result<u64> {
        let stream = self.stream(stream)?;
        let id = self.streams.get(&stream).and_then(|stream| stream.capture).ok_or(Code::INVALID_VALUE)?;
        let Some(capture) = self.captures.get(&id) else { return Err(Code::INVALID_VALUE) };
        if capture.origin != stream {
            self.invalidate(id);
            return Err(Code::CAPTURE_UNMATCHED);
        }
        if capture.mode != RELAXED && capture.thread != call::thread_id() {
            return Err(Code::CAPTURE_WRONG_THREAD);
        }
        for stream in self.streams.values_mut().filter(|stream| stream.capture == Some(id)) {
            stream.capture = None;
        }
        let Some(capture) = self.captures.remove(&id) else { return Err(Code::INVALID_VALUE) };
        let ended = if capture.is_valid { capture.check_joined() } else { Err(Code::CAPTURE_INVALIDATED) };
        match ended {
            Ok(()) => {
                self.fill_graph(capture.graph, capture.ops);
                Ok(capture.graph)
            }
            Err(code) => {
                if !capture.is_given {
                    self.destroy_graph(capture.graph)?;
                }
                Err(code)
            }
        }
    }

    /// Makes a capture worth nothing.
    pub(crate) fn invalidate(&mut self, capture: u64) {
        if let Some(capture) = self.captures.get_mut(&capture) {
            capture.is_valid = false;
        }
    }

    fn invalidate_all(&mut self, captures: impl IntoIterator<Item = u64>) {
        for capture in captures {
            self.invalidate(capture);
        }
    }

    /// A capture that is still worth something.
    fn valid_capture(&mut self, id: u64) -> Result<&mut Capture> {
        match self.captures.get_mut(&id) {
            Some(capture) if capture.is_valid => Ok(capture),
            _ => Err(Code::CAPTURE_INVALIDATED),
        }
    }

    /// Notes work of a captured stream.
    pub(crate) fn capture_work(&mut self, id: u64, stream: u64, op: Op) -> Result {
        let capture = self.valid_capture(id)?;
        capture.ops.push(op);
        *capture.seen.entry(stream).or_default().entry(stream).or_default() += 1;
        Ok(())
    }

    /// An event recorded on a captured stream: what it is behind of.
    pub(crate) fn capture_event(&mut self, id: u64, stream: u64) -> Result<Vec<(u64, u64)>> {
        let capture = self.valid_capture(id)?;
        let seen = capture.seen.entry(stream).or_default();
        Ok(seen.iter().map(|(stream, n)| (*stream, *n)).collect())
    }

    /// A stream waits for an event of a capture, and is captured from there on.
    pub(crate) fn join_capture(&mut self, stream: u64, id: u64, behind: &[(u64, u64)]) -> Result {
        let Some(this) = self.streams.get(&stream) else { return Err(Code::INVALID_HANDLE) };
        let (kind, own) = (this.kind, this.capture);
        if !self.captures.contains_key(&id) {
            return Err(Code::CAPTURED_EVENT);
        }
        if kind == Kind::Legacy {
            self.invalidate(id);
            return Err(Code::CAPTURE_IMPLICIT);
        }
        if own.is_some_and(|own| own != id) {
            self.invalidate(id);
            self.invalidate_all(own);
            return Err(Code::CAPTURE_MERGE);
        }
        let seen = self.valid_capture(id)?.seen.entry(stream).or_default();
        for &(other, n) in behind {
            let known = seen.entry(other).or_default();
            *known = n.max(*known);
        }
        if let Some(this) = self.streams.get_mut(&stream) {
            this.capture = Some(id);
        }
        Ok(())
    }

    /// A call that a capture of this or another thread may forbid, by the thread's mode; forbidden,
    /// it breaks the capture.
    pub(crate) fn check_unsafe(&mut self) -> Result {
        let (thread, mode) = (call::thread_id(), call::capture_mode());
        let mut broken = false;
        for capture in self.captures.values_mut() {
            let is_own = capture.thread == thread && capture.mode != RELAXED;
            let forbids = mode != RELAXED && (is_own || mode == GLOBAL && capture.mode == GLOBAL);
            capture.is_valid &= !forbids;
            broken |= forbids;
        }
        if broken { Err(Code::CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// A call that a capturing stream of the context forbids whatever the thread's mode.
    pub(crate) fn refuse_captures_in(&mut self, context: u64) -> Result {
        let of_context = |stream: &&super::Stream| stream.context == context;
        let captures: Vec<u64> =
            self.streams.values().filter(of_context).filter_map(|stream| stream.capture).collect();
        self.invalidate_all(captures.iter().copied());
        if captures.is_empty() { Ok(()) } else { Err(Code::CAPTURE_UNSUPPORTED) }
    }

    /// A call that waits for a stream.
    pub(crate) fn refuse_captured(&mut self, stream: u64) -> Result {
        match self.streams.get(&stream).and_then(|stream| stream.capture) {
            Some(capture) => {
                self.invalidate(capture);
                Err(Code::CAPTURE_UNSUPPORTED)
            }
            None => Ok(()),
        }
    }

    /// Work on the legacy stream would wait for blocking streams, which a captured one cannot be
    /// waited for: it breaks their captures.
    pub(crate) fn check_implicit(&mut self, stream: u64) -> Result {
        let captures = self.implied_captures(stream)?;
        self.invalidate_all(captures.iter().copied());
        if captures.is_empty() { Ok(()) } else { Err(Code::CAPTURE_IMPLICIT) }
    }

    /// The same for a question, which breaks nothing.
    pub(crate) fn ask_implicit(&self, stream: u64) -> Result {
        if self.implied_captures(stream)?.is_empty() { Ok(()) } else { Err(Code::CAPTURE_IMPLICIT) }
    }

    /// The captures of streams that work on a stream would wait for without being told.
    fn implied_captures(&self, stream: u64) -> Result<Vec<u64>> {
        let Some(this) = self.streams.get(&stream) else { return Err(Code::INVALID_HANDLE) };
        if this.kind != Kind::Legacy {
            return Ok(Vec::new());
        }
        let waited = |other: &&super::Stream| other.context == this.context && other.kind == Kind::Blocking;
        Ok(self.streams.values().filter(waited).filter_map(|stream| stream.capture).collect())
    }
}

impl Capture {
    /// Whether the first stream is behind all work of the others.
    fn check_joined(&self) -> Result {
        let nothing = Seen::new();
        let origin = self.seen.get(&self.origin).unwrap_or(&nothing);
        let of = |seen: &Seen, stream| seen.get(stream).copied().unwrap_or(0);
        let is_joined = self.seen.iter().all(|(stream, seen)| of(origin, stream) >= of(seen, stream));
        if is_joined { Ok(()) } else { Err(Code::CAPTURE_UNJOINED) }
    }
}
