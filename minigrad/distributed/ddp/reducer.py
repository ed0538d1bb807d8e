"""The reducer: turns the events of one backward into the all-reduces of its buckets.

At *begin* one float64 collective adds up the samples of all ranks. A bucket is launched once its last gradient is
complete, the earlier buckets are launched, and that sum is there: its range of the flat gradient is scaled by
n_r / Σn and summed in place, so that the result is the gradient of the mean over all samples of the global batch.
Buckets go out in order of their index on every rank, whatever the order in which gradients became ready. *end*
waits for all of them: when `backward()` returns, every gradient is the combined one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.distributed.comm.base import Communicator, Work
from minigrad.distributed.ddp.buckets import Bucket, BucketPlan, Entry, check_plan, plan_buckets
from minigrad.errors import ArgumentError, AutogradError, UnreducedGradientError
from minigrad.nn.flat import FlatBuffer, flatten
from minigrad.nn.parameter import Parameter

Named = Sequence[tuple[str, Parameter]]


class Reducer:
    """A backward listener that combines the gradients of one rank with those of the others.

    Args:
        comm: The ranks.
        named: The parameters in order of registration, frozen ones too, each once.
        cap_bytes, first_cap_bytes: See `plan_buckets`.
        find_unused: Let a syncing backward leave parameters out; they count as zero, and those that no rank used
            keep no gradient at all.
        mean: Weight each rank by its samples; False adds the gradients as they are.
        plan: A plan to use instead of a new one.
    """

    def __init__(
        self,
        comm: Communicator,
        named: Named,
        *,
        cap_bytes: int,
        first_cap_bytes: int,
        find_unused: bool = False,
        mean: bool = True,
        plan: BucketPlan | None = None,
    ) -> None:
        self.comm, self.find_unused, self.mean = comm, find_unused, mean
        self.caps = (cap_bytes, first_cap_bytes)
        self.buffers = flatten([p for _, p in named])
        for name, param in named:
            param.name = param.name or name
        self._params, self._names = _layout_order(self.buffers, named)
        self._index = {id(p): i for i, p in enumerate(self._params)}
        self._forced = plan
        self._set_plan()
        for buffer in self.buffers:
            buffer.rebind_grad(comm.empty(buffer.count, buffer.dtype))
        for param in self._params:
            param.listeners += (self,)
        self.syncing = True
        self.override: float | None = None
        self._forward_samples = 0.0
        self._samples = 0.0
        self._combined = False
        self._pass: _Pass | None = None

    def detach(self) -> None:
        """Stop listening: backward is local again."""
        for param in self._params:
            param.listeners = tuple(kept for kept in param.listeners if kept is not self)

    # --------------------------------------------------------------------------------------------- the plan

    def _set_plan(self) -> None:
        self._trainable = [p.requires_grad for p in self._params]
        entries = layout_entries(self.buffers, self._params, self._names)
        if self._forced is not None:
            check_plan(self._forced, entries)
        self.plan = self._forced or plan_buckets(entries, *self.caps)
        self._bucket_of = {i: bucket.index for bucket in self.plan.buckets for i in bucket.entries}

    def bucket_array(self, bucket: Bucket) -> Array:
        """The range of the flat gradient that a bucket covers."""
        return self.buffers[bucket.buffer].grad[bucket.start : bucket.stop]

    def bucket_params(self, bucket: Bucket) -> list[Parameter]:
        """The parameters of a bucket."""
        return [self._params[i] for i in bucket.entries]

    # -------------------------------------------------------------------------------------------- samples

    def add_forward(self, samples: float) -> None:
        """Say how many samples a forward pass took; successive forwards before a backward add up."""
        self._forward_samples += samples if self.override is None else self.override

    def _take_samples(self) -> None:
        """The samples of this backward join those since the last synchronisation."""
        self._samples += self._forward_samples if self.override is None else self.override
        self._forward_samples = 0.0

    # --------------------------------------------------------------------------------------------- events

    def begin(self, leaves: list[Any]) -> None:
        """Backward starts: check what it will reach, and launch the sum of the samples."""
        self._take_samples()
        if not self.syncing:
            return
        reached = {self._index[id(leaf)] for leaf in leaves if id(leaf) in self._index}
        self._start(reached, strict=not self.find_unused)

    def flush(self) -> None:
        """Take part in a synchronisation without a backward, with what was accumulated since the last."""
        self._take_samples()
        self._start(set(), strict=False)
        self.end(None)

    def leaf(self, leaf: Any) -> None:
        """A gradient is complete: launch what is ready now."""
        if self._pass is not None:
            self._pass.pending[self._bucket_of[self._index[id(leaf)]]] -= 1
            self._launch_ready(wait=False)

    def end(self, error: BaseException | None) -> None:
        """Backward is over: launch the rest and wait for all; or, after an error, let the other ranks know."""
        if self._pass is None:
            return
        try:
            if error is not None:
                self.comm.abort(f"its backward raised {type(error).__name__}: {error}")
            else:
                self._finish()
        finally:
            self._pass = None

    # -------------------------------------------------------------------------------------------- one pass

    def _start(self, reached: set[int], strict: bool) -> None:
        for buffer in self.buffers:
            buffer.check()
        if [p.requires_grad for p in self._params] != self._trainable:
            self._set_plan()
        self._check_not_combined_twice()
        missing = [i for i in self._bucket_of if i not in reached]
        self._pass = one = _Pass(self.plan, self._samples)
        if missing and strict:
            raise self._unreduced(missing)
        for i in missing:
            one.pending[self._bucket_of[i]] -= 1
        used = [float(i in reached or p.grad_array is not None) for i, p in enumerate(self._params)]
        one.counts = np.array([self._samples] + (used if self.find_unused else []))
        one.counting = self.comm.all_reduce(one.counts, layout=self.plan.id)

    def _check_not_combined_twice(self) -> None:
        present = any(p.grad_array is not None for p in self._params)
        if not self.mean and present and self._combined:
            raise AutogradError(
                "DistributedDataParallel: expected no combined gradients before a backward with reduce='sum', "
                "got some, which would be added up again: call zero_grad() first"
            )

    def _unreduced(self, missing: list[int]) -> UnreducedGradientError:
        listed = ", ".join(f"{self._names[i]} (bucket {self._bucket_of[i]})" for i in missing)
        return UnreducedGradientError(
            f"rank {self.comm.rank}: expected backward to reach every trainable parameter, got none for {listed}: "
            "set find_unused_parameters=True, freeze them, or call flush() where the loss reaches none"
        )

    def _launch_ready(self, wait: bool) -> None:
        one = self._pass
        assert one is not None
        while one.launched < len(self.plan.buckets) and one.pending[one.launched] == 0:
            if not one.counted(wait):
                return
            bucket = self.plan.buckets[one.launched]
            one.launched += 1
            one.works.append(self._launch(bucket, one))

    def _launch(self, bucket: Bucket, one: _Pass) -> Work:
        for param in self.bucket_params(bucket):
            if param.grad_array is None:
                param.grad_view[...] = 0  # type: ignore[index]  # whatever lies there is old
        array = self.bucket_array(bucket)
        weight = one.weight if self.mean else 1.0
        if weight == 0.0:
            array[...] = 0  # and not 0 · NaN
        elif weight != 1.0:
            array *= weight
        return self.comm.all_reduce(array, layout=self.plan.id)

    def _finish(self) -> None:
        one = self._pass
        assert one is not None
        one.counted(wait=True)
        if one.total == 0.0 and self.mean:  # no rank had a sample: combined gradients stay as they are
            for param in self._reduced_params(one):
                if param.grad_array is None:
                    param.grad_view[...] = 0  # type: ignore[index]
        else:
            self._launch_ready(wait=True)
            for work in one.works:
                work.wait()
        for param in self._reduced_params(one):
            param.grad_array, param.grad_owned = param.grad_view, True
        self._samples, self._combined = 0.0, True

    def _reduced_params(self, one: _Pass) -> list[Parameter]:
        """The parameters that get a combined gradient: all in buckets, less those that no rank used."""
        used = one.counts[1:] if self.find_unused else None
        return [self._params[i] for i in self._bucket_of if used is None or used[i] > 0]


class _Pass:
    """What one synchronising backward has done so far."""

    def __init__(self, plan: BucketPlan, samples: float) -> None:
        self.samples = samples
        self.pending = [len(bucket.entries) for bucket in plan.buckets]
        self.launched = 0
        self.works: list[Work] = []
        self.counts: Array = None
        self.counting: Work | None = None
        self.total = -1.0

    def counted(self, wait: bool) -> bool:
        """Whether the sum of the samples is known; with wait=True it is."""
        if self.total < 0.0:
            assert self.counting is not None
            if not wait and not self.counting.done():
                return False
            self.counting.wait(host=True)
            self.total = float(self.counts[0])
        return True

    @property
    def weight(self) -> float:
        """n_r / Σn."""
        return self.samples / self.total if self.total else 0.0


def _layout_order(buffers: list[FlatBuffer], named: Named) -> tuple[list[Parameter], list[str]]:
    """The parameters and their names, buffer by buffer in the order of the layout."""
    names = {id(p): name for name, p in named}
    params = [p for buffer in buffers for p in buffer.params if id(p) in names]
    return params, [names[id(p)] for p in params]


def layout_entries(buffers: list[FlatBuffer], params: Sequence[Parameter], names: Sequence[str]) -> list[Entry]:
    """The entries of a bucket plan, padding behind a parameter included."""
    number = {id(buffer): i for i, buffer in enumerate(buffers)}
    entries = []
    for param, name in zip(params, names):
        buffer = param.flat
        assert buffer is not None
        (run,) = buffer.runs([param])
        entries.append(Entry(name, number[id(buffer)], *run, buffer.dtype.itemsize, param.requires_grad))
    return entries


def check_samples(who: str, samples: float) -> float:
    """A number of samples as a float.

    Raises:
        ArgumentError: it is no finite number >= 0.
    """
    try:
        value = float(samples)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{who}: expected a number of samples >= 0, got {samples!r}") from error
    if not 0.0 <= value < float("inf"):
        raise ArgumentError(f"{who}: expected a finite number of samples >= 0, got {samples!r}")
    return value
