//! Trials of the hook: each is a program over unmodified cudarc, run in a process of its own.
//!
//! `trial NAME` runs one, `trial --list` names them, `trial --overhead` measures the hook. They run over the stand-in driver, whose counters they
//! read, and on a GPU.

#![allow(clippy::disallowed_methods, reason = "a trial may wait for a driver's thread, and measures time")]

mod captures;
mod copies;
mod devices;
mod driver;
mod installing;
mod load;
mod memory;
mod order;
mod overhead;
mod reuse;
mod talk;

use std::process::ExitCode;

use copies::left;

/// A trial panics where something is not as it should be.
type Trial = (&'static str, fn());

macro_rules! trials {
    ($($module:ident: $($name:ident)*;)*) => {
        const TRIALS: &[Trial] = &[$($((stringify!($name), $module::$name),)*)*];
    };
}

trials! {
    memory: a_program_allocates_from_the_pool zero_bytes_and_foreign_memory_are_the_drivers
        out_of_memory_is_said_and_got_over memory_without_a_stream_is_ready_at_once pitched_rows_are_aligned
        pinned_memory_is_kept_and_not_too_early the_drivers_pools_are_served a_pool_in_the_defaults_place_is_used
        the_runtime_api_is_served what_the_drivers_pool_keeps_is_had_back;
    order: threads_free_what_others_allocated streams_come_and_go two_streams_share_a_budget
        a_second_context_is_left_to_the_driver a_program_with_contexts_of_its_own;
    reuse: a_thread_frees_what_another_uses plain_memory_is_freed_behind_all_streams
        a_graph_that_is_gone_leaves_work_behind a_use_behind_a_capture_is_the_streams default_streams_of_two_devices;
    devices: two_devices_have_a_pool_each peers_reach_the_pool peers_reach_what_a_memory_pool_grants a_free_of_another_device_breaks_no_capture;
    captures: a_captured_graph_keeps_its_memory a_capture_of_two_streams a_broken_capture_costs_nothing
        a_broken_capture_is_over_when_it_ends captures_that_nobody_tells_of what_other_threads_do_breaks_no_capture;
    copies: large_copies_are_the_engines copies_are_the_drivers_until_switched_on the_engines_own_calls_are_the_drivers
        copies_are_in_the_order_of_their_stream waiting_copies_are_behind_blocking_streams;
    left: copies_of_pinned_memory_return_at_once copies_beside_captures_are_the_drivers copies_of_other_memory_are_the_drivers
        what_the_engine_cannot_do_the_driver_does copies_go_over_the_links_of_several_devices
        copies_stay_on_the_link_that_is_allowed threads_copy_at_the_same_time;
    load: a_checkpoint_is_loaded_to_the_pool weights_fill_memory_that_is_there what_cannot_be_loaded_leaves_nothing;
    talk: what_is_said_of_memory_fits_the_pool a_recording_can_be_replayed a_recording_ends_no_other tags_say_who_holds_memory
        options_are_set_by_name limits_can_change functions_are_found_by_name;
    installing: installing_twice_is_refused installing_too_late_is_refused_or_works
        a_name_that_is_taken_is_noticed another_hook_is_noticed a_hook_in_a_library_stays a_fork_has_no_hook without_a_hook_the_driver_serves;
}

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    if name == "--list" {
        TRIALS.iter().for_each(|(name, _)| println!("{name}"));
        return ExitCode::SUCCESS;
    }
    if name == "--without-driver" {
        installing::without_a_driver_there_is_no_hook();
        return ExitCode::SUCCESS;
    }
    if name == "--overhead" {
        overhead::run();
        return ExitCode::SUCCESS;
    }
    match TRIALS.iter().find(|trial| trial.0 == name) {
        Some((_, run)) => {
            run();
            println!("{name}: ok");
            ExitCode::SUCCESS
        }
        None => ExitCode::from(2),
    }
}
