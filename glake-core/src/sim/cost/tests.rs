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
#[allow(clippy::cast_precision_loss, reason = "microseconds of a table")]
fn many_handles_of_one_size_cost_what_was_measured() {
    let table = CostTable::h200();
    // For each handle of 1 GiB in handles of one size: (MiB, create, map, set access, unmap,
    // release) in µs.
    let rows = [
        (2, 13.2, 1.2, 33.1, 23.2, 15.5),
        (4, 12.9, 1.1, 33.0, 23.2, 17.0),
        (8, 14.3, 1.3, 34.9, 23.8, 21.6),
        (16, 13.2, 1.1, 35.1, 23.2, 25.2),
        (32, 16.3, 1.2, 35.3, 23.0, 36.1),
        (64, 18.3, 1.2, 35.5, 22.5, 64.6),
        (128, 22.3, 1.4, 41.7, 23.0, 112.5),
        (256, 28.6, 1.5, 47.0, 24.6, 200.0),
    ];
    for (mib, create, map, access, unmap, release) in rows {
        let (bytes, n) = (mib * MIB, 1024 / mib);
        close("create", table.create.at(bytes), create, 20.0);
        assert!((map..7.0).contains(&(table.map.at(bytes) as f64 / 1000.0)), "map");
        close("set access", table.set_access_ns / n + table.set_access.at(bytes), access, 6.0);
        close("unmap", table.unmap.at(bytes), unmap, 7.0);
        close("release", table.release.at(bytes), release, 8.0);
    }
}

#[test]
fn the_largest_handles_cost_what_was_measured() {
    let table = CostTable::h200();
    for (mib, create, access, unmap, release) in
        [(512, 103.0, 179.0, 28.0, 342.0), (2048, 224.0, 690.0, 45.0, 1222.0)]
    {
        let bytes = mib * MIB;
        close("create", table.create.at(bytes), create, 0.1);
        close("set access", table.set_access_ns + table.set_access.at(bytes), access, 1.0);
        close("unmap", table.unmap.at(bytes), unmap, 0.1);
        close("release", table.release.at(bytes), release, 0.1);
    }
}
