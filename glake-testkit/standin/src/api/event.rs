//! Events.

use crate::abi::Out;
use crate::code::Code;

const DISABLE_TIMING: u32 = 2;
const NS_PER_MS: f64 = 1e6;

driver_functions! {
    fn cuEventCreate(event: Out<u64>, flags: u32) |machine| {
        let context = machine.current()?;
        let id = machine.new_event(context, flags & DISABLE_TIMING == 0);
        event.put(id)
    }

    fn cuEventDestroy_v2(event: u64) |machine| {
        machine.event(event)?;
        machine.events.remove(&event);
        Ok(())
    }

    fn cuEventRecord(event: u64, stream: u64) |machine| {
        let stream = machine.stream(stream)?;
        machine.record(event, stream)
    }

    fn cuEventRecordWithFlags(event: u64, stream: u64, flags: u32) |machine| {
        let _ = flags;
        let stream = machine.stream(stream)?;
        machine.record(event, stream)
    }

    fn cuEventQuery(event: u64) |machine| {
        machine.check_asked(event)?;
        machine.check_unsafe()?;
        let pending = machine.pending(event)?;
        machine.ask(&pending);
        if machine.pending(event)?.is_empty() { Ok(()) } else { Err(Code::NOT_READY) }
    }

    fn cuEventSynchronize(event: u64) |machine| {
        machine.check_asked(event)?;
        machine.check_unsafe()?;
        for ticket in machine.pending(event)? {
            machine.run_to(ticket);
        }
        machine.event(event).map(drop)
    }

    fn cuEventElapsedTime(ms: Out<f32>, start: u64, end: u64) |machine| {
        ms.put(elapsed_ms(machine.time_ns(start)?, machine.time_ns(end)?))
    }

    fn cuEventElapsedTime_v2(ms: Out<f32>, start: u64, end: u64) |machine| {
        ms.put(elapsed_ms(machine.time_ns(start)?, machine.time_ns(end)?))
    }
}

#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "CUDA gives a float")]
fn elapsed_ms(start_ns: u64, end_ns: u64) -> f32 {
    (end_ns.cast_signed().saturating_sub(start_ns.cast_signed()) as f64 / NS_PER_MS) as f32
}
