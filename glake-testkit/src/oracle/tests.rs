use super::*;

fn at(ptr: u64, bytes: u64, stream: u64) -> Allocation {
    Allocation { ptr: DevicePtr(ptr), bytes, stream: StreamId(stream) }
}

#[test]
fn disjoint_memory_is_right() {
    let mut oracle = Oracle::of_addresses();
    for ptr in [0, 1024, 512] {
        oracle.allocated(&at(ptr, 512, 1));
    }
    oracle.freed(DevicePtr(512), StreamId(1));
    oracle.allocated(&at(600, 400, 1));
    assert_eq!(oracle.findings(), Findings::default());
    assert_eq!(oracle.n_live(), 3);
}

#[test]
fn overlaps_are_found_from_every_side() {
    for (ptr, bytes) in [(900, 200), (1500, 1), (1999, 500), (0, 9000), (1000, 1000)] {
        let mut oracle = Oracle::of_addresses();
        oracle.allocated(&at(1000, 1000, 1));
        oracle.allocated(&at(ptr, bytes, 1));
        assert_eq!(oracle.findings().n_overlaps, 1, "{ptr} {bytes}");
    }
}

#[test]
fn reuse_on_another_stream_needs_an_order() {
    let mut oracle = Oracle::of_addresses();
    oracle.allocated(&at(0, 1000, 1));
    oracle.freed(DevicePtr(0), StreamId(1));
    oracle.allocated(&at(0, 100, 1));
    assert_eq!(oracle.findings(), Findings::default());
    oracle.allocated(&at(500, 100, 2));
    assert_eq!(oracle.findings(), Findings { n_out_of_order_reuses: 1, ..Findings::default() });
}
