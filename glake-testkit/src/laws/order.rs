//! Laws of streams and events.

use glake_core::driver::{Driver, DriverError};
use glake_core::units::{DeviceId, EventId, PAGE_BYTES, StreamId};

use super::rig::{Rig, page, part};

/// A delay long enough for the host to get on meanwhile.
const DELAY_NS: u64 = 3_000_000;

/// An event passes at last, on an idle and on a busy stream, and has then passed for good.
pub fn an_event_passes(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    for delay_ns in [0, DELAY_NS] {
        driver.delay(rig.stream, delay_ns).unwrap();
        let event = driver.record(rig.stream).unwrap();
        driver.synchronize(event).unwrap();
        assert_eq!([(); 2].map(|()| driver.query(event)), [Ok(true); 2]);
        driver.synchronize(event).unwrap();
        driver.wait(rig.stream, event).unwrap();
        driver.forget(event);
    }
    rig.close();
}

/// Later work of a stream sees what earlier work did, of kernels and of the copy engine.
pub fn work_runs_in_the_order_of_its_stream(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(2);
    let (first, second) = (range.start, page(range, 1));
    driver.delay(rig.stream, DELAY_NS).unwrap();
    for value in 1..=9 {
        driver.write_async(first, std::sync::Arc::new([value; 64]), rig.stream).unwrap();
        driver.copy_by_kernel(second, first, 64, rig.stream).unwrap();
        driver.copy(first + 64 * u64::from(value), second, 64, rig.stream).unwrap();
    }
    let expected: Vec<u8> = [9].into_iter().chain(1..=9).flat_map(|value| [value; 64]).collect();
    assert_eq!(rig.bytes(first, 640), expected);
    rig.close();
}

/// Work behind a wait sees what was done before the event on another stream, and events pass a
/// wait on to third streams.
pub fn a_stream_waits_for_an_event_of_another(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let (middle, last) = (Rig::new(driver), Rig::new(driver));
    let range = rig.pages(1);
    for seed in 0..4 {
        let before = driver.mismatches(last.stream).unwrap();
        driver.delay(rig.stream, DELAY_NS).unwrap();
        driver.fill_pattern(range, seed, rig.stream).unwrap();
        let mut event = driver.record(rig.stream).unwrap();
        for stream in [middle.stream, last.stream] {
            driver.wait(stream, event).unwrap();
            driver.forget(event);
            event = driver.record(stream).unwrap();
        }
        driver.check_pattern(range, seed, last.stream).unwrap();
        assert_eq!(driver.mismatches(last.stream), Ok(before), "seed {seed}");
        driver.forget(event);
    }
    rig.finish();
    middle.finish();
    last.finish();
    driver.destroy_stream(middle.stream).unwrap();
    driver.destroy_stream(last.stream).unwrap();
    rig.close();
}

/// When an event has passed, the work before it is done, seen from another stream.
pub fn an_event_is_behind_the_work_before_it(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let other = driver.create_stream(rig.device).unwrap();
    let range = rig.pages(1);
    driver.delay(rig.stream, DELAY_NS).unwrap();
    driver.fill(range, 0x77, rig.stream).unwrap();
    let event = driver.record(rig.stream).unwrap();
    driver.synchronize(event).unwrap();
    let mut byte = [0];
    driver.read(range.start + (PAGE_BYTES - 1), &mut byte, other).unwrap();
    assert_eq!(byte, [0x77]);
    driver.forget(event);
    driver.destroy_stream(other).unwrap();
    rig.close();
}

/// An event that was forgotten, or never recorded, is refused; forgetting it again is not.
pub fn a_forgotten_event_is_unknown(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let event = driver.record(rig.stream).unwrap();
    driver.forget(event);
    let reused = driver.record(rig.stream).unwrap();
    driver.forget(event);
    for event in [event, EventId(u64::MAX)] {
        let unknown = DriverError::UnknownEvent(event);
        assert_eq!(driver.query(event), Err(unknown));
        assert_eq!(driver.synchronize(event), Err(unknown));
        assert_eq!(driver.wait(rig.stream, event), Err(unknown));
    }
    driver.synchronize(reused).unwrap();
    driver.forget(reused);
    rig.close();
}

/// A stream that was destroyed or never made is refused, and the default streams are not
/// destroyed.
pub fn an_unknown_stream_is_refused(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(1);
    let destroyed = driver.create_stream(rig.device).unwrap();
    driver.destroy_stream(destroyed).unwrap();
    let event = driver.record(rig.stream).unwrap();
    for stream in [destroyed, StreamId(u64::MAX - 1)] {
        let unknown = DriverError::UnknownStream(stream);
        assert_eq!(driver.record(stream), Err(unknown));
        assert_eq!(driver.wait(stream, event), Err(unknown));
        assert_eq!(driver.delay(stream, 1), Err(unknown));
        assert_eq!(driver.write(range.start, &[1], stream), Err(unknown));
        assert_eq!(driver.fill(range, 1, stream), Err(unknown));
        assert_eq!(driver.mismatches(stream), Err(unknown));
        assert_eq!(driver.destroy_stream(stream), Err(unknown));
    }
    for stream in [StreamId::LEGACY, StreamId::PER_THREAD] {
        assert_eq!(driver.destroy_stream(stream), Err(DriverError::UnknownStream(stream)));
    }
    driver.forget(event);
    rig.close();
}

