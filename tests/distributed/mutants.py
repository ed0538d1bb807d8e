"""Ways to break the combination of gradients, and a process in which one of them is in force while tests run."""

import functools
import importlib

from minigrad.errors import RankFailedError
from minigrad.testing.mutants import MUTANTS as PLANTED
from minigrad.testing.mutants import Edit, in_child

SUITE_S = 20.0  # a mutant that takes longer hangs
RANKS_S = 5.0  # how long its ranks wait for each other

# What is broken, of `minigrad.testing.mutants` -> the test of the suite that notices.
TESTS = {
    "the samples of the last micro-batch count alone": "check_accumulation_of_unequal_batches",
    "samples are never forgotten": "check_joining",
    "a combined gradient is not known as one": "check_joining",
    "no_sync is ignored": "check_unsynchronised_backward_is_local",
    "a forward that nobody counted is let pass": "test_a_forward_that_goes_around_the_wrapper_is_an_error",
    "an unused parameter is let pass": "check_unused_parameter_is_an_error",
    "an unused parameter is refused where it is allowed": "check_unused_parameter_counts_as_zero",
    "a bucket waits for its unused parameters": "check_unused_parameter_counts_as_zero",
    "nobody looks which parameters are used": "check_parameter_that_no_rank_uses",
    "old gradients of missing parameters are sent": "check_unused_after_used",
    "gradients are not weighted": "check_unequal_batches",
    "sums are weighted too": "test_reduce_sum_adds_up_and_refuses_to_add_twice",
    "what is weighted already is weighted again": "test_counts_weigh_what_is_no_sample",
    "the weight is dropped where there is a factor": "test_what_comes_out_of_a_bucket_is_weighted_once",
    "the sum is weighted too": "test_what_comes_out_of_a_bucket_is_weighted_once",
    "buckets go out before they are complete": "check_unequal_batches",
    "the last bucket stays at home": "check_frozen_parameter",
    "backward does not wait for its buckets": "check_unequal_batches",
    "the combined gradient of a parameter without one is dropped": "check_empty_batch",
    "buffers are left alone": "check_buffers_agree",
    "a rank that fails in backward tells nobody": (
        "test_a_backward_that_raises_is_told_to_the_others_even_when_it_is_caught"
    ),
    "nobody asks what gradients weigh": "all fail alike",
    "a gradient set by hand passes for a combined one": "all fail alike",
    "a pass may lie within a pass": "check_backward_within_a_backward",
    "who catches what was refused within a pass hears no more of it": "is caught",
    "a failed backward ends all, though all have failed": "test_a_failed_backward_says_nothing_of_samples",
    "what one rank gives up is no failure": (
        "test_a_backward_that_raises_is_told_to_the_others_even_when_it_is_caught"
    ),
    "a forward speaks for gradients set by hand": "check_rank_that_uses_nothing",
    "a gradient under way may change": "in place",
    "a step may come before its gradients are combined": "a step",
    "a moved parameter is not noticed": "test_a_replaced_or_moved_parameter_is_noticed",
    "freezing makes no new plan": "test_freezing_alike_makes_a_new_plan_and_freezing_alone_is_an_error",
    "a bucket is ready one gradient early": "check_unequal_batches",
    "buckets go out whichever is ready": "check_empty_parameter",
    "each rank counts as much": "check_unequal_batches",
    "the weight is that of the others": "check_unequal_batches",
    "waiting for a rank passes for communication": "test_waiting_for_a_slow_rank_is_no_communication",
    "queueing passes for communication": "test_what_the_calls_of_a_rank_come_to",
    "what passes of other wrappers took is hidden": "two wrappers",
    "another wrapper's waits pass for computing": "two wrappers",
    "what a hook sends is not counted": "bytes of a hook",
    "gradients are scaled in a copy": "check_unequal_batches",
    "a bucket begins one element late": "check_unequal_batches",
    "frozen parameters are in buckets": "check_frozen_parameter",
    "present gradients are zeroed, missing ones sent": "check_unequal_batches",
    "a bucket reaches over a frozen parameter": "test_a_frozen_parameter_splits_a_bucket",
    "a bucket lacks its last parameter": "check_unequal_batches",
    "unequal replicas are not noticed": "check_other_shapes_are_refused",
    "ranks may differ in their options": "unequal options",
    "wrappers of equal plans are told apart by nothing": (
        "test_another_order_of_wrappers_with_equal_plans_is_an_error"
    ),
    "two wrappers in one backward send as it comes": "test_one_loss_over_two_wrappers_of_equal_plans",
    "gradients may stay behind when their parameters are frozen": (
        "test_freezing_what_has_accumulated_a_gradient_is_an_error"
    ),
    "a backward counts the forwards that it does not reach": "test_forwards_and_their_backwards_in_any_order",
    "samples of gradients that were dropped count on": "gradients_that_are_dropped",
    "a hook's sum is not written back": "test_predividing_leaves_room_for_the_sum",
    "what was divided is not multiplied": "test_predividing_leaves_room_for_the_sum",
    "buffers come from nobody in particular": "check_buffers_agree",
    "the odd rank out is left out of sums": "check_unequal_batches",
    "nobody compares what is beside the model": "check_loss_scale_that_differs",
    "options beside the model are not part of the mark": "set otherwise on one",
    "a difference beside the model is let pass": "check_other_shapes_are_refused",
    "join hands on the parameters alone": "join",
}
# What no user of the tools can see -> the test; the text of a module, and what stands there instead.
OWN = {
    "gradients are weighted whenever somebody looks": (
        "test_what_comes_out_of_a_bucket_is_weighted_once",
        Edit("distributed.ddp.hooks", "self._nonfinite)\n            self._weight = None", "self._nonfinite)"),
    ),
    "a backward that is refused launches no counts": (
        "all fail alike",
        Edit("distributed.ddp.reducer", "one.start(())", "pass"),
    ),
    "samples of a backward that failed count on": (
        "test_a_failed_backward_says_nothing_of_samples",
        Edit("distributed.ddp.reducer", "self.own.samples, self.own.weighed = begun.samples, begun.weighed", "pass"),
    ),
    "gradients that weigh nothing stay": (
        "weightless",
        Edit("distributed.ddp.passes", "            self._own.drop(params)\n", ""),
    ),
    "what a rank accumulated before it ran out of data is lost": (
        "accumulated",
        Edit("distributed.ddp.passes", " or self.total > 0.0:", ":"),
    ),
    "join has no say": (
        "test_dividing_by_the_initial_world_size",
        Edit("distributed.ddp.passes", "self._shrink = self._rule(self.active_ranks)", "pass"),
    ),
    "a parameter is used only where two ranks use it": (
        "check_unused_parameter_counts_as_zero",
        Edit("distributed.ddp.passes", "counts[i] > 0.0", "counts[i] > 1.0"),
    ),
    "all parameters are used": (
        "check_parameter_that_no_rank_uses",
        Edit("distributed.ddp.passes", "if counts is None or", "if True or"),
    ),
    "16-bit gradients are rounded before they are added up": (
        "small halves",
        Edit("distributed.collectives", "    if not is_half(arrays[0].dtype):\n", "    if True:\n"),
    ),
    "what is held in a call passes for computing": (
        "test_what_the_calls_of_a_rank_come_to",
        Edit("distributed.ddp.logbook", "= isinstance(clock, HostClock)", "= False"),
    ),
    "a weight of 0 is left out": (
        "test_a_replica_that_counts_nothing_needs_none_and_adds_none",
        Edit("distributed.ddp.combine", "if weight == 1.0:", "if weight in (0.0, 1.0):"),
    ),
    "NaN times nothing is NaN": (
        "test_a_replica_that_counts_nothing_needs_none_and_adds_none",
        Edit("backend.fused.grad_scale", "    if factor[0]:\n", "    if True:\n"),
    ),
    "a bucket reaches over another buffer": (
        "test_a_bucket_ends_with_its_buffer_even_where_the_next_one_seems_to_go_on",
        Edit("distributed.ddp.buckets", "last.buffer == new.buffer and", "True and"),
    ),
    "every plan has one id": (
        "test_freezing_alike_makes_a_new_plan_and_freezing_alone_is_an_error",
        Edit("distributed.ddp.buckets", "hashlib.blake2b(text.encode()", "hashlib.blake2b(b''"),
    ),
    "the last bucket of a hook is not told": (
        "test_a_hook_sees_each_bucket_in_order_with_weighted_gradients",
        Edit("distributed.ddp.passes", "bucket.index == len(self.plan.buckets) - 1", "False"),
    ),
    "a buffer that a tape holds stays where it lives": (
        "test_a_buffer_that_comes_home",
        Edit("distributed.ddp.buffers", "if savers(buffer):", "if False:"),
    ),
    "a buffer travels over what a tape holds": (
        "test_a_buffer_that_comes_home",
        Edit("distributed.ddp.buffers", "self._new_memory() if any(self._savers) else self._home", "self._home"),
    ),
    "nobody knows who holds a buffer that has come home": (
        "test_a_buffer_that_comes_home",
        Edit("distributed.ddp.buffers", "self._savers[i] = savers(buffer)", "pass"),
    ),
    "what was kept of a gradient is filled with zeros": (
        "test_averaged_by_hand",
        Edit("nn.flat", "    keep_given(param)", "    pass"),
    ),
    "what was kept of a shard's gradient is scaled": (
        "test_hooks_that_keep_the_gradient_of_a_shard",
        Edit("distributed.ddp.bitwise", "    keep_given(params[j])", "    pass"),
    ),
    "what is alike stays in doubt": (
        "alike",
        Edit("distributed.ddp.alike", "companion.settle(number_of(repr(found)))", "pass"),
    ),
    "optimizers of parameters of their own are compared": (
        "test_each_rank_may_have_an_optimizer_of_parameters_of_its_own",
        Edit("distributed.ddp.alike", "if agreement.is_divided(found):", "if False:"),
    ),
}
MUTANTS = {mutant.name: (TESTS[mutant.name], mutant.edit) for mutant in PLANTED.values() if mutant.name in TESTS} | OWN


def who_notices(edit=None, test=None):
    """The first test that fails, or the one, while an edit is in force, in a process of its own; empty where none.

    With what it raised.
    """
    importlib.import_module("tests.distributed.mutant_suite")  # once, and not in each process
    try:
        return in_child(edit, functools.partial(_first_failure, test), SUITE_S)
    except RankFailedError as error:  # it took too long, or its process ended
        return str(error)


def _first_failure(chosen):
    tests = dict(importlib.import_module("tests.distributed.mutant_suite").suite())
    for name, test in {chosen: tests[chosen]}.items() if chosen else tests.items():
        try:
            test()
        except BaseException as error:
            return f"{name}: {type(error).__name__}: {error}"
    return ""
