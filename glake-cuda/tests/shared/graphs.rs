//! Captured graphs beside the pool and the driver: on a GPU by `device_graphs.rs`, on the stand-in by
//! `standin_graphs.rs`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{
    self, CUgraphInstantiate_flags, CUstreamCaptureMode, CUstreamCaptureStatus as Status,
};
use cudarc::driver::{CudaContext, DriverError as CudaError, result};
use glake_core::alloc::{AllocError, Allocation, Request};
use glake_core::driver::{Access, DeviceOps, DriverError, Result, StreamOrder, VirtualMemory};
use glake_core::units::{AddressRange, DeviceId, PAGE_BYTES, StreamId};
use glake_cuda::CudaDriver;
use glake_vmm::{Config, GraphMemory, SharedPool};

use super::{driver, work_late};

const DEVICE: DeviceId = DeviceId(0);
const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const MODES: [CUstreamCaptureMode; 3] = [
    GLOBAL,
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
];
const N_LAUNCHES: usize = 50;
const LIMIT_BYTES: u64 = 512 << 20;
/// Bytes at the beginning of an allocation that are written and checked.
const TESTED_BYTES: u64 = 64 << 10;
/// How long a kernel makes others wait.
const DELAY_NS: u64 = 200_000;
/// Patterns of what a graph reads and writes at each launch.
const INPUT: u64 = 1;
const OUTPUT: u64 = 2;

/// A capture in global mode bears on every thread: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cu(stream: StreamId) -> sys::CUstream {
    std::ptr::with_exposed_provenance_mut(usize::try_from(stream.0).unwrap())
}

fn begin(stream: StreamId, mode: CUstreamCaptureMode) {
    // SAFETY: the tests' streams live until the end of the test.
    unsafe { result::stream::begin_capture(cu(stream), mode) }.unwrap();
}

fn end(stream: StreamId) -> std::result::Result<Graph, CudaError> {
    // SAFETY: the tests' streams live until the end of the test.
    let graph = unsafe { result::stream::end_capture(cu(stream)) }?;
    Ok(Graph { graph, exec: None })
}

fn status(stream: StreamId) -> Status {
    // SAFETY: the tests' streams live until the end of the test.
    unsafe { result::stream::is_capturing(cu(stream)) }.unwrap()
}

/// A captured graph, destroyed with all that was made of it when it is dropped.
struct Graph {
    graph: sys::CUgraph,
    exec: Option<sys::CUgraphExec>,
}

impl Graph {
    fn instantiate(&mut self) {
        // Makes the device's context current on this thread, where it stays: the driver holds it, too.
        CudaContext::new(0).unwrap();
        // SAFETY: the graph is live.
        let exec = unsafe { result::graph::instantiate(self.graph, CUgraphInstantiate_flags(0)) }.unwrap();
        self.exec = Some(exec);
    }

    fn launch(&self, stream: StreamId) {
        // SAFETY: both are live, and so is the memory that the graph uses.
        unsafe { result::graph::launch(self.exec.unwrap(), cu(stream)) }.unwrap();
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Some(exec) = self.exec {
            // SAFETY: it is not used again.
            unsafe { result::graph::exec_destroy(exec) }.unwrap();
        }
        // SAFETY: it is not used again.
        unsafe { result::graph::destroy(self.graph) }.unwrap();
    }
}

/// The part of an allocation that is written and checked.
fn tested(allocation: &Allocation) -> AddressRange {
    AddressRange::new(allocation.ptr, allocation.bytes.min(TESTED_BYTES) / 8 * 8)
}

/// A pool, and who holds which of its bytes.
struct Rig {
    driver: CudaDriver,
    pool: SharedPool,
    wrong: u64,
}

impl Rig {
    fn new() -> Self {
        work_late();
        let driver = driver();
        let pool = SharedPool::new(Arc::new(driver.clone()), Config::new(DEVICE).limit_bytes(LIMIT_BYTES));
        let stream = driver.create_stream(DEVICE).unwrap();
        driver.delay(stream, 1).unwrap();
        let wrong = driver.mismatches(stream).unwrap();
        Self { driver, pool: pool.unwrap(), wrong }
    }

    fn stream(&self) -> StreamId {
        self.driver.create_stream(DEVICE).unwrap()
    }

