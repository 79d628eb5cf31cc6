//! What the transfer of one shard consists of.

use glake_core::units::DevicePtr;

use super::Tensor;
use crate::chunk::Segment;

/// The segments for `tensors` of one shard, which go to the places beside them, in the order of the file.
/// Tensors that follow each other without a gap in the file and on the device make one.
pub(super) fn segments<'a>(tensors: impl Iterator<Item = (&'a Tensor, DevicePtr)>) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for (tensor, device) in tensors.filter(|(tensor, _)| tensor.bytes > 0) {
        let next = Segment { host_offset: tensor.offset_bytes, device, bytes: tensor.bytes };
        match segments.last_mut() {
            Some(last) if adjoin(*last, next) => last.bytes += next.bytes,
            _ => segments.push(next),
        }
    }
    segments
}

fn adjoin(last: Segment, next: Segment) -> bool {
    last.host_end() == next.host_offset && last.device.checked_add(last.bytes) == Some(next.device)
}
