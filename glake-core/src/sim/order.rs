//! Streams and events of the simulated driver.

use super::SimDriver;
use super::fault::Target;
use super::stream::Event;
use super::work::Work;
use crate::driver::{Call, Result, StreamOrder};
use crate::units::{DeviceId, EventId, StreamId};

impl StreamOrder for SimDriver {
    fn create_stream(&self, device: DeviceId) -> Result<StreamId> {
        self.lock().call(Target::Streams, |state| {
            let device = state.on_id(device)?;
            Ok((state.streams.create(device), 0))
        })
    }

    fn destroy_stream(&self, stream: StreamId) -> Result<()> {
        self.lock().call(Target::Streams, |state| {
            state.on_stream(stream)?;
            state.streams.destroy(stream)?;
            Ok(((), 0))
        })
    }

    fn record(&self, stream: StreamId) -> Result<EventId> {
        self.lock().call(Target::One(Call::Record), |state| {
            let stream = state.on_stream(stream)?;
            state.enqueue(stream, Work::Marker)?;
            let event = state.streams.event_now(stream);
            Ok((event, state.config.costs.record_ns))
        })
    }

    fn query(&self, event: EventId) -> Result<bool> {
        self.lock().call(Target::One(Call::Query), |state| {
            let Event { stream, position, .. } = state.streams.event(event)?;
            state.on(state.streams.device(stream))?;
            Ok((state.streams.is_done(stream, position), state.config.costs.query_ns))
        })
    }

    fn wait(&self, stream: StreamId, event: EventId) -> Result<()> {
        self.lock().call(Target::One(Call::Wait), |state| {
            let stream = state.on_stream(stream)?;
            let event = state.streams.event(event)?;
            state.enqueue(stream, Work::Wait(event))?;
            Ok(((), state.config.costs.wait_ns))
        })
    }

    fn synchronize(&self, event: EventId) -> Result<()> {
        self.lock().call(Target::One(Call::Synchronize), |state| {
            let Event { stream, position, ready_ns } = state.streams.event(event)?;
            let device = state.streams.device(stream);
            state.on(device)?;
            state.finish(stream, position, ready_ns);
            state.on(device)?;
            Ok(((), state.config.costs.synchronize_ns))
        })
    }

    fn forget(&self, event: EventId) {
        self.lock().streams.forget(event);
    }
}
