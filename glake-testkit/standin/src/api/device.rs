//! Devices.

use std::ffi::c_char;

use crate::abi::Out;
use crate::code::Code;

const NAME: &str = "NVIDIA H200 (stand-in)";
/// Attributes of an H200, by the numbers of `CUdevice_attribute`; all others are 0.
const ATTRIBUTES: &[(u32, i32)] = &[
    (1, 1024),        // MAX_THREADS_PER_BLOCK
    (2, 1024),        // MAX_BLOCK_DIM_X
    (3, 1024),        // MAX_BLOCK_DIM_Y
    (4, 64),          // MAX_BLOCK_DIM_Z
    (5, i32::MAX),    // MAX_GRID_DIM_X
    (6, 65_535),      // MAX_GRID_DIM_Y
    (7, 65_535),      // MAX_GRID_DIM_Z
    (8, 49_152),      // MAX_SHARED_MEMORY_PER_BLOCK
    (9, 65_536),      // TOTAL_CONSTANT_MEMORY
    (10, 32),         // WARP_SIZE
    (11, i32::MAX),   // MAX_PITCH
    (12, 65_536),     // MAX_REGISTERS_PER_BLOCK
    (13, 1_980_000),  // CLOCK_RATE
    (14, 512),        // TEXTURE_ALIGNMENT
    (15, 1),          // GPU_OVERLAP
    (16, 132),        // MULTIPROCESSOR_COUNT
    (19, 1),          // CAN_MAP_HOST_MEMORY
    (31, 1),          // CONCURRENT_KERNELS
    (32, 1),          // ECC_ENABLED
    (36, 3_201_000),  // MEMORY_CLOCK_RATE
    (37, 6_144),      // GLOBAL_MEMORY_BUS_WIDTH
    (38, 52_428_800), // L2_CACHE_SIZE
    (39, 2_048),      // MAX_THREADS_PER_MULTIPROCESSOR
    (40, 3),          // ASYNC_ENGINE_COUNT
    (41, 1),          // UNIFIED_ADDRESSING
    (75, 9),          // COMPUTE_CAPABILITY_MAJOR
    (76, 0),          // COMPUTE_CAPABILITY_MINOR
    (78, 1),          // STREAM_PRIORITIES_SUPPORTED
    (81, 233_472),    // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
    (82, 65_536),     // MAX_REGISTERS_PER_MULTIPROCESSOR
    (95, 1),          // COOPERATIVE_LAUNCH
    (97, 232_448),    // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    (99, 1),          // HOST_REGISTER_SUPPORTED
    (102, 1),         // VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED
    (103, 1),         // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
    (106, 32),        // MAX_BLOCKS_PER_MULTIPROCESSOR
    (110, 1),         // GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
    (111, 1_024),     // RESERVED_SHARED_MEMORY_PER_BLOCK
    (115, 1),         // MEMORY_POOLS_SUPPORTED
    (119, 1),         // MEMPOOL_SUPPORTED_HANDLE_TYPES
];
/// The first number that stands for no attribute.
const N_ATTRIBUTES: u32 = 200;
/// `CU_DEVICE_ATTRIBUTE_PCI_BUS_ID`: what tells the devices apart.
const PCI_BUS_ID: u32 = 33;

driver_functions! {
    fn cuDeviceGetCount(count: Out<i32>) |machine| {
        count.put(i32::try_from(machine.config.n_devices).unwrap_or(i32::MAX))
    }

    fn cuDeviceGet(device: Out<i32>, ordinal: i32) |machine| {
        machine.device(ordinal)?;
        device.put(ordinal)
    }

    fn cuDeviceGetName(name: Out<c_char>, n_bytes: i32, device: i32) |machine| {
        machine.device(device)?;
        name.put_text(NAME, n_bytes)
    }

    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: i32) |machine| { uuid.put(id(machine.device(device)?)) }

    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) |machine| { uuid.put(id(machine.device(device)?)) }

    fn cuDeviceGetPCIBusId(name: Out<c_char>, n_bytes: i32, device: i32) |machine| {
        let bus = machine.device(device)? + 1;
        name.put_text(&format!("0000:{bus:02X}:00.0"), n_bytes)
    }

    fn cuDeviceTotalMem_v2(bytes: Out<u64>, device: i32) |machine| {
        let device = machine.device(device)?;
        bytes.put(machine.memory.info(device).1)
    }

    fn cuDeviceGetAttribute(value: Out<i32>, attribute: u32, device: i32) |machine| {
        machine.device(device)?;
        if attribute == 0 || attribute >= N_ATTRIBUTES {
            return Err(Code::INVALID_VALUE);
        }
        if attribute == PCI_BUS_ID {
            return value.put(device + 1);
        }
        let known = ATTRIBUTES.iter().find(|(number, _)| *number == attribute);
        value.put(known.map_or(0, |(_, value)| *value))
    }

    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) |machine| {
        can.put(i32::from(machine.device(device)? != machine.device(peer)?))
    }

    fn cuDevicePrimaryCtxRetain(context: Out<u64>, device: i32) |machine| {
        let primary = machine.primaries[machine.device(device)?];
        machine.check_lost(primary)?;
        if let Some(context) = machine.contexts.get_mut(&primary) {
            context.n_retained += 1;
        }
        context.put(primary)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: i32) |machine| {
        let primary = machine.primaries[machine.device(device)?];
        let Some(context) = machine.contexts.get_mut(&primary) else { return Err(Code::INVALID_CONTEXT) };
        match context.n_retained {
            0 => return Err(Code::INVALID_CONTEXT),
            1 => machine.end_context(primary),
            _ => context.n_retained -= 1,
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, is_active: Out<i32>) |machine| {
        let primary = machine.primaries[machine.device(device)?];
        flags.put(0)?;
        is_active.put(i32::from(machine.is_live(primary)))
    }
}

/// A device's number as a UUID.
fn id(device: usize) -> [u8; 16] {
    let mut id = *b"glake-stand-in-0";
    id[15] += u8::try_from(device).unwrap_or(0);
    id
}
