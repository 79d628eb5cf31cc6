//! Pools of stream-ordered memory.

use crate::abi::{In, Location, Out, Right};
use crate::code::{Code, Result};
use crate::machine::pool::Pool;

/// The beginning of `CUmemPoolProps`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoolProperties {
    kind: u32,
    handle_types: u32,
    location: Location,
}

driver_functions! {
    fn cuDeviceGetDefaultMemPool(pool: Out<u64>, device: i32) |machine| {
        pool.put(machine.device_pools[machine.device(device)?].0)
    }

    fn cuDeviceGetMemPool(pool: Out<u64>, device: i32) |machine| {
        pool.put(machine.device_pools[machine.device(device)?].1)
    }

    fn cuDeviceSetMemPool(device: i32, pool: u64) |machine| {
        let device = machine.device(device)?;
        if machine.pool(pool)?.device != device {
            return Err(Code::INVALID_VALUE);
        }
        machine.device_pools[device].1 = pool;
        Ok(())
    }

    fn cuMemPoolCreate(pool: Out<u64>, properties: In<PoolProperties>) |machine| {
        let device = machine.device(properties.get()?.location.id)?;
        let id = machine.id();
        machine.pools.insert(id, Pool::on(device));
        pool.put(id)
    }

    fn cuMemPoolDestroy(pool: u64) |machine| { machine.destroy_pool(pool) }

    fn cuMemPoolSetAccess(pool: u64, rights: In<Right>, n: u64) |machine| {
        machine.pool(pool)?;
        // Plain memory is reached by the contexts that enabled it.
        if n > 0 { rights.get().map(drop) } else { Ok(()) }
    }

    fn cuMemPoolTrimTo(pool: u64, bytes: u64) |machine| {
        machine.pool(pool)?;
        machine.trim_pool(pool, bytes);
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: u64, attribute: u32, value: Out<u8>) |machine| {
        let attribute = number(attribute)?;
        let found = machine.pool(pool)?.attribute(attribute)?;
        if Pool::is_short(attribute) {
            value.cast().put(u32::try_from(found).unwrap_or(1))
        } else {
            value.cast().put(found)
        }
    }

    fn cuMemPoolSetAttribute(pool: u64, attribute: u32, value: Out<u8>) |machine| {
        let attribute = number(attribute)?;
        let value = if Pool::is_short(attribute) {
            value.cast::<u32>().get()?.into()
        } else {
            value.cast::<u64>().get()?
        };
        machine.pool(pool)?.set_attribute(attribute, value)
    }
}

fn number(attribute: u32) -> Result<usize> {
    usize::try_from(attribute).map_err(|_| Code::INVALID_VALUE)
}
