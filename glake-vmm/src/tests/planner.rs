//! Plans: which place, which donors, and what is blocked.

use std::ops::Range;

use glake_core::units::DevicePtr;

use super::rig::{MIB, Rig};
use crate::Mode;
use crate::plan::{Donor, Plan, Planner};
use crate::pool::StitchPool;
use crate::room::Stitching;
use crate::units::page_of;

/// A pool of single pages in which `layout` lies: letters are taken pages, dots free ones. Each
/// run of equal letters or dots is one allocation.
fn laid_out(layout: &str) -> Rig {
    let mut rig = Rig::manual(|config| config.mode(Mode::Compact));
    let mut free = Vec::new();
    let mut rest = layout;
    while let Some(kind) = rest.chars().next() {
        let n = rest.len() - rest.trim_start_matches(kind).len();
        let ptr = rig.allocate(n as u64 * 2 * MIB);
        if kind == '.' {
            free.push(ptr);
        }
        rest = &rest[n..];
    }
    free.into_iter().for_each(|ptr| rig.free(ptr));
    rig.sim.complete_all();
    rig.check();
    rig
}

/// Turns the free page runs at `pages` into holes.
fn dig(rig: &mut Rig, pages: &[Range<usize>]) {
    for pages in pages {
        for page in pages.clone() {
            let handle = rig.pool.slots.slot(page).home;
            let holds = |start: u64, end: u64| page_of(start) <= page && page < page_of(end);
            let blocks = rig.pool.blocks.ascending();
            let (block, _) = *blocks.iter().find(|(_, b)| b.is_free() && holds(b.start, b.end())).unwrap();
            let id = rig.pool.slots.handle(handle).id;
            rig.pool.driver.unmap(rig.pool.range(&(page..page + 1))).unwrap();
            rig.pool.driver.release(id).unwrap();
            let pieces = rig.pool.blocks.remove_pages(block, &(page..page + 1), &mut rig.pool.slots);
            rig.pool.blocks.drop_pieces(pieces);
            rig.pool.slots.unsettle(handle);
            rig.pool.slots.drop_handle(handle);
        }
    }
    rig.check();
}

fn plan_around(rig: &Rig, n_pages: u64, stitching: Stitching, blocked: &[Range<usize>]) -> Option<Plan> {
    let planner = Planner {
        blocks: &rig.pool.blocks,
        slots: &rig.pool.slots,
        n_arena_pages: page_of(rig.pool.arena.bytes),
        stitching,
        order: &rig.pool.order,
        taker: StitchPool::first_taker(),
    };
    let touches = |pages: &Range<usize>| blocked.iter().any(|b| b.start < pages.end && pages.start < b.end);
    planner.plan(n_pages * 2 * MIB, 512, touches)
}

fn plan(rig: &Rig, n_pages: u64) -> Plan {
    plan_around(rig, n_pages, Stitching::Always, &[]).unwrap()
}

fn donated(plan: &Plan) -> Vec<Range<usize>> {
    plan.donors.iter().map(|donor: &Donor| donor.pages.clone()).collect()
}

#[test]
fn an_empty_pool_grows_at_its_start() {
    let rig = Rig::manual(|config| config);
    assert_eq!(plan(&rig, 3), Plan { pages: 0..3, donors: Vec::new(), n_missing: 3 });
}

#[test]
fn donors_go_behind_the_tail() {
    let rig = laid_out("a..b....c.");
    let plan = plan(&rig, 4);
    // The tail has one page; three are needed, and the longest run has four.
    assert_eq!((plan.pages.clone(), plan.n_missing), (10..13, 0));
    assert_eq!(donated(&plan), [5..8]);
}

#[test]
fn the_last_pages_of_a_run_are_donated() {
    let rig = laid_out("a.....b");
    let plan = plan(&rig, 7);
    assert_eq!((plan.pages.clone(), donated(&plan), plan.n_missing), (7..14, vec![1..6], 2));
    let shorter = plan_around(&rig, 6, Stitching::Always, &[]).unwrap();
    assert_eq!((shorter.pages, shorter.n_missing), (7..13, 1));
    let rig = laid_out("a....b..");
    let part = self::plan(&rig, 5);
    assert_eq!((part.pages.clone(), donated(&part), part.n_missing), (8..11, vec![2..5], 0));
}

