//! Events.

use super::Machine;
use super::stream::Ticket;
use super::work::Op;
use crate::code::{Code, Result};

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: u64,
    pub(crate) has_time: bool,
    /// How often it was recorded.
    n_recorded: u64,
    /// What has to be done before it passes.
    after: Vec<Ticket>,
    /// The device's clock when it passed.
    passed_ns: Option<u64>,
    /// The capture that it was recorded in last, and how far that had come.
    pub(crate) captured: Option<(u64, Vec<(u64, u64)>)>,
}

impl Machine {
    /// Makes an event in a context.
    pub(crate) fn new_event(&mut self, context: u64, has_time: bool) -> u64 {
        let id = self.id();
        let event =
            Event { context, has_time, n_recorded: 0, after: Vec::new(), passed_ns: None, captured: None };
        self.events.insert(id, event);
        id
    }

    /// An event whose context is not lost.
    pub(crate) fn event(&self, id: u64) -> Result<&Event> {
        let event = self.events.get(&id).ok_or(Code::INVALID_HANDLE)?;
        self.check_lost(event.context)?;
        Ok(event)
    }

    /// Records an event behind the work of a stream.
    pub(crate) fn record(&mut self, id: u64, stream: u64) -> Result {
        let context = self.event(id)?.context;
        let Some(on) = self.streams.get(&stream) else { return Err(Code::INVALID_HANDLE) };
        let capture = on.capture;
        if on.context != context {
            return Err(Code::INVALID_HANDLE);
        }
        self.check_implicit(stream)?;
        if let Some(capture) = capture {
            let seen = self.capture_event(capture, stream)?;
            if let Some(event) = self.events.get_mut(&id) {
                event.captured = Some((capture, seen));
            }
            return Ok(());
        }
        let Some(event) = self.events.get_mut(&id) else { return Err(Code::INVALID_HANDLE) };
        event.n_recorded += 1;
        (event.passed_ns, event.captured) = (None, None);
        let nth = event.n_recorded;
        self.enqueue(stream, Op::Record { event: id, nth }, Vec::new())?;
        let last = self.last(stream);
        if let Some(event) = self.events.get_mut(&id) {
            event.after = last.into_iter().collect();
        }
        Ok(())
    }

    /// Records an event behind all work of a context.
    pub(crate) fn record_context(&mut self, id: u64, context: u64) -> Result {
        if self.event(id)?.context != context {
            return Err(Code::INVALID_HANDLE);
        }
        self.refuse_captures_in(context)?;
        let after = self.streams_of(context).into_iter().filter_map(|stream| self.last(stream)).collect();
        let now_ns = self.now_ns;
        if let Some(event) = self.events.get_mut(&id) {
            event.n_recorded += 1;
            (event.after, event.passed_ns, event.captured) = (after, Some(now_ns), None);
        }
        Ok(())
    }

    /// What has to be done before an event passes; nothing if it was never recorded.
    pub(crate) fn pending(&self, id: u64) -> Result<Vec<Ticket>> {
        let after = &self.event(id)?.after;
        Ok(after.iter().copied().filter(|ticket| !self.is_done(*ticket)).collect())
    }

    /// Whether an event may be asked for: not if it was recorded into a graph.
    pub(crate) fn check_asked(&mut self, id: u64) -> Result {
        let captured = self.event(id)?.captured.as_ref().map(|(capture, _)| *capture);
        match captured {
            Some(capture) => {
                self.invalidate(capture);
                Err(Code::CAPTURED_EVENT)
            }
            None => Ok(()),
        }
    }

    /// Makes later work of a stream wait for an event.
    pub(crate) fn wait(&mut self, stream: u64, id: u64) -> Result {
        let captured = self.event(id)?.captured.clone();
        let capturing = self.streams.get(&stream).and_then(|stream| stream.capture);
        match (capturing, captured) {
            (_, Some((capture, seen))) => self.join_capture(stream, capture, &seen),
            (Some(capture), None) if self.event(id)?.n_recorded > 0 => {
                self.invalidate(capture);
                Err(Code::CAPTURE_ISOLATION)
            }
            (Some(_), None) => Ok(()),
            (None, None) => match self.pending(id)? {
                after if after.is_empty() => Ok(()),
                after => self.enqueue(stream, Op::Nothing, after),
            },
        }
    }

    /// An event's record runs.
    pub(crate) fn event_passed(&mut self, id: u64, nth: u64) {
        let now_ns = self.now_ns;
        if let Some(event) = self.events.get_mut(&id).filter(|event| event.n_recorded == nth) {
            event.passed_ns = Some(now_ns);
        }
    }

    /// When an event passed, by the device's clock.
    pub(crate) fn time_ns(&self, id: u64) -> Result<u64> {
        let event = self.event(id)?;
        if !event.has_time || event.n_recorded == 0 {
            return Err(Code::INVALID_HANDLE);
        }
        if !self.pending(id)?.is_empty() {
            return Err(Code::NOT_READY);
        }
        event.passed_ns.ok_or(Code::NOT_READY)
    }
}