    fn allocate(&self, bytes: u64, stream: StreamId) -> Allocation {
        self.pool.allocate(Request::new(bytes, stream)).unwrap()
    }

    /// Words that any check found wrong.
    fn n_wrong(&self) -> u64 {
        self.driver.synchronize_all(DEVICE).unwrap();
        self.driver.mismatches(self.stream()).unwrap() - self.wrong
    }

    fn reserved_bytes(&self) -> u64 {
        self.pool.stats().reserved_bytes
    }

    /// Gives back until nothing is left, or too much time has gone.
    fn trim_to_nothing(&self) {
        let start = Instant::now();
        while self.reserved_bytes() > 0 && start.elapsed() < Duration::from_secs(5) {
            self.pool.trim(0).unwrap();
        }
        assert_eq!(self.reserved_bytes(), 0, "{}", self.pool.stats());
    }
}

/// Allocates on `stream` as `sizes` say, writes, checks and frees: of three that live at a time, the
/// oldest goes first. Returns where the memory was.
fn churn(rig: &Rig, sizes: impl Iterator<Item = u64>, stream: StreamId, seed: u64) -> Vec<AddressRange> {
    let mut live: Vec<(Allocation, u64)> = Vec::new();
    let mut ranges = Vec::new();
    let drop_oldest = |live: &mut Vec<(Allocation, u64)>| {
        let (allocation, seed) = live.remove(0);
        rig.driver.check_pattern(tested(&allocation), seed, stream).unwrap();
        rig.pool.free(allocation.ptr, stream).unwrap();
    };
    for (seed, bytes) in (seed..).zip(sizes) {
        if live.len() == 3 {
            drop_oldest(&mut live);
        }
        let allocation = match rig.pool.allocate(Request::new(bytes, stream)) {
            Err(AllocError::OutOfMemory(_)) => continue,
            allocation => allocation.unwrap(),
        };
        rig.driver.fill_pattern(tested(&allocation), seed, stream).unwrap();
        ranges.push(AddressRange::new(allocation.ptr, bytes));
        live.push((allocation, seed));
    }
    while !live.is_empty() {
        drop_oldest(&mut live);
    }
    ranges
}

/// Sizes between `from` and `to` that differ from round to round, so that memory is cut up and
/// gathered.
fn sizes(from: u64, to: u64, round: u64) -> impl Iterator<Item = u64> {
    (0..12).map(move |n| from + (n * 7 + round * 5) % 11 * (to - from) / 10)
}

fn overlap(a: &[AddressRange], b: &[AddressRange]) -> bool {
    a.iter().any(|a| b.iter().any(|b| a.start < b.end() && b.start < a.end()))
}

/// What the pool serves other streams, from another thread.
struct Others<'a> {
    rig: &'a Rig,
    is_over: AtomicBool,
    n_rounds: AtomicU64,
    served: Mutex<Vec<AddressRange>>,
}

impl<'a> Others<'a> {
    fn new(rig: &'a Rig) -> Self {
        let served = Mutex::default();
        Self { rig, is_over: AtomicBool::new(false), n_rounds: AtomicU64::new(0), served }
    }

    /// Serves, and does all else that a pool does, until it is told to stop.
    fn serve(&self) {
        work_late();
        let streams = [self.rig.stream(), self.rig.stream(), StreamId::PER_THREAD];
        for round in 0.. {
            for (n, stream) in (1..).zip(streams) {
                self.rig.driver.delay(stream, DELAY_NS).unwrap();
                let seed = (round * 4 + n) << 32;
                let large = sizes(256 << 10, (9 + 5 * n) << 20, round + n);
                for ranges in [churn(self.rig, large, stream, seed), {
                    churn(self.rig, sizes(64, 9000, round + n), stream, seed + 100)
                }] {
                    self.served.lock().unwrap().extend(ranges);
                }
            }
            let pool = &self.rig.pool;
            pool.step().unwrap();
            match round % 4 {
                1 => drop(pool.defragment().unwrap()),
                3 => drop(pool.trim(64 << 20).unwrap()),
                _ => {}
            }
            self.n_rounds.store(round + 1, Ordering::Release);
            if self.is_over.load(Ordering::Acquire) {
                break;
            }
        }
    }