#[test]
fn what_the_tail_lacks_is_created_when_no_donor_is_left() {
    let rig = laid_out("a.b..");
    let plan = plan(&rig, 6);
    assert_eq!((plan.pages.clone(), donated(&plan), plan.n_missing), (5..9, vec![1..2], 3));
}

#[test]
fn a_hole_above_a_free_run_is_filled_where_that_moves_less() {
    // Free run of 3 pages, a hole of 2 above it.
    let mut rig = laid_out("a.....bc..d");
    dig(&mut rig, &[4..6]);
    let plan = plan(&rig, 4);
    assert_eq!((plan.pages.clone(), donated(&plan), plan.n_missing), (4..5, vec![9..10], 0));
}

#[test]
fn a_hole_below_a_free_run_is_filled_from_above() {
    let mut rig = laid_out("a.....bc..d");
    dig(&mut rig, &[1..3]);
    let plan = plan(&rig, 4);
    assert_eq!((plan.pages.clone(), donated(&plan), plan.n_missing), (2..3, vec![9..10], 0));
}

#[test]
fn a_hole_that_is_too_small_is_left_alone() {
    let mut rig = laid_out("a.....bc..d");
    dig(&mut rig, &[4..5]);
    // Two pages beside the run of three are not to be had.
    let plan = plan(&rig, 6);
    assert_eq!(plan.pages.start, 11);
    assert_eq!(plan.n_missing, 0);
}

#[test]
fn a_blocked_place_is_passed_over() {
    let mut rig = laid_out("a.....bc..d");
    dig(&mut rig, &[4..6]);
    let around = |blocked: &[Range<usize>]| plan_around(&rig, 4, Stitching::Always, blocked);
    let behind = around(&[4..6]).unwrap();
    assert_eq!((behind.pages, behind.n_missing), (11..15, 0), "behind the end");
    let below = around(&[4..6, 11..12]);
    assert_eq!(below, None, "no other hole is long enough");
}

#[test]
fn behind_a_blocked_end_pages_go_apart() {
    let mut rig = laid_out("a......b..");
    dig(&mut rig, &[4..7]);
    // The last page moves into the hole and leaves a stale mapping behind the end.
    let moved = rig.allocate(8 * MIB);
    assert_eq!(page_of(moved - rig.pool.arena.start), 1);
    assert_eq!((rig.pool.slots.end(), rig.pool.slots.n_known_pages()), (9, 10));
    assert_eq!(rig.pool.memory_stats().stale_bytes, 2 * MIB);
    // Work is pending that may use it, so the tail cannot grow.
    let apart = rig.allocate(10 * MIB);
    assert_eq!(page_of(apart - rig.pool.arena.start), 10);
    rig.check();
    rig.free_all();
    rig.finish();
}

#[test]
fn without_stitching_everything_is_created() {
    let rig = laid_out("a..b...c.");
    let plan = plan_around(&rig, 4, Stitching::Never, &[]).unwrap();
    assert_eq!(plan, Plan { pages: 9..12, donors: Vec::new(), n_missing: 3 });
}

#[test]
fn no_plan_goes_beyond_the_arena() {
    let mut rig = laid_out("a..b");
    rig.pool.arena.bytes = 10 * MIB;
    assert_eq!(plan_around(&rig, 4, Stitching::Always, &[]), None);
}

#[test]
fn partly_used_handles_do_not_move() {
    let mut rig = Rig::manual(|config| config.mode(Mode::Compact));
    let blocks: Vec<DevicePtr> = (0..6).map(|_| rig.allocate(MIB)).collect();
    blocks.iter().step_by(2).for_each(|&block| rig.free(block));
    let plan = plan(&rig, 2);
    assert_eq!((plan.donors.len(), plan.n_missing), (0, 2));
}

#[test]
fn a_plan_changes_nothing() {
    let rig = laid_out("a..b...c.");
    let before = rig.pool.snapshot();
    plan(&rig, 4);
    assert_eq!(rig.pool.snapshot(), before);
}
