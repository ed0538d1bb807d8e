"""The conformance checks can fail: each fault of a naive wrapper is seen, and each check sees one."""

import pytest

from minigrad.testing.conformance import CHECKS, NotOfferedError, VerdictError, failures, means, parameters, report
from tests.distributed import naive
from tests.distributed.naive import Dying, Hanging, NaiveAdapter, Once, Raising

BY_NAME = {check.__name__.removeprefix("check_"): check for check in CHECKS}
FAULTS = {  # what a wrapper does wrong -> checks that must fail
    "always_syncs": "unsynchronised_backward_is_local",
    "casts": "dtypes_in_turn",
    "clips_before": "clipping",
    "collective_in_forward": "evaluation_on_one_rank",
    "compares_sizes": "other_names_are_refused",
    "counts_the_gone": "joined_ranks_count_no_more",
    "divides_after": "float16_sum_in_range",
    "empty_bucket": "empty_parameter",
    "fills_silently": "unused_parameter_is_an_error",
    "float_buffers": "counters_are_exact",
    "forgets": "nothing_works_after_a_failure",
    "frozen_travel": "frozen_parameter",
    "goes_on": "nobody_goes_on_alone",
    "hand_stays": "gradient_set_by_hand",
    "hides_buffers": "state_has_the_buffers",
    "hides_nan": "nan_is_seen_by_all",
    "hushes": "what_a_rank_raised_is_told",
    "keeps_gradients": "zero_grad",
    "keeps_unused": "unused_by_all_after_used",
    "last_samples_only": "accumulation_of_unequal_batches",
    "matrix_in_parts": "matrices_are_whole",
    "needs_two": "one_rank",
    "nested_stays": "backward_within_a_backward",
    "new_parameters": "optimizer_made_before",
    "no_broadcast": "replicas_start_alike",
    "no_buffers": "buffers_agree",
    "no_comparison": "other_names_are_refused",
    "no_comparison cut_by_cap": "other_caps_are_right_or_refused",
    "no_comparison no_broadcast goes_on": "another_parameter_is_refused freezing_on_one_rank_is_refused",
    "no_comparison no_broadcast padded": "other_shapes_are_refused",
    "no_empty": "empty_batch",
    "no_join": "joining",
    "no_tokens": "tokens",
    "norm_over_ranks": "norm_of_clipping",
    "not_gathered": "sharded_step",
    "order_by_cap": "bits_do_not_depend_on_the_cap",
    "order_by_chance": "bits_do_not_depend_on_the_run",
    "order_by_rank": "all_ranks_have_the_same_bits",
    "own_scale": "loss_scale_that_differs",
    "own_step": "training",
    "plain_mean": "unequal_batches",
    "plain_on_parts": "sharded_step sharded_state",
    "prefix": "state_is_that_of_the_model",
    "ready_order": "readiness_in_another_order buckets_of_unequal_size",
    "replaces": "accumulation backwards_add_up",
    "running_sum": "float16_sum_of_small_parts",
    "short_messages": "parameter_above_the_cap",
    "skips_missing": "unused_parameter_counts_as_zero rank_that_uses_nothing",
    "stale": "unused_after_used",
    "twice": "tied_parameter",
    "unnamed": "unused_parameter_is_named",
    "whole_state": "sharded_state",
    "zero_times_nan": "nan_of_no_samples",
    "zeros_for_none": "parameter_that_no_rank_uses",
}
WAITS = ("unused_parameter_on_one_rank", "rank_that_raises", "rank_that_leaves")  # the fault is a hang


@pytest.fixture
def released():
    """Ends the ranks that hang, once the test is over."""
    naive.RELEASED.clear()
    yield
    naive.RELEASED.set()


@pytest.mark.parametrize("check", CHECKS)
def test_without_fault_it_passes(check):
    check(NaiveAdapter())


@pytest.mark.parametrize("faults", FAULTS)
def test_each_fault_is_seen(faults):
    checks = [BY_NAME[name] for name in FAULTS[faults].split()]
    found = report(NaiveAdapter(*faults.split()), checks)
    assert found.names("fails") == FAULTS[faults].split(), str(found)


def test_waiting_for_ever_for_a_rank_that_failed_is_seen_once(released):
    others = ("what_a_rank_raised_is_told", "nobody_goes_on_alone")
    found = report(NaiveAdapter("waits", timeout_s=1.0), [BY_NAME[name] for name in WAITS + others])
    assert found.names("out of time") == list(WAITS) and found.names("does not have it") == list(others), str(found)


def test_each_check_sees_a_fault():
    assert BY_NAME.keys() == {name for names in FAULTS.values() for name in names.split()} | set(WAITS)


# ------------------------------------------------------------------------ one cause, one check; and nothing for nothing


def test_a_mean_of_means_loses_one_check():
    found = report(NaiveAdapter("plain_mean"))
    without = {"tokens", "nan_of_no_samples", "joined_ranks_count_no_more"}  # there are no weights to be wrong
    assert found.names("fails") == ["unequal_batches"] and set(found.names("does not have it")) == without
    assert len(found.names("passes")) == len(CHECKS) - 1 - len(without)


@pytest.mark.parametrize("adapter, verdict", [(Raising(), "fails"), (Hanging(timeout_s=0.05), "out of time")])
def test_who_always_raises_or_hangs_passes_nothing(adapter, verdict, released):
    found = report(adapter)
    assert len(found.names("not judged")) >= 12  # refusals: the control went wrong
    assert set(found.names(verdict) + found.names("not judged")) >= BY_NAME.keys() - {"nan_of_no_samples"}


REFUSALS = [name for name in BY_NAME if name.endswith("refused")] + ["loss_scale_that_differs"]
SECOND = ["unused_parameter_is_an_error", "unused_parameter_is_named", "backward_within_a_backward"]
SECOND += ["loss_scale_that_differs", "what_a_rank_raised_is_told", *WAITS]
SECOND += ["nobody_goes_on_alone", "nothing_works_after_a_failure"]


@pytest.mark.parametrize("what, names", [("wrap", REFUSALS + SECOND), ("backward", SECOND)])
def test_who_can_do_a_thing_only_once_refuses_nothing_by_that(what, names):
    """The error that it raises then was taken for that of the fault."""
    found = report(Once(what), [BY_NAME[name] for name in names])
    assert {row.verdict for row in found.rows} == {"not judged"}, str(found)


def test_who_dies_passes_nothing():
    refusal, value = failures.check_rank_that_leaves, means.check_unequal_batches
    found = report(Dying(), [refusal, value, parameters.check_unused_parameter_is_an_error])
    assert [row.verdict for row in found.rows] == ["not judged", "died", "not judged"], str(found)
    assert "died: exit code 3" in found.rows[0].message


def test_not_judged_and_not_offered_are_told_apart():
    with pytest.raises(NotOfferedError, match="nothing was raised that could name it"):
        parameters.check_unused_parameter_is_named(NaiveAdapter("fills_silently"))
    with pytest.raises(VerdictError, match="without the fault: rank 0: raised RuntimeError: whatever it is"):
        parameters.check_unused_parameter_is_named(Raising())
