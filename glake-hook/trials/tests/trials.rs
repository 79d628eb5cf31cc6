//! The trials, each in a process of its own over the stand-in driver: in programs that load the driver, and in
//! programs that link to it; as built for tests, and with link-time optimization.
#![allow(clippy::unwrap_used, reason = "tests panic to fail")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Runs a trial of a program over the stand-in, with work that is done late.
fn run(program: &Path, trial: &str) {
    run_with(program, trial, "manual");
}

fn run_with(program: &Path, trial: &str, completion: &str) {
    let output = Command::new(program)
        .arg(trial)
        .env("GLAKE_STANDIN_COMPLETION", completion)
        .env("LD_LIBRARY_PATH", glake_standin::folder())
        .env("GLAKE_TRIAL_LIBRARY", library())
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

/// libglake.so, the hook in a library of its own.
fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../capi/Cargo.toml");
        let target = Path::new(env!("CARGO_BIN_EXE_trial")).parent().unwrap();
        let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
        let arguments = ["build", "--quiet", "--profile", profile, "--manifest-path", manifest];
        let output = Command::new(env!("CARGO")).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        target.join("libglake.so")
    })
}

fn said(output: &Output) -> String {
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{}\n{out}\n{errors}", output.status)
}

/// How a program comes to the driver, and how it is built.
#[derive(Clone, Copy, Debug)]
enum Way {
    Linked,
    LinkedOptimized,
    LoadedOptimized,
}

impl Way {
    /// The program, built once in each test process: cargo finds it done.
    fn program(self) -> &'static Path {
        static BUILT: [OnceLock<PathBuf>; 3] = [const { OnceLock::new() }; 3];
        BUILT[self as usize].get_or_init(|| {
            let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/linked/Cargo.toml");
            let (folder, arguments, profile): (_, &[&str], _) = match self {
                Self::Linked => ("linked", &["--features=linked"], "debug"),
                Self::LinkedOptimized => ("linked", &["--features=linked", "--release"], "release"),
                Self::LoadedOptimized => ("loaded", &["--release"], "release"),
            };
            let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
            let mut links = std::ffi::OsString::from("-Lnative=");
            links.push(glake_standin::folder());
            let output = Command::new(env!("CARGO"))
                .args(["build", "--quiet", "--manifest-path", manifest, "--target-dir"])
                .arg(&target)
                .args(arguments)
                .env("CARGO_ENCODED_RUSTFLAGS", links)
                .env_remove("RUSTFLAGS")
                .output()
                .unwrap();
            assert!(output.status.success(), "{}", said(&output));
            target.join(profile).join("trial")
        })
    }
}

/// All trials in the way.
fn run_all(way: Way) {
    let program = way.program();
    let list =
        Command::new(program).arg("--list").env("LD_LIBRARY_PATH", glake_standin::folder()).output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    assert!(list.lines().count() > 20);
    list.lines().for_each(|trial| run(program, trial));
}

#[test]
fn programs_that_link_to_the_driver() {
    run_all(Way::Linked);
}

#[test]
fn programs_that_link_to_the_driver_with_link_time_optimization() {
    run_all(Way::LinkedOptimized);
}

#[test]
fn programs_that_load_the_driver_with_link_time_optimization() {
    run_all(Way::LoadedOptimized);
}

#[test]
fn a_program_without_a_driver() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_trial"));
    let output = program.arg("--without-driver").env_remove("LD_LIBRARY_PATH").output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

macro_rules! loading {
    ($($name:ident)*) => {
        /// Programs that load the driver, as built for tests.
        mod loading {
            $(
                #[test]
                fn $name() {
                    for completion in ["immediate", "manual", "lag:2"] {
                        super::run_with(env!("CARGO_BIN_EXE_trial").as_ref(), stringify!($name), completion);
                    }
                }
            )*

            #[test]
            fn every_trial_is_a_test() {
                let list = std::process::Command::new(env!("CARGO_BIN_EXE_trial")).arg("--list").output().unwrap();
                let list = String::from_utf8(list.stdout).unwrap();
                assert_eq!(list.lines().collect::<Vec<_>>(), [$(stringify!($name)),*]);
            }
        }
    };
}

loading! {
    a_program_allocates_from_the_pool zero_bytes_and_foreign_memory_are_the_drivers
    out_of_memory_is_said_and_got_over memory_without_a_stream_is_ready_at_once pitched_rows_are_aligned
    pinned_memory_is_kept_and_not_too_early the_drivers_pools_are_served a_pool_in_the_defaults_place_is_used
        the_runtime_api_is_served what_the_drivers_pool_keeps_is_had_back threads_free_what_others_allocated
    streams_come_and_go two_streams_share_a_budget a_second_context_is_left_to_the_driver a_program_with_contexts_of_its_own
    a_thread_frees_what_another_uses plain_memory_is_freed_behind_all_streams
        a_graph_that_is_gone_leaves_work_behind a_use_behind_a_capture_is_the_streams default_streams_of_two_devices
    two_devices_have_a_pool_each peers_reach_the_pool peers_reach_what_a_memory_pool_grants a_free_of_another_device_breaks_no_capture a_captured_graph_keeps_its_memory
    a_capture_of_two_streams a_broken_capture_costs_nothing
        a_broken_capture_is_over_when_it_ends captures_that_nobody_tells_of what_other_threads_do_breaks_no_capture
    large_copies_are_the_engines copies_are_the_drivers_until_switched_on the_engines_own_calls_are_the_drivers
        copies_are_in_the_order_of_their_stream waiting_copies_are_behind_blocking_streams
    copies_of_pinned_memory_return_at_once copies_beside_captures_are_the_drivers copies_of_other_memory_are_the_drivers
        what_the_engine_cannot_do_the_driver_does copies_go_over_the_links_of_several_devices
        copies_stay_on_the_link_that_is_allowed threads_copy_at_the_same_time
    a_checkpoint_is_loaded_to_the_pool weights_fill_memory_that_is_there what_cannot_be_loaded_leaves_nothing
    what_is_said_of_memory_fits_the_pool
    a_recording_can_be_replayed a_recording_ends_no_other tags_say_who_holds_memory options_are_set_by_name limits_can_change
    functions_are_found_by_name installing_twice_is_refused installing_too_late_is_refused_or_works
    a_name_that_is_taken_is_noticed another_hook_is_noticed a_hook_in_a_library_stays a_fork_has_no_hook without_a_hook_the_driver_serves
}
