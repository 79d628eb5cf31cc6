//! Captures: work that goes into a graph instead of the device, to be launched again and again.
//!
//! A captured stream takes kernels, copies on the device, fills and delays. What waits for the host
//! or the host for it has no place in a graph: events, and copies with host memory, are refused with
//! [`DriverError::Capturing`] and the capture goes on, because a driver can ask a stream that it is
//! given, or knows, whether it is captured. It cannot ask for the default stream of *another thread*: an
//! event behind the whole device, or waiting for the whole device, breaks a capture there, as it
//! does on the hardware.

use super::SimDriver;
use super::fault::Target;
use super::state::State;
use super::work::Work;
use crate::driver::{DriverError, Result};
use crate::units::StreamId;

/// Work that was captured, to be launched as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GraphId(pub u64);

/// The graph behind an id: work of one device.
#[derive(Debug)]
pub(super) struct Graph {
    device: usize,
    work: Vec<Work>,
}

/// A capture that has begun.
#[derive(Debug)]
pub(super) enum Capture {
    Whole(Vec<Work>),
    /// Broken by a call of somebody who could not know.
    Broken,
}

impl Capture {
    /// Adds work to the graph to be.
    pub(super) fn add(&mut self, work: Work) -> Result<()> {
        match self {
            Self::Whole(graph) => {
                graph.push(work);
                Ok(())
            }
            Self::Broken => Err(broken("cuLaunchKernel")),
        }
    }
}

/// `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`.
const fn broken(call: &'static str) -> DriverError {
    DriverError::Native { call, code: 901 }
}

const UNKNOWN_GRAPH: DriverError = DriverError::InvalidValue("the graph is not a live graph of this driver");

impl SimDriver {
    /// Begins to capture `stream`: what is enqueued on it from now on goes into a graph.
    ///
    /// # Errors
    /// [`DriverError::UnknownStream`]; [`DriverError::Capturing`] if it is captured already;
    /// [`DriverError::InvalidValue`] for [`StreamId::LEGACY`], which cannot be captured.
    pub fn begin_capture(&self, stream: StreamId) -> Result<()> {
        self.lock().call(Target::Streams, |state| {
            let index = state.on_uncaptured(stream)?;
            if index == 0 {
                return Err(DriverError::InvalidValue("the legacy stream cannot be captured"));
            }
            state.streams.all[index].capture = Some(Capture::Whole(Vec::new()));
            Ok(((), 0))
        })
    }

    /// Ends the capture of `stream` and returns the graph.
    ///
    /// # Errors
    /// [`DriverError::UnknownStream`]; [`DriverError::InvalidValue`] if it is not captured;
    /// [`DriverError::Native`] with code 901 if the capture is broken: it has ended, without a graph.
    pub fn end_capture(&self, stream: StreamId) -> Result<GraphId> {
        self.lock().call(Target::Streams, |state| {
            let index = state.on_stream(stream)?;
            let device = state.streams.device(index);
            match state.streams.all[index].capture.take() {
                None => Err(DriverError::InvalidValue("the stream is not captured")),
                Some(Capture::Broken) => Err(broken("cuStreamEndCapture")),
                Some(Capture::Whole(work)) => {
                    Ok((GraphId(state.streams.graphs.insert(Graph { device, work })), 0))
                }
            }
        })
    }

    /// Enqueues the work of `graph` on `stream`, each piece by itself. Addresses are translated when it
    /// runs, so memory that was unmapped since the capture is a fault, and that was mapped anew is
    /// used. While `stream` is captured, the work goes into that graph.
    ///
    /// # Errors
    /// [`DriverError::UnknownStream`]; [`DriverError::InvalidValue`] if there is no such graph, or it
    /// is of another device.
    pub fn launch(&self, graph: GraphId, stream: StreamId) -> Result<()> {
        self.lock().call(Target::Kernels, |state| {
            let stream = state.on_stream(stream)?;
            let Graph { device, work } = state.streams.graphs.get(graph.0).ok_or(UNKNOWN_GRAPH)?;
            if *device != state.streams.device(stream) {
                return Err(DriverError::InvalidValue("the graph is of another device"));
            }
            for work in work.clone() {
                state.enqueue(stream, work)?;
            }
            Ok(((), 0))
        })
    }

    /// Forgets a graph. What was launched of it still runs.
    ///
    /// # Errors
    /// [`DriverError::InvalidValue`] if there is no such graph.
    pub fn destroy_graph(&self, graph: GraphId) -> Result<()> {
        self.lock().call(Target::Streams, |state| {
            state.streams.graphs.remove(graph.0).ok_or(UNKNOWN_GRAPH)?;
            Ok(((), 0))
        })
    }
}

impl State {
    /// As [`on_stream`](Self::on_stream), for what is impossible while the stream is captured.
    pub(super) fn on_uncaptured(&mut self, stream: StreamId) -> Result<usize> {
        let index = self.on_stream(stream)?;
        let is_captured = self.streams.all[index].capture.is_some();
        if is_captured { Err(DriverError::Capturing(stream)) } else { Ok(index) }
    }

    /// Refuses a call that concerns all streams of a device while one of them is captured. Captures
    /// of the default streams of other threads are seen too late, and are broken.
    pub(super) fn refuse_captures(&mut self, device: usize) -> Result<()> {
        let own = self.streams.resolve(StreamId::PER_THREAD)?;
        let captured = self.streams.captured(device);
        let known = captured
            .iter()
            .find_map(|&(index, id)| if index == own { Some(StreamId::PER_THREAD) } else { id });
        if let Some(stream) = known {
            return Err(DriverError::Capturing(stream));
        }
        for &(index, _) in &captured {
            self.streams.all[index].capture = Some(Capture::Broken);
        }
        if captured.is_empty() { Ok(()) } else { Err(DriverError::Capturing(StreamId::default())) }
    }
}
