//! Contexts, and which of them is current.

use crate::abi::Out;
use crate::call::{RELAXED, contexts, set_capture_mode};
use crate::code::Code;
use crate::machine::Context;
use crate::machine::space::bit;

driver_functions! {
    fn cuCtxGetCurrent(context: Out<u64>) |_| {
        context.put(contexts(|stack| stack.last().copied()).unwrap_or(0))
    }

    fn cuCtxSetCurrent(context: u64) |machine| {
        if context != 0 && !machine.is_live(context) {
            return Err(Code::INVALID_CONTEXT);
        }
        contexts(|stack| {
            stack.pop();
            stack.extend((context != 0).then_some(context));
        });
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: u64) |machine| {
        machine.is_live(context).then_some(()).ok_or(Code::INVALID_CONTEXT)?;
        contexts(|stack| stack.push(context));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: Out<u64>) |_| {
        let popped = contexts(Vec::pop).ok_or(Code::INVALID_CONTEXT)?;
        context.put_if_wanted(popped);
        Ok(())
    }

    fn cuCtxGetDevice(device: Out<i32>) |machine| {
        device.put(i32::try_from(machine.current_device()?).unwrap_or(0))
    }

    fn cuCtxCreate_v2(context: Out<u64>, flags: u32, device: i32) |machine| {
        let device = machine.device(device)?;
        let _ = flags;
        let id = machine.id();
        machine.contexts.insert(id, Context { device, n_retained: 1, lost: None, peers: 0 });
        contexts(|stack| stack.push(id));
        context.put(id)
    }

    fn cuCtxDestroy_v2(context: u64) |machine| {
        if machine.primaries.contains(&context) || !machine.is_live(context) {
            return Err(Code::INVALID_CONTEXT);
        }
        machine.end_context(context);
        machine.contexts.remove(&context);
        contexts(|stack| stack.pop_if(|current| *current == context));
        Ok(())
    }

    fn cuCtxSynchronize() |machine| {
        let context = machine.current()?;
        machine.refuse_captures_in(context)?;
        machine.check_unsafe()?;
        machine.run_context(context)
    }

    fn cuCtxRecordEvent(context: u64, event: u64) |machine| {
        let context = machine.context(context)?;
        machine.record_context(event, context)
    }

    fn cuCtxWaitEvent(context: u64, event: u64) |machine| {
        let context = machine.context(context)?;
        machine.refuse_captures_in(context)?;
        machine.check_asked(event)?;
        for stream in machine.streams_of(context) {
            machine.wait(stream, event)?;
        }
        Ok(())
    }

    fn cuCtxGetFlags(flags: Out<u32>) |machine| {
        machine.current()?;
        flags.put(0)
    }

    fn cuCtxSetFlags(flags: u32) |machine| {
        let _ = flags;
        machine.current().map(drop)
    }

    fn cuCtxGetLimit(value: Out<u64>, limit: u32) |machine| {
        machine.current()?;
        let _ = limit;
        value.put(0)
    }

    fn cuCtxSetLimit(limit: u32, value: u64) |machine| {
        let _ = (limit, value);
        machine.current().map(drop)
    }

    fn cuCtxGetApiVersion(context: u64, version: Out<u32>) |machine| {
        machine.context(context)?;
        version.put(3020)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) |machine| {
        machine.current()?;
        least.put_if_wanted(0);
        greatest.put_if_wanted(-5);
        Ok(())
    }

    fn cuCtxEnablePeerAccess(peer: u64, flags: u32) |machine| {
        let (current, peer) = (machine.current()?, machine.device_of(machine.context(peer)?));
        if flags != 0 || machine.device_of(current) == peer {
            return Err(Code::INVALID_VALUE);
        }
        let Some(context) = machine.contexts.get_mut(&current) else { return Err(Code::INVALID_CONTEXT) };
        if context.peers & bit(peer) != 0 {
            return Err(Code::PEER_ACCESS_ALREADY_ENABLED);
        }
        context.peers |= bit(peer);
        Ok(())
    }

    fn cuCtxDisablePeerAccess(peer: u64) |machine| {
        let (current, peer) = (machine.current()?, machine.device_of(machine.context(peer)?));
        let Some(context) = machine.contexts.get_mut(&current) else { return Err(Code::INVALID_CONTEXT) };
        if context.peers & bit(peer) == 0 {
            return Err(Code::PEER_ACCESS_NOT_ENABLED);
        }
        context.peers &= !bit(peer);
        Ok(())
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) |_| {
        let new = mode.get()?;
        if new > RELAXED {
            return Err(Code::INVALID_VALUE);
        }
        mode.put(set_capture_mode(new))
    }
}
