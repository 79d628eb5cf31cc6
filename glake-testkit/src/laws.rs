//! The laws of drivers: one suite for every implementation, simulated or real.
//!
//! Each law is a function of a driver that panics where the driver breaks it. Laws use at most
//! 1 GiB, leave nothing behind, and complete work by waiting for it only.
//!
//! The functions in [`destructive`] leave the driver's device lost: each needs a process of its
//! own on a real GPU.

pub mod access;
pub mod books;
pub mod copies;
pub mod destructive;
pub mod host;
pub mod kernels;
pub mod order;
pub mod peers;
pub mod rehome;
mod rig;
pub mod share;
pub mod space;

pub use rig::Rig;

/// Makes one `#[test]` of each law. `$maker` is the path of a function
/// `fn() -> Option<Arc<dyn Driver>>`, called once for each law; `None`, where there is no
/// device, skips the law.
///
/// ```
/// use std::sync::Arc;
/// use glake_core::driver::Driver;
/// use glake_core::sim::SimDriver;
///
/// fn simulated() -> Option<Arc<dyn Driver>> {
///     Some(Arc::new(SimDriver::h200(2)))
/// }
///
/// mod simulated_laws {
///     glake_testkit::driver_laws!(super::simulated);
/// }
/// ```
#[macro_export]
macro_rules! driver_laws {
    ($maker:path) => {
        $crate::bind_laws! { $maker;
            space: [
                the_granule_is_a_page,
                a_handle_is_whole_pages,
                sixteen_tib_can_be_reserved_at_once,
                reservations_are_aligned_and_disjoint,
                a_reservation_is_given_back_as_it_was_made,
                a_mapping_lies_in_one_reservation,
                nothing_is_mapped_over_a_mapping,
                a_handle_is_unmapped_whole,
                several_mappings_are_unmapped_in_one_call,
                a_range_with_a_hole_is_not_unmapped,
                aliases_show_the_same_bytes,
                a_released_handle_lives_while_it_is_mapped,
                a_released_handle_is_unknown,
                a_request_beyond_the_device_is_out_of_memory,
                an_unknown_device_is_refused,
            ];
            access: [
                a_new_mapping_has_no_access,
                a_remapped_handle_has_no_access,
                the_copy_engine_does_not_write_read_only_memory,
                a_kernel_is_not_launched_on_read_only_memory,
                rights_belong_to_the_mapping,
                rights_can_be_taken_and_given,
                rights_are_set_on_many_mappings_at_once,
                rights_are_not_set_on_parts_and_holes,
                unknown_and_unmapped_addresses_are_refused,
            ];
            order: [
                an_event_passes,
                work_runs_in_the_order_of_its_stream,
                a_stream_waits_for_an_event_of_another,
                an_event_is_behind_the_work_before_it,
                a_forgotten_event_is_unknown,
                an_unknown_stream_is_refused,
                the_work_of_a_destroyed_stream_still_runs,
                each_thread_has_a_default_stream,
                an_event_of_a_device_is_behind_all_its_streams,
                a_device_is_waited_for_as_a_whole,
                a_stream_says_whether_it_is_captured,
            ];
            copies: [
                bytes_come_back_over_mapping_borders,
                blocking_copies_wait_for_their_stream,
                an_asynchronous_write_owns_its_bytes,
                an_asynchronous_read_is_taken_once,
                a_copy_moves_exactly_its_bytes,
                a_fill_touches_exactly_its_range,
                nothing_is_copied_by_empty_copies,
            ];
            host: [
                held_memory_is_read_when_the_copy_runs,
                a_buffer_comes_back_when_its_copies_are_done,
                memory_that_was_let_go_is_kept_until_its_copies_are_done,
                lent_memory_comes_back_when_its_copies_are_done,
                lent_memory_comes_back_after_a_failure_too,
                lent_memory_is_not_let_go_nor_taken_back,
                only_parts_of_held_memory_are_copied,
                read_only_memory_is_not_written,
                pinned_memory_is_told_apart,
            ];
            kernels: [
                a_pattern_is_what_it_says,
                a_check_counts_each_wrong_word,
                patterns_are_made_of_whole_words,
                a_gather_moves_every_piece,
                a_refused_gather_moves_nothing,
                a_kernel_copies_exactly_its_bytes,
                a_comparison_sees_the_last_byte,
            ];
            rehome: [
                handles_move_under_pending_work,
                an_old_alias_shows_what_the_copy_engine_wrote,
                streams_see_the_same_bytes_at_different_aliases,
                an_address_shows_its_new_handle_at_once,
            ];
            share: [
                an_imported_handle_shows_the_same_bytes,
                an_exported_handle_keeps_its_bytes_and_mappings,
                imported_memory_outlives_the_original,
                only_exported_handles_are_imported,
                an_import_has_the_size_of_the_export,
                an_imported_handle_can_be_mapped_read_only,
            ];
            peers: [
                peers_are_the_devices_that_reach_memory,
                peers_reach_memory_that_they_were_given,
                peers_do_not_reach_memory_that_they_were_not_given,
                peers_may_have_different_rights,
            ];
            books: [
                every_call_is_counted,
                calls_on_a_whole_device_are_counted,
                physical_memory_is_accounted,
                a_failed_call_is_counted,
            ];
        }
    };
}

/// Makes one `#[test]` of each law that ends with the device lost; as
/// [`driver_laws!`](crate::driver_laws). Work has to be able to be pending on the driver, and on a
/// real GPU each test needs a process of its own.
#[macro_export]
macro_rules! destructive_driver_laws {
    ($maker:path) => {
        $crate::bind_laws! { $maker;
            destructive: [
                unmapping_under_a_kernel_loses_the_device,
                taking_the_right_to_write_under_a_kernel_loses_the_device,
            ];
        }
    };
}

/// Makes the tests of [`driver_laws!`](crate::driver_laws).
#[doc(hidden)]
#[macro_export]
macro_rules! bind_laws {
    ($maker:path; $($module:ident: [$($law:ident),* $(,)?];)*) => {
        $($(
            #[test]
            fn $law() {
                if let Some(driver) = $maker() {
                    $crate::laws::$module::$law(&*driver);
                }
            }
        )*)*
    };
}