    /// Waits until they were served `n` rounds more.
    fn wait_for(&self, n: u64, thread: &ScopedJoinHandle<'_, ()>) {
        let until = self.n_rounds.load(Ordering::Acquire) + n;
        while self.n_rounds.load(Ordering::Acquire) < until {
            assert!(!thread.is_finished(), "the others failed");
            thread::yield_now();
        }
    }
}

/// Tells the others to stop, whatever happens.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// What tells the pool that a graph is gone.
#[derive(Clone, Copy)]
enum Ending {
    UserObject,
    Dropping,
}

/// A graph whose kernels use memory of the pool.
struct Captured {
    graph: Graph,
    /// Unless the graph holds it.
    memory: Option<GraphMemory>,
    /// Alive after the capture, and written by each launch.
    output: Allocation,
    /// All that was allocated in the capture.
    ranges: Vec<AddressRange>,
}

/// Captures kernels that check `input`, and allocations from `from` to `to` bytes that are written,
/// checked and freed; `pause` runs amid.
fn capture(
    rig: &Rig,
    stream: StreamId,
    input: &Allocation,
    (from, to, ending): (u64, u64, Ending),
    pause: impl Fn(),
) -> Captured {
    let memory = rig.pool.begin_capture(stream).unwrap();
    begin(stream, GLOBAL);
    let mut ranges = churn(rig, sizes(from, to, 0), stream, 1 << 60);
    pause();
    ranges.extend(churn(rig, sizes(from, to, 3), stream, 2 << 60));
    rig.driver.check_pattern(tested(input), INPUT, stream).unwrap();
    let output = rig.allocate(to, stream);
    rig.driver.fill_pattern(tested(&output), OUTPUT, stream).unwrap();
    ranges.push(AddressRange::new(output.ptr, output.bytes));
    assert_eq!(status(stream), Status::CU_STREAM_CAPTURE_STATUS_ACTIVE, "the capture lives");
    let mut graph = end(stream).expect("the capture is whole");
    rig.pool.end_capture(stream).unwrap();
    let memory = match ending {
        Ending::UserObject => {
            // SAFETY: the graph is live and this thread's.
            unsafe { rig.driver.when_graph_ends(graph.graph, || memory.finished()) }.unwrap();
            None
        }
        Ending::Dropping => Some(memory),
    };
    graph.instantiate();
    Captured { graph, memory, output, ranges }
}

/// A graph is captured on one stream and launched many times, while the pool serves other streams from
/// another thread throughout: no word is wrong, the graph's addresses stay its own, and its memory
/// comes back when it is gone.
fn a_graph_keeps_its_memory(from: u64, to: u64, ending: Ending) {
    let _alone = alone();
    let rig = Rig::new();
    let stream = rig.stream();
    // Written before the capture and read by every launch.
    let input = rig.allocate(3 << 20, stream);
    rig.driver.fill_pattern(tested(&input), INPUT, stream).unwrap();
    let others = Others::new(&rig);
    let captured = thread::scope(|scope| {
        let thread = scope.spawn(|| others.serve());
        let _stop = Stop(&others.is_over);
        others.wait_for(1, &thread);
        let captured = capture(&rig, stream, &input, (from, to, ending), || others.wait_for(4, &thread));
        others.served.lock().unwrap().clear();
        let n_stitches = rig.pool.stats().n_stitches;
        let mut own = Vec::new();
        for launch in 0..N_LAUNCHES {
            if launch % 10 == 0 {
                others.wait_for(2, &thread);
            }
            rig.driver.delay(stream, DELAY_NS).unwrap();
            captured.graph.launch(stream);
            rig.driver.check_pattern(tested(&captured.output), OUTPUT, stream).unwrap();
            // The stream's own work beside its graph.
            own.extend(churn(&rig, sizes(256 << 10, 6 << 20, launch as u64), stream, 3 << 60));
        }
        let n_gathers = || rig.pool.stats().n_stitches - n_stitches;
        for _ in 0..100 {
            others.wait_for(1, &thread);
            if n_gathers() > 0 {
                break;
            }
        }
        let n_gathers = n_gathers();
        let served = others.served.lock().unwrap();
        eprintln!("found: {n_gathers} gathers and {} allocations beside {N_LAUNCHES} launches", served.len());
        assert!(n_gathers > 0, "{}", rig.pool.stats());
        let is_shared = overlap(&captured.ranges, &served) || overlap(&captured.ranges, &own);
        assert!(!is_shared, "memory of the graph was served to others");
        captured
    });
    let Captured { graph, memory, output, ranges } = captured;
    assert_eq!(rig.n_wrong(), 0, "wrong words");

    // Whatever else is free goes, what the graph uses stays, though nobody has it allocated.
    // That its allocations are free changes nothing.
    let is_free = matches!(ending, Ending::UserObject);
    if is_free {
        rig.pool.free(output.ptr, stream).unwrap();
    }
    rig.pool.trim(0).unwrap();
    let left_bytes = rig.reserved_bytes();
    assert!(left_bytes >= to, "the graph keeps {left_bytes} bytes");
    let next = churn(&rig, sizes(256 << 10, 9 << 20, 1), stream, 4 << 60);
    assert!(!overlap(&ranges, &next), "memory of the graph was served to its stream");

    // The last launch is pending when the graph is destroyed.
    rig.driver.delay(stream, 10 * DELAY_NS).unwrap();
    graph.launch(stream);
    drop(graph);
    drop(memory);
    rig.pool.free(input.ptr, stream).unwrap();
    if !is_free {
        rig.pool.trim(0).unwrap();
        rig.pool.free(output.ptr, stream).unwrap();
    }
    rig.trim_to_nothing();
    assert_eq!(rig.n_wrong(), 0, "wrong words at the end");
}

