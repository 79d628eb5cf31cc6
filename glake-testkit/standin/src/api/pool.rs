//! Pools of stream-ordered memory.

use crate::abi::{In, Location, Out};
use crate::code::{Code, Result};
use crate::machine::Machine;
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
        if find_pool(machine, pool)?.device != device {
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

    fn cuMemPoolDestroy(pool: u64) |machine| {
        let is_default = machine.device_pools.iter().any(|(default, _)| *default == pool);
        if is_default || !find_pool(machine, pool)?.is_empty() {
            return Err(Code::INVALID_VALUE);
        }
        machine.pools.remove(&pool);
        for (default, current) in &mut machine.device_pools {
            if *current == pool {
                *current = *default;
            }
        }
        Ok(())
    }

    fn cuMemPoolTrimTo(pool: u64, bytes: u64) |machine| {
        let _ = bytes;
        find_pool(machine, pool).map(drop)
    }

    fn cuMemPoolGetAttribute(pool: u64, attribute: u32, value: Out<u8>) |machine| {
        let attribute = number(attribute)?;
        let found = find_pool(machine, pool)?.attribute(attribute)?;
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
        machine.pools.get_mut(&pool).ok_or(Code::INVALID_VALUE)?.set_attribute(attribute, value)
    }
}

fn number(attribute: u32) -> Result<usize> {
    usize::try_from(attribute).map_err(|_| Code::INVALID_VALUE)
}

fn find_pool(machine: &Machine, pool: u64) -> Result<&Pool> {
    machine.pools.get(&pool).ok_or(Code::INVALID_VALUE)
}
