//! Many threads, each on a stream of its own, with objects handed from one to another.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use glake_core::alloc::{AllocError, Allocation};
use glake_testkit::program::check_order;
use glake_testkit::rng::Rng;

use super::rig::{KIB, MIB, Rig};

const N_THREADS: usize = 8;

/// Runs a random program on stream `me`; objects in `post` belong to whoever takes them.
fn run(rig: &Rig, me: usize, n_steps: usize, post: &Mutex<Vec<Allocation>>) {
    let mut rng = Rng::new(me as u64);
    let mut live: Vec<Allocation> = Vec::new();
    for _ in 0..n_steps {
        match rng.below(100) {
            0 => drop(rig.pool.trim(rng.below(64 * MIB)).unwrap()),
            1 => {
                rig.pool.defragment().unwrap();
            }
            2..10 => drop(rig.sim.complete(rig.streams[me], rng.below(16) as usize).unwrap()),
            10..55 => {
                let most = if rng.below(8) == 0 { 4 * MIB } else { 96 * KIB };
                let bytes = rng.log_between(1, most);
                let is_for_all = rng.below(6) == 0;
                let made =
                    if is_for_all { rig.try_allocate_for_all(bytes) } else { rig.try_allocate(me, bytes) };
                match made {
                    Ok(allocation) => live.push(allocation),
                    Err(AllocError::OutOfMemory(_)) => {
                        live.drain(..).for_each(|allocation| rig.free(allocation, me));
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            55..65 if !live.is_empty() => {
                let allocation = live[rng.below(live.len() as u64) as usize];
                rig.record_use(allocation, rng.below(N_THREADS as u64) as usize);
            }
            65..75 if !live.is_empty() => {
                let allocation = live.swap_remove(rng.below(live.len() as u64) as usize);
                post.lock().unwrap().push(allocation);
            }
            75..85 => {
                let taken = post.lock().unwrap().pop();
                if let Some(allocation) = taken {
                    rig.free(allocation, me);
                }
            }
            _ if !live.is_empty() => {
                rig.free(live.swap_remove(rng.below(live.len() as u64) as usize), me);
            }
            _ => {}
        }
    }
    live.into_iter().for_each(|allocation| rig.free(allocation, me));
}

fn run_all(memory_bytes: u64, n_steps: usize) {
    let rig = Rig::new(N_THREADS, memory_bytes);
    let post = Mutex::new(Vec::new());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (rig, post) = (&rig, &post);
        let all: Vec<_> = (0..N_THREADS).map(|me| scope.spawn(move || run(rig, me, n_steps, post))).collect();
        let watcher = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                check_order(&rig.pool.stats());
            }
        });
        let ends: Vec<_> = all.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        watcher.join().unwrap();
        ends.into_iter().for_each(|end| end.unwrap());
    });
    rig.pool.check_invariants();
    post.into_inner().unwrap().into_iter().for_each(|allocation| rig.free(allocation, 0));
    rig.finish();
}

#[test]
fn random_programs_on_eight_streams_keep_the_contract() {
    run_all(1 << 30, 2000);
}

#[test]
fn random_programs_on_eight_streams_keep_the_contract_where_memory_is_short() {
    run_all(48 * MIB, 2000);
}

/// One thread hands all that it allocates to another, which frees it on its own stream.
#[test]
fn objects_that_are_freed_elsewhere_are_used_again() {
    let rig = Rig::new(2, 1 << 30);
    let (to, from) = std::sync::mpsc::sync_channel::<Allocation>(64);
    std::thread::scope(|scope| {
        let rig = &rig;
        scope.spawn(move || {
            for _ in 0..5000 {
                to.send(rig.allocate(0, 32 * KIB)).unwrap();
            }
        });
        scope.spawn(move || {
            for (i, allocation) in from.into_iter().enumerate() {
                rig.free(allocation, 1);
                if i % 64 == 0 {
                    rig.sim.complete_all();
                }
            }
        });
    });
    // 156 MiB went through.
    assert!(rig.pool.stats().peak_reserved_bytes <= 32 * MIB, "{:?}", rig.pool.stats());
    rig.finish();
}
