"""The conformance checks can fail: each fault of a naive wrapper is seen, and each check sees one."""

import pytest

from minigrad.testing.conformance import CHECKS
from tests.distributed.naive import NaiveAdapter

BY_NAME = {check.__name__.removeprefix("check_"): check for check in CHECKS}
FAULTS = {  # what a wrapper does wrong -> checks that must fail
    "always_syncs": "unsynchronised_backward_is_local",
    "casts": "dtypes_in_turn training very_unequal_batches",
    "collective_in_forward": "evaluation_on_one_rank",
    "compares_sizes": "other_names_are_refused",
    "divides_after": "float16_sum_in_range",
    "empty_bucket": "empty_parameter",
    "fills_silently": "unused_parameter_is_an_error",
    "float_buffers": "buffers_agree",
    "frozen_travel": "frozen_parameter",
    "goes_on": "rank_that_leaves nothing_works_after_a_failure",
    "hides_buffers": "state_is_that_of_the_model",
    "hides_errors": "rank_that_raises",
    "hides_nan": "nan_is_seen_by_all",
    "keeps_gradients": "zero_grad unused_after_used readiness_in_another_order joining",
    "last_samples_only": "accumulation_of_unequal_batches",
    "needs_two": "one_rank training",
    "new_parameters": "optimizer_made_before one_rank",
    "no_broadcast": "replicas_start_alike",
    "no_buffers": "buffers_agree",
    "no_comparison": "other_names_are_refused",
    "no_comparison cut_by_cap": "other_caps_are_right_or_refused",
    "no_comparison no_broadcast goes_on": "another_parameter_is_refused freezing_on_one_rank_is_refused",
    "no_comparison no_broadcast padded": "other_shapes_are_refused",
    "no_join": "joining",
    "no_tokens": "tokens nan_of_no_samples",
    "norm_over_ranks": "clipping",
    "order_by_cap": "bits_do_not_depend_on_the_cap",
    "order_by_chance": "bits_do_not_depend_on_the_run",
    "order_by_rank": "all_ranks_have_the_same_bits",
    "plain_mean": "unequal_batches very_unequal_batches empty_batch tokens accumulation_of_unequal_batches training",
    "prefix": "state_is_that_of_the_model",
    "ready_order": "readiness_in_another_order buckets_of_unequal_size unused_parameter_counts_as_zero",
    "replaces": "accumulation backwards_add_up",
    "running_sum": "float16_sum_of_small_parts",
    "short_messages": "parameter_above_the_cap",
    "skips_missing": "unused_parameter_counts_as_zero rank_that_uses_nothing",
    "stale": "unused_after_used",
    "twice": "tied_parameter accumulation",
    "zero_times_nan": "nan_of_no_samples",
    "zeros_for_none": "parameter_that_no_rank_uses",
}


@pytest.mark.parametrize("check", CHECKS)
def test_without_fault_it_passes(check):
    check(NaiveAdapter())


@pytest.mark.parametrize("faults", FAULTS)
def test_each_fault_is_seen(faults):
    for name in FAULTS[faults].split():
        with pytest.raises(Exception):
            BY_NAME[name](NaiveAdapter(*faults.split()))


def test_each_check_sees_a_fault():
    assert BY_NAME.keys() == {name for names in FAULTS.values() for name in names.split()}
