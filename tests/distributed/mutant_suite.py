"""A part of the tests that takes a second: what has to notice that the combination of gradients is broken."""

import functools

from minigrad.distributed import run
from minigrad.testing.conformance import CHECKS, MinigradAdapter
from tests.distributed import (
    test_alike,
    test_bitwise,
    test_buckets,
    test_buffers_on_tape,
    test_ddp,
    test_failed_backward,
    test_faults,
    test_given_gradients,
    test_half,
    test_hooks,
    test_join,
    test_kept_gradients,
    test_nested_passes,
    test_replicas,
    test_samples,
    test_schedules,
    test_stats,
    test_two_wrappers,
    twin_scenarios,
)
from tests.distributed.mutants import RANKS_S


def suite():
    """Name and function of each test, the broadest first."""
    adapter = MinigradAdapter(functools.partial(run, timeout_s=RANKS_S))
    for check in CHECKS:
        yield check.__name__, functools.partial(check, adapter)
    for module, names in OTHERS.items():
        module.TIMEOUT_S = RANKS_S
        for name in names:
            yield name, getattr(module, name)
    for before in (test_samples.an_evaluation_that_records, test_samples.gradients_that_are_dropped):
        yield before.__name__, functools.partial(test_samples.test_only_what_backward_reaches_counts, before)
    twice = test_buffers_on_tape.test_two_backwards_before_the_next_forward
    for form in ("mul", "a view", "where"):
        yield form, functools.partial(twice, form, "one graph")
    yield "small halves", functools.partial(test_half.test_what_is_small_is_not_lost, "threads")
    yield "bytes of a hook", functools.partial(test_stats.test_bytes_are_those_that_a_hook_sends, "top-k", "threads")
    shared = test_stats.test_two_wrappers_in_one_backward_share_what_it_takes
    yield "two wrappers", functools.partial(shared, 1.3)
    alike = test_failed_backward.test_where_all_fail_alike_the_next_step_is_right
    yield "all fail alike", functools.partial(alike, "threads", 2)
    yield "one fails", functools.partial(
        test_failed_backward.test_where_others_wait_all_fail_and_go_on_with_a_new_communicator,
        "threads",
        test_failed_backward.one_rank_before_any_bucket,
    )
    for how in ("raises", "is caught"):
        nested = test_nested_passes.test_a_pass_nested_in_a_backward_is_named_on_all_ranks
        yield how, functools.partial(nested, "flush", how)
    refused = test_given_gradients.test_gradients_that_no_counted_forward_made_are_refused
    yield "by hand", functools.partial(refused, test_given_gradients.over_a_combined_one, "flush")
    yield "by a forward", functools.partial(
        refused, test_given_gradients.after_a_forward_that_had_no_backward, "flush"
    )
    yield "accumulated", functools.partial(
        test_join.test_who_leaves_hands_in_what_it_accumulated_and_nothing_else, test_join.all_have_accumulated, 5.0
    )
    early = test_nested_passes.test_gradients_are_used_when_the_backward_is_over
    yield "a step", functools.partial(early, test_nested_passes.a_step, "backward")
    yield "in place", functools.partial(test_nested_passes.test_a_gradient_that_is_sent_stays_as_it_is, "in place")
    weightless = test_given_gradients.test_gradients_that_weigh_nothing_on_any_rank_are_zero
    yield "weightless", functools.partial(weightless, "by hand")
    yield "unequal options", functools.partial(test_ddp.test_unequal_options_are_refused_on_all_ranks, "sync", "manual")
    restored = test_alike.test_a_state_restored_on_one_rank_only_is_refused
    yield "restored on one", functools.partial(restored, *test_alike.RESTORED[2])
    otherwise = test_alike.test_what_was_made_or_set_otherwise_on_one_rank_is_refused
    yield "set otherwise on one", functools.partial(otherwise, *test_alike.OTHERWISE[1])
    behind = test_alike.test_what_stayed_behind_in_a_join_is_refused_unless_it_is_handed_on
    yield "join", functools.partial(behind, "threads", (2, 4))
    alike = test_alike.test_a_state_that_is_alike_is_taken_however_it_came_about
    yield "alike", functools.partial(alike, "threads")
    for name in twin_scenarios.SCENARIOS:
        yield f"twin: {name}", functools.partial(twin_scenarios.check, name)
    for seed in range(8):
        yield f"schedule {seed}", functools.partial(test_schedules.test_overlapped_equals_serial_bit_for_bit, seed)


OTHERS = {
    test_failed_backward: ["test_a_failed_backward_says_nothing_of_samples"],
    test_nested_passes: ["test_local_backwards_within_each_other_add_up"],
    test_alike: ["test_each_rank_may_have_an_optimizer_of_parameters_of_its_own"],
    test_ddp: [
        "test_successive_backwards_add",
        "test_reduce_sum_adds_up_and_refuses_to_add_twice",
        "test_no_samples_anywhere_leaves_combined_gradients_and_makes_missing_ones_zero",
        "test_a_rank_whose_loss_reaches_nothing_flushes",
        "test_freezing_alike_makes_a_new_plan_and_freezing_alone_is_an_error",
        "test_freezing_what_has_accumulated_a_gradient_is_an_error",
        "test_a_replaced_or_moved_parameter_is_noticed",
        "test_a_rank_that_raises_in_backward_stops_the_others",
    ],
    test_buffers_on_tape: ["test_a_buffer_that_comes_home"],
    test_kept_gradients: ["test_averaged_by_hand", "test_hooks_that_keep_the_gradient_of_a_shard"],
    test_samples: ["test_forwards_and_their_backwards_in_any_order"],
    test_two_wrappers: [
        "test_one_loss_over_two_wrappers_of_equal_plans",
        "test_another_order_of_wrappers_with_equal_plans_is_an_error",
    ],
    test_join: ["test_dividing_by_the_initial_world_size", "test_throwing_on_all_ranks_together"],
    test_hooks: [
        "test_a_hook_sees_each_bucket_in_order_with_weighted_gradients",
        "test_predividing_leaves_room_for_the_sum",
        "test_what_comes_out_of_a_bucket_is_weighted_once",
    ],
    test_stats: ["test_waiting_for_a_slow_rank_is_no_communication", "test_what_the_calls_of_a_rank_come_to"],
    test_bitwise: ["test_counts_weigh_what_is_no_sample"],
    test_replicas: ["test_a_replica_that_counts_nothing_needs_none_and_adds_none"],
    test_buckets: ["test_a_frozen_parameter_splits_a_bucket"],
    test_faults: [
        "test_a_forward_that_goes_around_the_wrapper_is_an_error",
        "test_a_backward_that_raises_is_told_to_the_others_even_when_it_is_caught",
        "test_a_bucket_ends_with_its_buffer_even_where_the_next_one_seems_to_go_on",
    ],
}