#[test]
fn a_graph_keeps_its_memory_until_its_user_object_ends() {
    a_graph_keeps_its_memory(256 << 10, 16 << 20, Ending::UserObject);
}

#[test]
fn a_graph_keeps_its_memory_until_that_is_dropped() {
    a_graph_keeps_its_memory(256 << 10, 16 << 20, Ending::Dropping);
}

#[test]
fn a_graph_keeps_its_small_objects() {
    a_graph_keeps_its_memory(64, 9000, Ending::UserObject);
}

/// Counts how often it was called.
fn counter() -> (Arc<AtomicU64>, impl FnOnce() + Send) {
    let n = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&n);
    let act = move || {
        counted.fetch_add(1, Ordering::Release);
    };
    (n, act)
}

#[test]
fn a_graph_ends_when_it_is_destroyed_and_no_launch_is_pending() {
    let _alone = alone();
    let rig = Rig::new();
    let stream = rig.stream();
    begin(stream, GLOBAL);
    rig.driver.delay(stream, 1).unwrap();
    let mut graph = end(stream).unwrap();
    let (n, act) = counter();
    // SAFETY: the graph is live and this thread's.
    unsafe { rig.driver.when_graph_ends(graph.graph, act) }.unwrap();
    graph.instantiate();
    rig.driver.delay(stream, 100 * DELAY_NS).unwrap();
    graph.launch(stream);
    let launched = rig.driver.record(stream).unwrap();
    drop(graph);
    let was_pending = rig.driver.query(launched) == Ok(false);
    eprintln!("found: destroying a graph left its launch pending: {was_pending}");
    if was_pending {
        assert_eq!(n.load(Ordering::Acquire), 0, "the launch keeps it");
    }
    rig.driver.synchronize(launched).unwrap();
    let start = Instant::now();
    while n.load(Ordering::Acquire) == 0 && start.elapsed() < Duration::from_secs(5) {
        rig.driver.synchronize_all(DEVICE).unwrap();
    }
    assert_eq!(n.load(Ordering::Acquire), 1);
    assert_eq!(Arc::strong_count(&n), 1, "what was called is dropped");
}

/// A call by its name.
type Call<'a> = (&'a str, Box<dyn Fn() -> Result<()> + Send + Sync + 'a>);

