//! What each driver call costs, as data.

/// A cost in nanoseconds as a function of a handle's size in bytes: straight lines between
/// points, level before the first one, and on along the last line behind the last one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Curve {
    points: Vec<(u64, u64)>,
}

impl Curve {
    /// A curve through `points`, pairs of handle bytes and nanoseconds, in any order. Without
    /// points it is zero everywhere.
    #[must_use]
    pub fn new(points: &[(u64, u64)]) -> Self {
        let mut points = points.to_vec();
        points.sort_unstable();
        points.dedup_by_key(|point| point.0);
        Self { points }
    }

    /// The cost in nanoseconds for a handle of `bytes`.
    #[must_use]
    pub fn at(&self, bytes: u64) -> u64 {
        let above = self.points.partition_point(|point| point.0 < bytes);
        match self.points.as_slice() {
            [] => 0,
            [only] => only.1,
            [first, ..] if above == 0 => first.1,
            points => {
                let right = above.min(points.len() - 1);
                line(points[right - 1], points[right], bytes)
            }
        }
    }
}

/// The height at `x` of the line through two points.
fn line(left: (u64, u64), right: (u64, u64), x: u64) -> u64 {
    let rise = i128::from(right.1) - i128::from(left.1);
    let run = i128::from(right.0 - left.0);
    let y = i128::from(left.1) + rise * (i128::from(x) - i128::from(left.0)) / run;
    u64::try_from(y.max(0)).unwrap_or(u64::MAX)
}

/// What each driver call costs in nanoseconds of host time.
///
/// The table is data: measure another machine, fill in another table. It knows nothing about
/// links, copies and kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CostTable {
    /// Reserving addresses.
    pub reserve_ns: u64,
    /// Giving addresses back.
    pub unreserve_ns: u64,
    /// Creating a handle.
    pub create: Curve,
    /// Mapping a handle.
    pub map: Curve,
    /// Setting access, once for each call.
    pub set_access_ns: u64,
    /// Setting access, for each mapping in the range.
    pub set_access: Curve,
    /// Unmapping, for each mapping in the range.
    pub unmap: Curve,
    /// Releasing a handle.
    pub release: Curve,
    /// Recording an event.
    pub record_ns: u64,
    /// Querying an event.
    pub query_ns: u64,
    /// Making a stream wait for an event.
    pub wait_ns: u64,
    /// Blocking on an event, beside the wait itself.
    pub synchronize_ns: u64,
    /// Reading free and total memory.
    pub memory_info_ns: u64,
    /// Exporting a handle as a file descriptor.
    pub export_ns: u64,
    /// Importing a handle from a file descriptor.
    pub import_ns: u64,
}

impl CostTable {
    /// The table measured on an NVIDIA H200 (driver 580.159.04, CUDA 13.0): medians of three
    /// rounds that created, mapped, opened, unmapped and released 1 GiB in handles of one size,
    /// with and without a kernel running; the points from 512 MiB on are of single handles.
    ///
    /// Cost is per handle, nearly whatever its size up to 64 MiB and however many handles a call
    /// covers. Creating and mapping lie between the tight loop of that measurement (13 and 1 µs)
    /// and the replay of whole traces (15 and 7 µs), where code and driver are cold. Reserving,
    /// giving addresses back, memory information and synchronising with a passed event were not
    /// measured: their costs are plausible values. `docs/results.md` has modelled beside measured
    /// times of whole traces.
    #[must_use]
    pub fn h200() -> Self {
        const MIB: u64 = 1 << 20;
        const US: u64 = 1000;
        let [m2, m8, m16, m32, m64, m128, m256, m512, m2048] =
            [2, 8, 16, 32, 64, 128, 256, 512, 2048].map(|mib| mib * MIB);
        Self {
            reserve_ns: 2 * US,
            unreserve_ns: 2 * US,
            create: Curve::new(&[
                (m16, 14 * US),
                (m64, 18 * US),
                (m256, 29 * US),
                (m512, 103 * US),
                (m2048, 224 * US),
            ]),
            map: Curve::new(&[(m2048, 4 * US)]),
            set_access_ns: US,
            set_access: Curve::new(&[
                (m64, 34 * US),
                (m128, 40 * US),
                (m256, 48 * US),
                (m512, 179 * US),
                (m2048, 690 * US),
            ]),
            unmap: Curve::new(&[(m256, 23 * US), (m512, 28 * US), (m2048, 45 * US)]),
            release: Curve::new(&[
                (m2, 15 * US),
                (m8, 22 * US),
                (m32, 36 * US),
                (m64, 63 * US),
                (m128, 115 * US),
                (m256, 200 * US),
                (m512, 342 * US),
                (m2048, 1222 * US),
            ]),
            record_ns: 151,
            query_ns: 157,
            wait_ns: 117,
            synchronize_ns: 157,
            memory_info_ns: 5 * US,
            export_ns: 42 * US,
            import_ns: 52 * US,
        }
    }

    /// A table in which everything is free of charge.
    #[must_use]
    pub fn free() -> Self {
        Self::default()
    }
}

#[cfg(test)]
mod tests;
