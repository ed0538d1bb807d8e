"""Ways to break the combination of gradients, and a process in which one of them is in force while tests run."""

import functools
import importlib
import importlib.util
import multiprocessing
import os
import sys
import warnings
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path

SUITE_S = 20.0  # a mutant that takes longer hangs
RANKS_S = 5.0  # how long its ranks wait for each other
RELOADED = (
    "minigrad.backend.fused", "minigrad.distributed", "minigrad.nn.flat", "minigrad.testing", "tests.distributed"
)

# What is broken -> module of minigrad.distributed, of the backend or nn.flat, and the test of the suite that notices;
# the text of the module, and what stands there instead.
MUTANTS = {
    "the samples of the last micro-batch count alone": (
        ("ddp.own", "check_accumulation_of_unequal_batches"),
        "self.samples += sum(samples)",
        "self.samples = sum(samples)",
    ),
    "samples are never forgotten": (
        ("ddp.own", "check_joining"),
        "self.samples, self.weighed, self.combined, self.spoilt = 0.0, False, True, False",
        "self.combined, self.spoilt = True, False",
    ),
    "a combined gradient is not known as one": (
        ("ddp.own", "check_joining"),
        "self.samples, self.weighed, self.combined, self.spoilt = 0.0, False, True, False",
        "self.samples, self.weighed, self.spoilt = 0.0, False, False",
    ),
    "no_sync is ignored": (
        ("ddp.reducer", "check_unsynchronised_backward_is_local"),
        "if not self.syncing:",
        "if False:",
    ),
    "a forward that nobody counted is let pass": (
        ("ddp.own", "test_a_forward_that_goes_around_the_wrapper_is_an_error"),
        "if self.mean and not found:",
        "if False:",
    ),
    "an unused parameter is let pass": (
        ("ddp.reducer", "check_unused_parameter_is_an_error"),
        "if missing and strict:",
        "if False:",
    ),
    "an unused parameter is refused where it is allowed": (
        ("ddp.reducer", "check_unused_parameter_counts_as_zero"),
        "self._start(reached, not find_unused, ",
        "self._start(reached, True, ",
    ),
    "a bucket waits for its unused parameters": (
        ("ddp.reducer", "check_unused_parameter_counts_as_zero"),
        "whole else missing)",
        "whole else missing[1:])",
    ),
    "nobody looks which parameters are used": (
        ("ddp.reducer", "check_parameter_that_no_rank_uses"),
        "if self.options.find_unused:\n",
        "if False:\n",
    ),
    "old gradients of missing parameters are sent": (
        ("ddp.passes", "check_unused_after_used"),
        "buckets.layout.filled(bucket)",
        "buckets.layout.gradients(bucket)",
    ),
    "gradients are not weighted": (
        ("ddp.passes", "check_unequal_batches"),
        " and self._own.mean and not self._weighted:",
        " and False:",
    ),
    "sums are weighted too": (
        ("ddp.passes", "test_reduce_sum_adds_up_and_refuses_to_add_twice"),
        " and self._own.mean and not self._weighted:",
        " and not self._weighted:",
    ),
    "what is weighted already is weighted again": (
        ("ddp.passes", "test_counts_weigh_what_is_no_sample"),
        " and self._own.mean and not self._weighted:",
        " and self._own.mean:",
    ),
    "gradients are weighted whenever somebody looks": (
        ("ddp.hooks", "test_what_comes_out_of_a_bucket_is_weighted_once"),
        "self._nonfinite)\n            self._weight = None",
        "self._nonfinite)",
    ),
    "the weight is dropped where there is a factor": (
        ("ddp.hooks", "test_what_comes_out_of_a_bucket_is_weighted_once"),
        "self._weight if factor == 1.0 else self._weight * factor",
        "self._weight",
    ),
    "the sum is weighted too": (
        ("ddp.hooks", "test_what_comes_out_of_a_bucket_is_weighted_once"),
        "        self._weight = None\n        if wire",
        "        if wire",
    ),
    "buckets go out before they are complete": (
        ("ddp.passes", "check_unequal_batches"),
        "while len(self._works) < until and",
        "while not self._works or",
    ),
    "the last bucket stays at home": (
        ("ddp.passes", "check_frozen_parameter"),
        "until = len(self._pending) if until is None else until",
        "until = max(1, len(self._pending) - 1)",
    ),
    "backward does not wait for its buckets": (
        ("ddp.passes", "check_unequal_batches"),
        "            self._wait()\n        self._adopt()\n",
        "        self._adopt()\n",
    ),
    "the combined gradient of a parameter without one is dropped": (
        ("ddp.passes", "check_empty_batch"),
        "            adopt_gradients([layout.params[i] for i in reduced])\n",
        "            pass\n",
    ),
    "buffers are left alone": (("ddp.reducer", "check_buffers_agree"), "self.after_pass(one.active_ranks)\n", "pass\n"),
    "a rank that fails in backward tells nobody": (
        ("ddp.passes", "test_a_backward_that_raises_is_told_to_the_others_even_when_it_is_caught"),
        "            self._comm.abort(reason)\n        else:\n            self._comm.give_up(reason)\n",
        "            pass\n",
    ),
    "nobody asks what gradients weigh": (
        ("ddp.own", "all fail alike"),
        "if self.mean and not self.weighed:",
        "if False:",
    ),
    "a gradient set by hand passes for a combined one": (
        ("ddp.own", "all fail alike"),
        "(param.grad_by_hand or self.s",
        "(self.s",
    ),
    "a pass may lie within a pass": (
        ("ddp.reducer", "check_backward_within_a_backward"),
        "if outer is not None and (",
        "if False and (",
    ),
    "who catches what was refused within a pass hears no more of it": (
        ("ddp.reducer", "is caught"),
        "if self.under_way.refusal is not None and len",
        "if False and len",
    ),
    "a failed backward ends all, though all have failed": (
        ("ddp.passes", "test_a_failed_backward_says_nothing_of_samples"),
        "            self._comm.give_up(reason)\n",
        "            self._comm.abort(reason)\n",
    ),
    "a backward that is refused launches no counts": (("ddp.reducer", "all fail alike"), "one.start(())", "pass"),
    "samples of a backward that failed count on": (
        ("ddp.reducer", "test_a_failed_backward_says_nothing_of_samples"),
        "self.own.samples, self.own.weighed = begun.samples, begun.weighed",
        "pass",
    ),
    "what one rank gives up is no failure": (
        ("comm.threads", "test_a_backward_that_raises_is_told_to_the_others_even_when_it_is_caught"),
        "not header.kind == call.header.kind == GIVE_UP",
        "GIVE_UP not in (header.kind, call.header.kind)",
    ),
    "gradients that weigh nothing stay": (("ddp.passes", "weightless"), "            self._own.drop(params)\n", ""),
    "a forward speaks for gradients set by hand": (
        ("ddp.own", "check_rank_that_uses_nothing"),
        "take([] if said is None",
        "take(pending if said is None",
    ),
    "what a rank accumulated before it ran out of data is lost": (
        ("ddp.passes", "accumulated"),
        " or self.total > 0.0:",
        ":",
    ),
    "a gradient under way may change": (
        ("ddp.passes", "in place"),
        "self._pending[bucket] == 0 and not",
        "False and not",
    ),
    "a step may come before its gradients are combined": (
        ("ddp.reducer", "a step"),
        "        return _UNFINISHED\n",
        '        return ""\n',
    ),
    "join has no say": (
        ("ddp.passes", "test_dividing_by_the_initial_world_size"),
        "self._shrink = self._rule(self.active_ranks)",
        "pass",
    ),
    "a moved parameter is not noticed": (
        ("ddp.reducer", "test_a_replaced_or_moved_parameter_is_noticed"),
        "        self.layout.check()\n",
        "",
    ),
    "freezing makes no new plan": (
        ("ddp.reducer", "test_freezing_alike_makes_a_new_plan_and_freezing_alone_is_an_error"),
        "if trainable != self._trainable:",
        "if False:",
    ),
    "a bucket is ready one gradient early": (
        ("ddp.passes", "check_unequal_batches"),
        "self._pending[len(self._works)] == 0",
        "self._pending[len(self._works)] <= 1",
    ),
    "buckets go out whichever is ready": (
        ("ddp.passes", "check_empty_parameter"),
        "while len(self._works) < until and self._pending[len(self._works)] == 0:",
        "while len(self._works) < min(until, len(self._ready_order)):",
    ),
    "each rank counts as much": (
        ("ddp.passes", "check_unequal_batches"),
        "weight_of(self.samples, self.total)",
        "1 / self._comm.world_size",
    ),
    "the weight is that of the others": (
        ("ddp.passes", "check_unequal_batches"),
        "weight_of(self.samples, self.total)",
        "weight_of(self.total - self.samples, self.total)",
    ),
    "a parameter is used only where two ranks use it": (
        ("ddp.passes", "check_unused_parameter_counts_as_zero"),
        "counts[i] > 0.0",
        "counts[i] > 1.0",
    ),
    "all parameters are used": (
        ("ddp.passes", "check_parameter_that_no_rank_uses"),
        "if counts is None or",
        "if True or",
    ),
    "16-bit gradients are rounded before they are added up": (
        ("collectives", "small halves"),
        "    if not is_half(arrays[0].dtype):\n",
        "    if True:\n",
    ),
    "waiting for a rank passes for communication": (
        ("ddp.account", "test_waiting_for_a_slow_rank_is_no_communication"),
        "late_s = min(max(0.0, started_s - began_s), ended_s - began_s)",
        "late_s = 0.0",
    ),
    "queueing passes for communication": (
        ("ddp.account", "test_what_the_calls_of_a_rank_come_to"),
        "begin_s = max(started_s, reached_s)",
        "begin_s = started_s",
    ),
    "what is held in a call passes for computing": (
        ("ddp.logbook", "test_what_the_calls_of_a_rank_come_to"),
        "= isinstance(clock, HostClock)",
        "= False",
    ),
    "what passes of other wrappers took is hidden": (
        ("ddp.account", "two wrappers"),
        "    if others:",
        "    if False:",
    ),
    "another wrapper's waits pass for computing": (
        ("ddp.logbook", "two wrappers"),
        "(account, *self.others)",
        "(account,)",
    ),
    "what a hook sends is not counted": (
        ("ddp.hooks", "bytes of a hook"),
        "logbook.called(work, began_s, nbytes, kind)",
        "logbook.called(work, began_s, None, kind)",
    ),
    "a weight of 0 is left out": (
        ("ddp.combine", "test_a_replica_that_counts_nothing_needs_none_and_adds_none"),
        "if weight == 1.0:",
        "if weight in (0.0, 1.0):",
    ),
    "NaN times nothing is NaN": (
        ("backend.fused.grad_scale", "test_a_replica_that_counts_nothing_needs_none_and_adds_none"),
        "    if factor[0]:\n",
        "    if True:\n",
    ),
    "gradients are scaled in a copy": (
        ("backend.fused.grad_scale", "check_unequal_batches"),
        "_scale_to(x, x, weight",
        "_scale_to(x.copy(), x, weight",
    ),
    "a bucket begins one element late": (
        ("ddp.layout", "check_unequal_batches"),
        "[bucket.start : bucket.stop]",
        "[bucket.start + 1 : bucket.stop]",
    ),
    "frozen parameters are in buckets": (
        ("ddp.layout", "check_frozen_parameter"),
        "buffer.dtype.itemsize, param.requires_grad)",
        "buffer.dtype.itemsize, True)",
    ),
    "present gradients are zeroed, missing ones sent": (
        ("nn.flat", "check_unequal_batches"),
        "        if param.grad_array is None:",
        "        if param.grad_array is not None:",
    ),
    "a bucket reaches over a frozen parameter": (
        ("ddp.buckets", "test_a_frozen_parameter_splits_a_bucket"),
        "last.stop == new.start",
        "last.stop <= new.start",
    ),
    "a bucket reaches over another buffer": (
        ("ddp.buckets", "test_a_bucket_ends_with_its_buffer_even_where_the_next_one_seems_to_go_on"),
        "last.buffer == new.buffer and",
        "True and",
    ),
    "every plan has one id": (
        ("ddp.buckets", "test_freezing_alike_makes_a_new_plan_and_freezing_alone_is_an_error"),
        "hashlib.blake2b(text.encode()",
        "hashlib.blake2b(b''",
    ),
    "a bucket lacks its last parameter": (
        ("ddp.buckets", "check_unequal_batches"),
        "first.buffer, first.start, last.stop, tuple(group)",
        "first.buffer, first.start, max(first.stop, last.start), tuple(group)",
    ),
    "unequal replicas are not noticed": (
        ("ddp.agreement", "check_other_shapes_are_refused"),
        "{**describe(module), **{",
        "{**{",
    ),
    "ranks may differ in their options": (("ddp.agreement", "unequal options"), "in options.items()}}", "in ()}}"),
    "wrappers of equal plans are told apart by nothing": (
        ("ddp.passes", "test_another_order_of_wrappers_with_equal_plans_is_an_error"),
        'f"{name}, plan {plan.id}"',
        "plan.id",
    ),
    "two wrappers in one backward send as it comes": (
        ("ddp.reducer", "test_one_loss_over_two_wrappers_of_equal_plans"),
        " or bool(self._company)",
        "",
    ),
    "gradients may stay behind when their parameters are frozen": (
        ("ddp.reducer", "test_freezing_what_has_accumulated_a_gradient_is_an_error"),
        "            check_frozen(self.comm.rank, self.layout, self._trainable, self.under_way.innermost.weighed)\n",
        "",
    ),
    "a backward counts the forwards that it does not reach": (
        ("ddp.own", "test_forwards_and_their_backwards_in_any_order"),
        "after < len(numbers) and numbers[after] < ended",
        "True",
    ),
    "samples of gradients that were dropped count on": (
        ("ddp.own", "gradients_that_are_dropped"),
        "if self.weighed or self.spoilt or not self.mean or not any(samples):",
        "if False:",
    ),
    "a hook's sum is not written back": (
        ("ddp.hooks", "test_predividing_leaves_room_for_the_sum"),
        "        self._bucket.unpack(self._wire, self._factor)\n",
        "",
    ),
    "what was divided is not multiplied": (
        ("ddp.hooks", "test_predividing_leaves_room_for_the_sum"),
        "bucket, wire, 1.0 / factor)",
        "bucket, wire, 1.0)",
    ),
    "the last bucket of a hook is not told": (
        ("ddp.passes", "test_a_hook_sees_each_bucket_in_order_with_weighted_gradients"),
        "bucket.index == len(self.plan.buckets) - 1",
        "False",
    ),
    "buffers come from nobody in particular": (
        ("ddp.upkeep", "check_buffers_agree"),
        "self._booked.broadcast(piece.pack(), root)",
        "self._booked.broadcast(0 * piece.pack(), root)",
    ),
    "a buffer that a tape holds stays where it lives": (
        ("ddp.buffers", "test_a_buffer_that_comes_home"),
        "if savers(buffer):",
        "if False:",
    ),
    "a buffer travels over what a tape holds": (
        ("ddp.buffers", "test_a_buffer_that_comes_home"),
        "self._new_memory() if any(self._savers) else self._home",
        "self._home",
    ),
    "nobody knows who holds a buffer that has come home": (
        ("ddp.buffers", "test_a_buffer_that_comes_home"),
        "self._savers[i] = savers(buffer)",
        "pass",
    ),
    "what was kept of a gradient is filled with zeros": (
        ("nn.flat", "test_averaged_by_hand"),
        "    keep_given(param)",
        "    pass",
    ),
    "what was kept of a shard's gradient is scaled": (
        ("ddp.bitwise", "test_hooks_that_keep_the_gradient_of_a_shard"),
        "    keep_given(params[j])",
        "    pass",
    ),
    "the odd rank out is left out of sums": (
        ("collectives", "check_unequal_batches"),
        "while stride < len(values):",
        "while 2 * stride <= len(values):",
    ),
    "nobody compares what is beside the model": (
        ("ddp.alike", "check_loss_scale_that_differs"),
        "if marks.count(max(marks)) + marks.count(0.0) >= len(marks):",
        "if True:",
    ),
    "options beside the model are not part of the mark": (
        ("ddp.alike", "set otherwise on one"),
        "hash((self._options_number, *marks))",
        "hash((0, *marks))",
    ),
    "a difference beside the model is let pass": (
        ("comm.differences", "check_other_shapes_are_refused"),
        "        if words:\n",
        "        if False:\n",
    ),
    "what is alike stays in doubt": (("ddp.alike", "alike"), "companion.settle(number_of(repr(found)))", "pass"),
    "optimizers of parameters of their own are compared": (
        ("ddp.alike", "test_each_rank_may_have_an_optimizer_of_parameters_of_its_own"),
        "if agreement.is_divided(found):",
        "if False:",
    ),
    "join hands on the parameters alone": (
        ("ddp.join", "join"),
        '                hand_over("join(also=)", comm, reducer.last_active[0], also)\n',
        "",
    ),
}


