//! Every byte on the device, compared with the files.

use std::error::Error;
use std::os::unix::fs::FileExt;

use glake_core::units::DeviceId;
use glake_multipath::Engine;
use glake_multipath::checkpoint::{Checkpoint, Loaded};

/// Bytes compared at once.
const AT_ONCE: usize = 16 << 20;

/// How many bytes were compared and are the same.
pub fn verify(
    engine: &Engine,
    device: DeviceId,
    checkpoint: &Checkpoint,
    loaded: &Loaded,
) -> Result<u64, Box<dyn Error>> {
    let (mut there, mut here) = (vec![0; AT_ONCE], vec![0; AT_ONCE]);
    let mut verified_bytes = 0;
    for tensor in checkpoint.tensors() {
        let on_device =
            loaded.get(&tensor.name).ok_or_else(|| format!("{:?} was not loaded", tensor.name))?;
        let file = checkpoint.shards()[tensor.shard].file();
        let mut at = 0;
        while at < tensor.bytes {
            let n = usize::try_from(tensor.bytes - at)?.min(AT_ONCE);
            file.read_exact_at(&mut here[..n], tensor.offset_bytes + at)?;
            engine.on(device).read(on_device.ptr + at, &mut there[..n])?;
            if here[..n] != there[..n] {
                return Err(format!("{:?} is not what the file has, from byte {at} on", tensor.name).into());
            }
            at += n as u64;
        }
        verified_bytes += tensor.bytes;
    }
    Ok(verified_bytes)
}