/// Destroying a stream neither blocks nor drops its work, and its events still pass.
pub fn the_work_of_a_destroyed_stream_still_runs(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(1);
    let stream = driver.create_stream(rig.device).unwrap();
    driver.delay(stream, DELAY_NS).unwrap();
    driver.fill(range, 0x33, stream).unwrap();
    let event = driver.record(stream).unwrap();
    driver.destroy_stream(stream).unwrap();
    driver.wait(rig.stream, event).unwrap();
    assert_eq!(rig.get(range.start), 0x33);
    assert_eq!(driver.query(event), Ok(true));
    driver.forget(event);
    rig.close();
}

/// The legacy stream and each thread's own take work, and events order one against another.
pub fn each_thread_has_a_default_stream(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(1);
    let event = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            driver.delay(StreamId::PER_THREAD, DELAY_NS).unwrap();
            driver.fill(range, 1, StreamId::PER_THREAD).unwrap();
            driver.record(StreamId::PER_THREAD).unwrap()
        });
        other.join().unwrap()
    });
    driver.wait(StreamId::PER_THREAD, event).unwrap();
    driver.fill(range, 2, StreamId::PER_THREAD).unwrap();
    let mut byte = [0];
    driver.read(range.start, &mut byte, StreamId::PER_THREAD).unwrap();
    assert_eq!(byte, [2]);
    driver.read(range.start, &mut byte, StreamId::LEGACY).unwrap();
    assert_eq!(byte, [2]);
    driver.forget(event);
    rig.close();
}

/// An event of a device is behind the work of all its streams: of this thread, of others, and of
/// those that are gone. Drivers that cannot record one say so.
pub fn an_event_of_a_device_is_behind_all_its_streams(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(4);
    let (other, gone) =
        (driver.create_stream(rig.device).unwrap(), driver.create_stream(rig.device).unwrap());
    let fill = |page_index, stream| {
        driver.delay(stream, DELAY_NS).unwrap();
        driver.fill(part(range, page_index, 1), 0x55, stream).unwrap();
        driver.record(stream).unwrap()
    };
    let mut events = vec![fill(0, rig.stream), fill(1, gone)];
    driver.destroy_stream(gone).unwrap();
    events.push(std::thread::scope(|scope| scope.spawn(|| fill(2, StreamId::PER_THREAD)).join().unwrap()));
    let all = match driver.record_all(rig.device) {
        Err(DriverError::NotSupported(_)) => None,
        all => Some(all.unwrap()),
    };
    if let Some(all) = all {
        driver.wait(other, all).unwrap();
        for page_index in 0..3 {
            driver.copy(page(range, 3) + page_index, page(range, page_index), 1, other).unwrap();
        }
        let mut bytes = [0; 3];
        driver.read(page(range, 3), &mut bytes, other).unwrap();
        assert_eq!(bytes, [0x55; 3]);
        driver.synchronize(all).unwrap();
        assert_eq!(driver.query(all), Ok(true));
        assert!(events.iter().all(|&event| driver.query(event) == Ok(true)), "each has passed before it");
        events.push(all);
    }
    driver.synchronize_all(rig.device).unwrap();
    for event in events {
        driver.forget(event);
    }
    driver.destroy_stream(other).unwrap();
    rig.close();
}

/// Whoever has waited for a device finds the work of all its streams done.
pub fn a_device_is_waited_for_as_a_whole(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let streams: Vec<_> = (0..3).map(|_| driver.create_stream(rig.device).unwrap()).collect();
    let mut events = Vec::new();
    for &stream in streams.iter().chain([&StreamId::PER_THREAD]) {
        driver.delay(stream, DELAY_NS).unwrap();
        events.push(driver.record(stream).unwrap());
    }
    events.push(std::thread::scope(|scope| {
        let elsewhere = scope.spawn(|| {
            driver.delay(StreamId::PER_THREAD, 2 * DELAY_NS).unwrap();
            driver.record(StreamId::PER_THREAD).unwrap()
        });
        elsewhere.join().unwrap()
    }));
    driver.synchronize_all(rig.device).unwrap();
    for event in events {
        assert_eq!(driver.query(event), Ok(true));
        driver.forget(event);
    }
    driver.synchronize_all(rig.device).unwrap();
    for stream in streams {
        driver.destroy_stream(stream).unwrap();
    }
    let unknown = DeviceId(u32::MAX);
    assert_eq!(driver.synchronize_all(unknown), Err(DriverError::InvalidDevice(unknown)));
    let recorded = driver.record_all(unknown);
    assert_eq!(recorded, Err(DriverError::InvalidDevice(unknown)));
    rig.close();
}

/// No stream is captured unless somebody captures it.
pub fn a_stream_says_whether_it_is_captured(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    for stream in [rig.stream, StreamId::LEGACY, StreamId::PER_THREAD] {
        assert_eq!(driver.is_capturing(stream), Ok(false));
    }
    let unknown = StreamId(u64::MAX - 1);
    assert_eq!(driver.is_capturing(unknown), Err(DriverError::UnknownStream(unknown)));
    rig.close();
}
