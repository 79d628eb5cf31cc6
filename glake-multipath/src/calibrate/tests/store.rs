//! Files of calibrations.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static N: AtomicU64 = AtomicU64::new(0);
        let name = format!("glake-calibrate-{}-{}", std::process::id(), N.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn machine() -> (Arc<dyn Driver>, Topology) {
    let driver = config(1, LinkRates::h200()).build();
    let topology = topology(&driver);
    (Arc::new(driver), topology)
}

/// A calibration with something in every place.
fn rich(key: TopologyKey) -> Calibration {
    let mut found = small(config(3, LinkRates::h200()));
    found.topology = key;
    found.memcpy.push(MemcpyRate { n_threads: 4, bytes_per_ms: 36_500_000 });
    let ends = [end(1, Direction::ToHost), end(2, Direction::ToDevice)];
    let parts = ends.into_iter().flat_map(|end| {
        [Part::Link(end), Part::Chunk(end), Part::Scattered(end), Part::Relay(end, GPU), Part::Together(end)]
    });
    found.missing.extend(parts.map(|part| Missing { part, reason: Reason::Budget }));
    found
}

#[test]
fn what_is_stored_is_loaded() {
    let folder = Folder::new();
    let key = TopologyKey(u128::MAX - 5);
    let path = folder.0.join("some/where").join(Calibration::file_name(&key));
    let found = rich(key);
    found.store(&path).unwrap();
    assert_eq!(Calibration::load(&path, &key).unwrap(), found);
    let other = Calibration { memcpy: Vec::new(), ..found };
    other.store(&path).unwrap();
    assert_eq!(Calibration::load(&path, &key).unwrap(), other, "in place of the first");
    let names = fs::read_dir(path.parent().unwrap()).unwrap().count();
    assert_eq!(names, 1, "no temporary file is left");
}

#[test]
fn files_that_are_no_use_say_why() {
    let folder = Folder::new();
    let (path, key) = (folder.0.join("a.json"), TopologyKey(7));
    let load = |text: &[u8]| {
        fs::write(&path, text).unwrap();
        Calibration::load(&path, &key).unwrap_err()
    };
    let rich = rich(key);
    let text = serde_json::to_string(&rich).unwrap();
    for cut in [0, 1, text.len() / 2, text.len() - 1] {
        let error = load(&text.as_bytes()[..cut]);
        assert!(matches!(error, StoreError::Malformed { source: Some(_), .. }), "{cut}: {error:?}");
    }
    assert!(matches!(load(&[0xff; 100]), StoreError::Malformed { .. }));
    assert!(matches!(load(br#"{"version":1}"#), StoreError::Malformed { .. }));
    assert!(matches!(load(br#"{"version":0,"links":"other"}"#), StoreError::Version(0)));
    let foreign = serde_json::to_vec(&Calibration { topology: TopologyKey(8), ..rich.clone() }).unwrap();
    assert!(matches!(load(&foreign), StoreError::Foreign(other) if *other == TopologyKey(8)));
    let changes: [fn(&mut Calibration); 6] = [
        |found| found.links[1].direct.bytes_per_ms = 0,
        |found| found.links[0].relays[1].path.bytes_per_ms = 0,
        |found| found.links[0].together_bytes_per_ms = Some(0),
        |found| found.links[2].chunk_bytes = Some(0),
        |found| found.links[2].chunk_bytes = Some(1 << 40),
        |found| found.memcpy[0].n_threads = 0,
    ];
    for change in changes {
        let mut found = rich.clone();
        change(&mut found);
        let error = load(&serde_json::to_vec(&found).unwrap());
        assert!(matches!(error, StoreError::Malformed { source: None, .. }), "{error:?}");
    }
    fs::remove_file(&path).unwrap();
    assert!(matches!(Calibration::load(&path, &key), Err(StoreError::Io { .. })));
}

#[test]
fn a_machine_is_measured_once() {
    let folder = Folder::new();
    let (driver, topology) = machine();
    let get = || Calibration::load_or_measure(&folder.0, &driver, &topology, SECOND_NS).unwrap();
    let first = get();
    assert_eq!((first.links.len(), folder.names()), (2, vec![Calibration::file_name(&topology.key())]));
    let now_ns = driver.now_ns();
    assert_eq!((get(), driver.now_ns()), (first.clone(), now_ns), "nothing was asked of the driver");
    let path = folder.0.join(Calibration::file_name(&topology.key()));
    let old = serde_json::to_string(&Calibration { version: 0, ..first.clone() }).unwrap();
    let foreign = serde_json::to_string(&rich(TopologyKey(8))).unwrap();
    for text in ["", "{", &old, &foreign] {
        fs::write(&path, text).unwrap();
        let again = get();
        assert_eq!(again.links.len(), 2);
        assert!(driver.now_ns() > now_ns);
        assert_eq!(Calibration::load(&path, &topology.key()).unwrap(), again, "replaced");
    }
}

#[test]
fn a_folder_that_cannot_be_used_does_no_harm() {
    let folder = Folder::new();
    let file = folder.0.join("file");
    fs::write(&file, "not a folder").unwrap();
    let (driver, topology) = machine();
    let found = Calibration::load_or_measure(&file, &driver, &topology, SECOND_NS).unwrap();
    assert_eq!((found.links.len(), fs::read_to_string(&file).unwrap().as_str()), (2, "not a folder"));
    let path = folder.0.join(Calibration::file_name(&topology.key()));
    fs::create_dir(&path).unwrap();
    let found = Calibration::load_or_measure(&folder.0, &driver, &topology, SECOND_NS).unwrap();
    assert_eq!((found.links.len(), folder.names().len()), (2, 2), "the temporary file is gone");
}

#[test]
fn what_failed_is_not_kept() {
    let folder = Folder::new();
    let driver = Arc::new(config(1, LinkRates::h200()).build());
    let topology = topology(&driver);
    let shared: Arc<dyn Driver> = Arc::clone(&driver) as Arc<dyn Driver>;
    let get = || Calibration::load_or_measure(&folder.0, &shared, &topology, SECOND_NS).unwrap();
    driver.plan(Fault::nth(0).of(Target::Kernels));
    assert!(get().has_failures());
    assert_eq!(folder.names(), [""; 0]);
    assert!(!get().has_failures());
    assert_eq!(folder.names().len(), 1);
}

#[test]
fn the_default_folder_follows_the_xdg_specification() {
    let at = |xdg: Option<&str>, home: Option<&str>| {
        default_folder(xdg.map(AsRef::as_ref), home.map(AsRef::as_ref)).map(|path| path.display().to_string())
    };
    assert_eq!(at(Some("/caches"), Some("/home/me")).as_deref(), Some("/caches/glake"));
    for none in [None, Some(""), Some("caches")] {
        assert_eq!(at(none, Some("/home/me")).as_deref(), Some("/home/me/.cache/glake"));
        assert_eq!((at(none, None), at(none, Some(""))), (None, None));
    }
}
