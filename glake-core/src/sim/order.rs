//! Streams and events of the simulated driver.

use super::SimDriver;
use super::fault::Target;
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
            state.on_uncaptured(stream)?;
            state.streams.destroy(stream)?;
            Ok(((), 0))
        })
    }

    fn record(&self, stream: StreamId) -> Result<EventId> {
        self.lock().call(Target::One(Call::Record), |state| {
            let stream = state.on_uncaptured(stream)?;
            state.enqueue(stream, Work::Marker)?;
            let event = state.streams.end(stream);
            Ok((state.streams.publish(event), state.config.costs.record_ns))
        })
    }

    fn record_all(&self, device: DeviceId) -> Result<EventId> {
        self.lock().call(Target::One(Call::Record), |state| {
            let device = state.on_id(device)?;
            state.refuse_captures(device)?;
            let event = state.end_of_device(device);
            Ok((state.streams.publish(event), state.config.costs.record_ns))
        })
    }

    fn query(&self, event: EventId) -> Result<bool> {
        self.lock().call(Target::One(Call::Query), |state| {
            let event = state.streams.event(event)?;
            state.on(state.streams.device_of(event))?;
            Ok((state.has_passed(event), state.config.costs.query_ns))
        })
    }

    fn wait(&self, stream: StreamId, event: EventId) -> Result<()> {
        self.lock().call(Target::One(Call::Wait), |state| {
            let stream = state.on_uncaptured(stream)?;
            let event = state.streams.event(event)?;
            state.enqueue(stream, Work::Wait(event))?;
            Ok(((), state.config.costs.wait_ns))
        })
    }

    fn synchronize(&self, event: EventId) -> Result<()> {
        self.lock().call(Target::One(Call::Synchronize), |state| {
            let event = state.streams.event(event)?;
            let device = state.streams.device_of(event);
            state.on(device)?;
            state.finish(event);
            state.on(device)?;
            Ok(((), state.config.costs.synchronize_ns))
        })
    }

    fn synchronize_all(&self, device: DeviceId) -> Result<()> {
        self.lock().call(Target::One(Call::Synchronize), |state| {
            let device = state.on_id(device)?;
            state.refuse_captures(device)?;
            // What is done when it is asked for is not waited for, so nothing lags behind now.
            let event = state.streams.end_of_device(device, state.now_ns);
            state.finish(event);
            state.on(device)?;
            Ok(((), state.config.costs.synchronize_ns))
        })
    }

    fn is_capturing(&self, stream: StreamId) -> Result<bool> {
        self.lock().call(Target::Streams, |state| {
            let stream = state.on_stream(stream)?;
            Ok((state.streams.all[stream].capture.is_some(), 0))
        })
    }

    fn forget(&self, event: EventId) {
        self.lock().streams.forget(event);
    }
}
