"""Mistakes that people make in lesson 9."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext

import numpy as np

from minigrad import Tensor
from minigrad.course.lesson09_accumulation.solution import AccumulatingDdp
from minigrad.optim import clip_grad_norm_
from tests.course.wrong import Wrong


class CountsTheLast(AccumulatingDdp):
    """n is that of the last forward."""

    def __call__(self, *inputs):
        self._samples = len(inputs[0])
        return self.module(*inputs)


class NeverForgets(AccumulatingDdp):
    """n is not set back to 0."""

    def finish(self):
        samples = self._samples
        for p in self.module.parameters():
            if p.requires_grad and p.grad is None and self._is_syncing:
                p.grad = Tensor(np.zeros_like(p.data))
        super().finish()
        self._samples = samples


class SendsAlways(AccumulatingDdp):
    """no_sync is there, and does nothing."""

    def no_sync(self):
        return nullcontext()


class SendsTheLast(AccumulatingDdp):
    """What was there before a micro-batch is kept apart, and lost."""

    def __call__(self, *inputs):
        outputs = super().__call__(*inputs)
        for p in self.module.parameters():
            p.grad = None
        return outputs


class SendsTheFirst(AccumulatingDdp):
    """The gradient is copied for the wire at the first backward since the last exchange."""

    kept = None

    def finish(self):
        params = [p for p in self.module.parameters() if p.requires_grad]
        if self.kept is None and params[0].grad is not None:
            self.kept = [p.grad.data.copy() for p in params]
        if self._is_syncing:
            for p, kept in zip(params, self.kept or []):
                p.grad.data[...] = kept
            self.kept = None
        super().finish()


class NeverAgain(AccumulatingDdp):
    """no_sync is never over."""

    @contextmanager
    def no_sync(self):
        self._is_syncing = False
        yield


class SyncAfterAnInnerOne(AccumulatingDdp):
    """What no_sync puts back is True."""

    @contextmanager
    def no_sync(self):
        self._is_syncing = False
        try:
            yield
        finally:
            self._is_syncing = True


class StuckByAnException(AccumulatingDdp):
    """An exception within no_sync leaves it on."""

    @contextmanager
    def no_sync(self):
        before, self._is_syncing = self._is_syncing, False
        yield
        self._is_syncing = before


class SwallowsAnException(AccumulatingDdp):
    """An exception within no_sync ends there."""

    @contextmanager
    def no_sync(self):
        before, self._is_syncing = self._is_syncing, False
        try:
            yield
        except Exception:
            pass
        finally:
            self._is_syncing = before


class KeepsItsModule(AccumulatingDdp):
    """The module is there under another name."""

    module = property(lambda self: None, lambda self, module: setattr(self, "kept", module))

    def __init__(self, module, comm):
        self.kept, self._comm, self._samples, self._is_syncing = module, comm, 0, True


def step(ddp, optimizer, loss_fn, micro_batches, max_norm, *, wrong=""):
    """A step with one mistake."""
    if wrong != "stale":
        optimizer.zero_grad()
    samples = sum(len(inputs) for inputs, _ in micro_batches)
    for number, (inputs, targets) in enumerate(micro_batches, 1):
        if wrong == "zeroes":
            optimizer.zero_grad()
        is_last = number == len(micro_batches) or wrong == "sends"
        with nullcontext() if is_last else ddp.no_sync():
            loss = loss_fn(ddp(inputs), targets)
            if wrong == "alike":
                loss = loss / len(micro_batches)
            elif wrong != "sum":
                loss = loss * (len(inputs) / max(1, samples))
            loss.backward()
            if wrong == "clips" and is_last:
                clip_grad_norm_(ddp.module.parameters(), max_norm)
            ddp.finish()
    if not micro_batches and wrong != "absent":
        ddp.finish()
    if wrong == "clips":
        norm = clip_grad_norm_(ddp.module.parameters(), 1e9)
    else:
        norm = clip_grad_norm_(ddp.module.parameters(), 1e9 if wrong == "unclipped" else max_norm)
    optimizer.step()
    return float(norm)


def each_counts_alike(*args):
    """The losses are divided by the number of micro-batches."""
    return step(*args, wrong="alike")


def sum_of_means(*args):
    """The losses are not scaled."""
    return step(*args, wrong="sum")


def zeroes_each_time(*args):
    """zero_grad stands in the loop."""
    return step(*args, wrong="zeroes")


def zeroes_nothing(*args):
    """zero_grad is missing."""
    return step(*args, wrong="stale")


def clips_its_own(*args):
    """Clipping comes before finish."""
    return step(*args, wrong="clips")


def clips_nothing(*args):
    """Clipping is missing."""
    return step(*args, wrong="unclipped")


def sends_each(*args):
    """Without no_sync."""
    return step(*args, wrong="sends")


def all_at_once(ddp, optimizer, loss_fn, micro_batches, max_norm):
    """One large batch instead of several small ones."""
    pairs = list(zip(*[(inputs.data, targets.data) for inputs, targets in micro_batches]))
    whole = [tuple(Tensor(np.concatenate(part)) for part in pairs)] if pairs else []
    return step(ddp, optimizer, loss_fn, whole, max_norm)


def is_absent(*args):
    """A rank without micro-batches goes on at once."""
    return step(*args, wrong="absent")


WRONG = {
    "get_ddp_accumulating": [
        Wrong(CountsTheLast, "the samples of their last micro-batch alone"),
        Wrong(NeverForgets, "all samples that they ever had"),
        Wrong(SendsAlways, "no collective under no_sync()"),
        Wrong(SendsTheLast, "the last micro-batches alone"),
        Wrong(SendsTheFirst, "the first micro-batches alone"),
        Wrong(NeverAgain, "nothing was combined"),
        Wrong(SyncAfterAnInnerOne, "put back what was there before"),
        Wrong(SwallowsAnException, "it was swallowed"),
        Wrong(KeepsItsModule, "expected ddp.module to be the module"),
        Wrong(StuckByAnException, "after a no_sync() that was left by an exception"),
    ],
    "accumulated_step": [
        Wrong(each_counts_alike, "each micro-batch counts alike"),
        Wrong(sum_of_means, "the sum of the micro-batches' means"),
        Wrong(zeroes_each_time, "only the last micro-batch is left"),
        Wrong(zeroes_nothing, "the gradients of before are still in it"),
        Wrong(clips_its_own, "each rank clipped its own gradient"),
        Wrong(clips_nothing, "it is not clipped"),
        Wrong(sends_each, "exchanged once"),
        Wrong(all_at_once, "one by one"),
        Wrong(is_absent, "calls finish() too"),
    ],
}