/// The calls that the pool makes for a request of a captured stream, or of others meanwhile.
fn calls_of_the_pool(driver: &CudaDriver) -> Vec<Call<'_>> {
    let other = driver.create_stream(DEVICE).unwrap();
    let third = driver.create_stream(DEVICE).unwrap();
    let event = driver.record(other).unwrap();
    let range = driver.reserve(8 * PAGE_BYTES, PAGE_BYTES).unwrap();
    vec![
        ("reserve, unreserve", Box::new(|| driver.unreserve(driver.reserve(PAGE_BYTES, PAGE_BYTES)?))),
        ("create, release", Box::new(|| driver.release(driver.create(DEVICE, PAGE_BYTES)?))),
        (
            "map, set access, unmap",
            Box::new(move || {
                let handle = driver.create(DEVICE, PAGE_BYTES)?;
                driver.map(range.start, handle)?;
                let page = AddressRange::new(range.start, PAGE_BYTES);
                driver.set_access(page, &[DEVICE], Access::ReadWrite)?;
                driver.unmap(page)?;
                driver.release(handle)
            }),
        ),
        (
            "record on another stream",
            Box::new(move || driver.record(other).map(|event| driver.forget(event))),
        ),
        ("query", Box::new(move || driver.query(event).map(drop))),
        ("wait on another stream", Box::new(move || driver.wait(third, event))),
        ("synchronize an event of another stream", Box::new(move || driver.synchronize(event))),
        ("memory info", Box::new(|| driver.memory_info(DEVICE).map(drop))),
        ("create and destroy a stream", Box::new(|| driver.destroy_stream(driver.create_stream(DEVICE)?))),
    ]
}

/// Every call of the pool, in every mode of captures, from the thread that captures and from another:
/// none fails, and none breaks the capture.
#[test]
fn no_call_of_the_pool_breaks_a_capture() {
    let _alone = alone();
    let rig = Rig::new();
    let stream = rig.stream();
    let mut n_broken = 0;
    for (name, call) in &calls_of_the_pool(&rig.driver) {
        for mode in MODES {
            for is_elsewhere in [false, true] {
                begin(stream, mode);
                rig.driver.delay(stream, 1).unwrap();
                let outcome =
                    if is_elsewhere { thread::scope(|s| s.spawn(call).join().unwrap()) } else { call() };
                let after = status(stream);
                let ended = end(stream).map(drop);
                let is_whole = after == Status::CU_STREAM_CAPTURE_STATUS_ACTIVE && ended.is_ok();
                if outcome.is_err() || !is_whole {
                    n_broken += 1;
                    let thread = if is_elsewhere { "another" } else { "the capturing" };
                    eprintln!(
                        "found: {name} in {mode:?} from {thread} thread: {outcome:?}, then {after:?}, {ended:?}"
                    );
                }
            }
        }
    }
    eprintln!("found: {n_broken} calls of the pool in captures failed or broke them");
    assert_eq!(n_broken, 0);
}

/// An event behind all work of the device, while a stream that the driver was not told of is captured:
/// nobody promises what comes of it, and the pool does not rely on it. It is found out and printed.
#[test]
fn an_event_of_the_device_beside_a_capture_that_the_driver_does_not_know() {
    let _alone = alone();
    let rig = Rig::new();
    let context = CudaContext::new(0).unwrap();
    let unknown = context.new_stream().unwrap();
    for mode in MODES {
        for is_elsewhere in [false, true] {
            unknown.begin_capture(mode).unwrap();
            let record = || rig.driver.record_all(DEVICE);
            let recorded =
                if is_elsewhere { thread::scope(|s| s.spawn(record).join().unwrap()) } else { record() };
            let after = unknown.capture_status();
            let ended = unknown.end_capture(CUgraphInstantiate_flags(0)).map(drop);
            let thread = if is_elsewhere { "another" } else { "the capturing" };
            eprintln!(
                "found: cuCtxRecordEvent beside an unknown capture in {mode:?} from {thread} thread: {recorded:?}, \
                 then {after:?}, {ended:?}"
            );
            match recorded {
                Ok(event) => {
                    rig.driver.synchronize(event).unwrap();
                    rig.driver.forget(event);
                }
                Err(error) => {
                    let is_known = matches!(error, DriverError::Capturing(_) | DriverError::NotSupported(_));
                    assert!(is_known, "{error:?}");
                }
            }
        }
    }
    let event = rig.driver.record(rig.stream()).unwrap();
    rig.driver.synchronize(event).expect("the device lives");
}
