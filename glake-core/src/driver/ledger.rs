//! What a driver was asked for, counted by the driver itself.

/// A kind of driver call that memory pools make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Call {
    /// Addresses reserved.
    Reserve,
    /// Reservation given back.
    Unreserve,
    /// Physical handle created.
    Create,
    /// Physical handle released.
    Release,
    /// Handle mapped.
    Map,
    /// Range unmapped.
    Unmap,
    /// Access rights set.
    SetAccess,
    /// Event recorded, of a stream or of a whole device.
    Record,
    /// Event queried.
    Query,
    /// Stream made to wait for an event.
    Wait,
    /// Host blocked on an event or on a whole device.
    Synchronize,
    /// Memory information read.
    MemoryInfo,
}

impl Call {
    /// Every kind, in the order of the ledger.
    pub const ALL: [Self; 12] = [
        Self::Reserve,
        Self::Unreserve,
        Self::Create,
        Self::Release,
        Self::Map,
        Self::Unmap,
        Self::SetAccess,
        Self::Record,
        Self::Query,
        Self::Wait,
        Self::Synchronize,
        Self::MemoryInfo,
    ];

    /// Its name in reports, as in the names of methods.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reserve => "reserve",
            Self::Unreserve => "unreserve",
            Self::Create => "create",
            Self::Release => "release",
            Self::Map => "map",
            Self::Unmap => "unmap",
            Self::SetAccess => "set_access",
            Self::Record => "record",
            Self::Query => "query",
            Self::Wait => "wait",
            Self::Synchronize => "synchronize",
            Self::MemoryInfo => "memory_info",
        }
    }
}

/// Counts of driver calls and of physical memory, for one device.
///
/// Failed calls count too. Times are modelled by the simulated driver's cost table, or measured
/// around the call by a real one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    calls: [u64; Call::ALL.len()],
    ns: [u64; Call::ALL.len()],
    /// Nanoseconds spent in all calls, those of no kind included.
    pub driver_ns: u64,
    /// Bytes of live physical memory, handles that are only mapped still included.
    pub physical_bytes: u64,
    /// The most that `physical_bytes` has been.
    pub peak_physical_bytes: u64,
}

impl Ledger {
    /// How often `call` was made.
    #[must_use]
    pub const fn n(&self, call: Call) -> u64 {
        self.calls[call as usize]
    }

    /// Nanoseconds spent in calls of one kind.
    #[must_use]
    pub const fn ns(&self, call: Call) -> u64 {
        self.ns[call as usize]
    }

    /// How many calls were made in all.
    #[must_use]
    pub fn n_calls(&self) -> u64 {
        self.calls.iter().sum()
    }

    /// Counts one `call` that took `ns`.
    pub fn count(&mut self, call: Call, ns: u64) {
        self.calls[call as usize] += 1;
        self.ns[call as usize] += ns;
        self.driver_ns += ns;
    }

    /// Adds physical memory.
    pub fn grow(&mut self, bytes: u64) {
        self.physical_bytes += bytes;
        self.peak_physical_bytes = self.peak_physical_bytes.max(self.physical_bytes);
    }

    /// Takes physical memory away.
    pub fn shrink(&mut self, bytes: u64) {
        self.physical_bytes = self.physical_bytes.saturating_sub(bytes);
    }
}