def origin_of(module):
    """The file of a module."""
    return Path(importlib.util.find_spec(_full_name(module)).origin)


def _full_name(module):
    return f"minigrad.{module}" if module.startswith(("backend.", "nn.flat")) else f"minigrad.distributed.{module}"


@functools.cache
def _compiled(path, old="", new=""):
    return compile(Path(path).read_text().replace(old, new), path, "exec", dont_inherit=True)


@functools.cache
def _compile_all():
    """So that a process of a mutant finds it done: compiling takes longer than all else that it does."""
    importlib.import_module("tests.distributed.mutant_suite")
    for name, module in list(sys.modules.items()):
        if name.startswith(RELOADED):
            _compiled(module.__file__)


class _Loader(SourceFileLoader):
    """Loads a module with one text replaced by another; nothing by nothing in all but one."""

    def __init__(self, name, path, texts):
        super().__init__(name, path)
        self._texts = texts

    def get_code(self, fullname):
        return _compiled(self.path, *self._texts)


class _Finder:
    """Finds what is loaded anew, one module of it broken."""

    def __init__(self, module, *texts):
        self._name, self._texts = _full_name(module), texts

    def find_spec(self, name, path=None, target=None):
        found = PathFinder.find_spec(name, path) if name.startswith(RELOADED) else None
        if found is not None:
            found.loader = _Loader(name, found.origin, self._texts if name == self._name else ())
        return found


def who_notices(mutant=None, test=None):
    """The first test that fails, or the one, while a mutant is in force, in a process of its own; empty where none.

    With what it raised.
    """
    _compile_all()
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(mutant, test, theirs), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # BLAS has threads; they hold nothing that we need
        process.start()
    theirs.close()
    try:
        return mine.recv() if mine.poll(SUITE_S) else "the time"
    except EOFError:
        return "the end of its process"
    finally:
        process.kill()
        process.join()


def _child(mutant, chosen, results):
    for name in [name for name in sys.modules if name.startswith(RELOADED)]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Finder(*(mutant or ("",))))
    with open(os.devnull, "w") as nothing:
        sys.stderr = nothing
        results.send(_first_failure(chosen))
        os._exit(0)


def _first_failure(chosen):
    tests = dict(importlib.import_module("tests.distributed.mutant_suite").suite())
    for name, test in {chosen: tests[chosen]}.items() if chosen else tests.items():
        try:
            test()
        except BaseException as error:
            return f"{name}: {type(error).__name__}: {error}"
    return ""
