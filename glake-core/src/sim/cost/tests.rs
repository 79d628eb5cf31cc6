use super::{CostTable, Curve};

const MIB: u64 = 1 << 20;

/// Whether `modelled` microseconds are within `percent` of `measured` ones.
#[track_caller]
fn close(what: &str, modelled_ns: u64, measured_us: f64, percent: f64) {
    #[allow(clippy::cast_precision_loss, reason = "microseconds of a table")]
    let ratio = modelled_ns as f64 / 1000.0 / measured_us;
    assert!((ratio - 1.0).abs() * 100.0 <= percent, "{what}: {ratio:.2} of the measured cost");
}

#[test]
fn a_curve_is_level_then_straight_then_goes_on() {
    let curve = Curve::new(&[(20, 300), (10, 100)]);
    assert_eq!([0, 10, 15, 20, 30].map(|bytes| curve.at(bytes)), [100, 100, 200, 300, 500]);
    assert_eq!(Curve::new(&[(10, 7)]).at(99), 7);
    assert_eq!(Curve::default().at(1), 0);
    assert_eq!(Curve::new(&[(10, 100), (20, 50)]).at(100), 0, "a falling line stops at zero");
}

#[test]
fn single_handles_cost_what_was_measured() {
    let table = CostTable::h200();
    // (MiB, create, map, set access, unmap, release) in µs
    let rows = [
        (2, 11.0, 1.0, 70.0, 18.0, 23.0),
        (32, 11.0, 1.0, 68.0, 26.0, 38.0),
        (128, 12.0, 1.0, 160.0, 27.0, 103.0),
        (512, 103.0, 2.0, 179.0, 28.0, 342.0),
        (2048, 224.0, 3.0, 690.0, 45.0, 1222.0),
    ];
    for (mib, create, map, access, unmap, release) in rows {
        let bytes = mib * MIB;
        close("create", table.create.at(bytes), create, 0.1);
        close("map", table.map.at(bytes), map, 0.1);
        close("set access", table.set_access_ns + table.set_access.at(bytes), access, 3.0);
        close("unmap", table.unmap.at(bytes), unmap, 0.1);
        close("release", table.release.at(bytes), release, 0.1);
    }
}

#[test]
fn mapping_512_mib_costs_what_was_measured_but_for_the_smallest_handles() {
    let table = CostTable::h200();
    for (mib, measured_us, percent) in
        [(2, 12_000.0, 20.0), (8, 2800.0, 15.0), (32, 730.0, 15.0), (64, 390.0, 15.0)]
    {
        let (bytes, n) = (mib * MIB, 512 / mib);
        let ns = n * table.map.at(bytes) + table.set_access_ns + n * table.set_access.at(bytes);
        close("mapping 512 MiB", ns, measured_us, percent);
    }
    // The other, conflicting measurement: 28 µs for each of 256 handles of 2 MiB.
    close("set access in a long range", table.set_access_ns / 256 + table.set_access.at(2 * MIB), 28.0, 34.0);
}
