"""How noisy gradients are: the noise scale of a batch size, from gradients that the ranks have anyway.

With G the expected gradient, Σ the covariance of the gradient of one sample, and g_r the mean over n_r independent
samples of rank r, E|g_r|² = |G|² + tr Σ / n_r, and the combined g over N = Σn has E|g|² = |G|² + tr Σ / N. So of W
ranks, whatever their shards,

    tr Σ = (Σ n_r·|g_r|² - N·|g|²) / (W - 1)        |G|² = |g|² - tr Σ / N

are right on average in each step. Their quotient is not, so both are averaged over steps before they are divided. The
noise scale tr Σ / |G|² is the batch size at which a step's noise is as large as its gradient: the larger batches are
beyond it, the less they gain (McCandlish et al., "An empirical model of large-batch training", 2018, where ranks have
equal shards).

Of one step on one rank travel Σ n_r·|g_r|² and what says whether it counts, in one sum of four numbers; |g|² is known
to each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad.arguments import as_amount, as_list, as_samples, is_real
from minigrad.backend.device import array_module, device_of, to_host
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.norm import sum_of_squares
from minigrad.distributed.comm.protocol import Communicator, Work
from minigrad.distributed.comm.work import WorkAround
from minigrad.distributed.ddp.hooks import GradBucket
from minigrad.errors import ArgumentError


@dataclass(frozen=True)
class GradientNoise:
    """Noise and size of gradients, averaged over steps.

    Both are estimates, right on average: after few steps each may be negative.

    Attributes:
        variance: tr Σ, that of the gradient of one sample, added up over all parameters.
        square: |G|², that of the expected gradient.
        steps: Over how many steps.
    """

    variance: float
    square: float
    steps: int

    @property
    def scale(self) -> float:
        """The noise scale tr Σ / |G|² in samples; infinite where no gradient shows in the noise, NaN without steps."""
        if not self.steps or math.isnan(self.square):
            return math.nan
        return self.variance / self.square if self.square > 0.0 else math.inf


def gradient_noise(squares: Sequence[float], samples: Sequence[float], combined: float) -> GradientNoise:
    """What one step says of the noise of its gradients.

    Args:
        squares: |g_r|² of each rank, where g_r is the mean over its samples; not read of a rank without samples.
        samples: n_r of each rank, >= 0, of at least two of them > 0.
        combined: |g|², where g is the mean over all samples.

    Raises:
        ArgumentError: not one number of each rank, one that is negative, or fewer than two ranks with samples.

    Example:
        >>> found = gradient_noise([4.0, 1.0], [1, 1], 2.25)    # of g = 2 and g = 1
        >>> found.variance, found.square, found.scale
        (0.5, 2.0, 0.25)
    """
    known = as_list("gradient_noise", "squares", squares)
    counts = [as_samples("gradient_noise", n) for n in as_list("gradient_noise", "samples", samples)]
    if len(known) != len(counts) or sum(n > 0.0 for n in counts) < 2:
        raise ArgumentError(
            f"gradient_noise: expected a square for each rank, and at least two ranks with samples, got {len(known)} "
            f"squares and samples {counts!r:.100}"
        )
    bad = [square for square, n in zip(known, counts) if n and not (is_real(square) and square >= 0.0)]
    if bad:
        raise ArgumentError(f"gradient_noise: expected squares >= 0 of ranks with samples, got {bad[0]!r:.100}")
    whole = math.fsum(n * square for square, n in zip(known, counts) if n)
    ranks, common = sum(n > 0.0 for n in counts), as_amount("gradient_noise", "combined", combined)
    return GradientNoise(*_of_sums(whole, math.fsum(counts), ranks, common), steps=1)


def _of_sums(whole: Any, total: Any, ranks: Any, combined: Any) -> tuple[Any, Any]:
    """tr Σ and |G|² from Σ n_r·|g_r|², N, W >= 2 and |g|²: numbers, or arrays of one."""
    variance = (whole - total * combined) / (ranks - 1.0)
    return variance, combined - variance / total


class NoiseMeter:
    """The state of `noise_hook`: how noisy the gradients of a wrapper are, averaged over its steps.

    A step counts where at least two ranks have samples and all gradients are finite. A rank's gradient has to be the
    mean over its samples: with several batches before a reduction, each loss is divided by their number, as for
    `Rounds`. A factor that all ranks and steps share, as a loss scale that stays, leaves the noise scale as it is.
    Samples have to be independent of each other, which tokens of one text are not. Give each wrapper one of its own. A
    deep copy starts empty.

    Example:
        >>> from minigrad import nn, randn
        >>> from minigrad.distributed import DDP, NoiseMeter, noise_hook, run
        >>> def body(comm):
        ...     ddp, meter = DDP(nn.Linear(3, 1), comm), NoiseMeter()
        ...     ddp.register_comm_hook(meter, noise_hook)
        ...     for _ in range(4):
        ...         ddp(randn(8 + comm.rank, 3)).square().mean().backward()
        ...         ddp.zero_grad()
        ...     return meter.estimate()
        >>> first, second = run(body, 2)
        >>> first == second, first.steps, first.variance > 0.0
        (True, 4, True)
    """

    def __init__(self) -> None:
        self._sums: Array = None  # of variance, square, steps, and steps that nobody weighted, where gradients live
        self.reset()

    def reset(self) -> None:
        """Forget all steps so far."""
        if self._sums is not None:  # graphs of captured steps add to it where it lies
            with device_of(self._sums).current():
                self._sums[...] = 0.0
        self._own: list[Array] = []  # |g_r|² of the buckets of this step
        self._combined: list[Array] = []  # |g|² of them
        self._row: Array = None  # n_r·|g_r|², n_r, whether that is any, and the weight of this rank; then their sums

    def estimate(self) -> GradientNoise:
        """What the steps so far say, equal on all ranks; waits for the device.

        Raises:
            ArgumentError: gradients were not weighted by samples: the wrapper was made with reduce="sum".
        """
        if self._sums is None:
            return GradientNoise(math.nan, math.nan, 0)
        variance, square, steps, unweighted = to_host(self._sums).tolist()
        if unweighted:
            raise ArgumentError("NoiseMeter: expected gradients that are means over samples, got reduce='sum'")
        if not steps:
            return GradientNoise(math.nan, math.nan, 0)
        return GradientNoise(variance / steps, square / steps, int(steps))

    def take_own(self, bucket: GradBucket) -> None:
        """Look at a bucket before anything is taken out of it."""
        if bucket.index() == 0:  # what a step that failed left is gone
            self._own, self._combined = [], []
        self._own.append(sum_of_squares(_gradients(bucket)))

    def launch(self, bucket: GradBucket, comm: Communicator) -> Work:
        """Add up over the ranks what they know of a step, all of whose buckets were looked at."""
        if self._row is None:
            self._row = comm.empty(4, np.dtype(np.float64))
        samples, weight, row = bucket.samples, bucket.weight, self._row
        row[0] = sum(self._own) * samples
        row[1], row[2] = samples, samples > 0.0
        row[3] = 1.0 if weight is None else weight[0]
        return comm.all_reduce(row, layout="noise meter")

    def take_combined(self, bucket: GradBucket) -> None:
        """Look at a bucket that holds the sum."""
        self._combined.append(sum_of_squares(_gradients(bucket)))

    def add(self) -> None:
        """Count the step."""
        xp = array_module(self._row)
        whole, total, ranks, weight = (self._row[i] for i in range(4))
        is_weighted = weight < 1.5  # Σ n_r / Σn, or in `join` less; without weights it is the number of ranks
        counts = (ranks >= 2.0) & is_weighted
        with np.errstate(all="ignore"):
            combined = sum(self._combined) / xp.where(counts, weight, 1.0) ** 2
            found = _of_sums(whole, xp.where(counts, total, 1.0), xp.where(counts, ranks, 2.0), combined)
            counts = counts & xp.isfinite(found[0]) & xp.isfinite(found[1])
        step = xp.stack([xp.where(counts, each, 0.0) for each in (*found, 1.0)] + [xp.where(is_weighted, 0.0, 1.0)])
        if self._sums is None:
            self._sums = step
        else:
            self._sums += step
        self._own, self._combined = [], []

    def __deepcopy__(self, memo: dict[int, Any]) -> NoiseMeter:
        return NoiseMeter()


class _MeasuredWork(WorkAround):
    """A bucket under way that is looked at when it holds the sum.

    Args:
        counting: The sum of what the ranks know, behind the last bucket; None behind others.
    """

    def __init__(self, work: Work, meter: NoiseMeter, bucket: GradBucket, counting: Work | None) -> None:
        super().__init__(work)
        self._meter, self._bucket, self._counting, self._is_new = meter, bucket, counting, True

    def wait(self, host: bool = False) -> None:
        """Order or block as `Work.wait` does; the first time the bucket is looked at."""
        self.inner.wait(host)
        if not self._is_new:
            return
        self._is_new = False
        self._meter.take_combined(self._bucket)
        if self._counting is not None:
            self._counting.wait(host)
            self._meter.add()


def noise_hook(state: NoiseMeter, bucket: GradBucket, comm: Communicator) -> Work:
    """Add up gradients as without a hook, bit for bit, and measure their noise.

    Costs two reads of the gradients, and behind the last bucket a sum of four numbers.

    Raises:
        ArgumentError: state is no NoiseMeter.
    """
    if not isinstance(state, NoiseMeter):
        raise ArgumentError(f"noise_hook: expected a NoiseMeter as state, got {type(state).__name__}")
    state.take_own(bucket)
    work = bucket.all_reduce(comm)
    counting = state.launch(bucket, comm) if bucket.is_last() else None
    return _MeasuredWork(work, state, bucket, counting)


def _gradients(bucket: GradBucket) -> list[Array]:
    """What the bucket holds, as it is."""
    return [param.grad_view for param in bucket.parameters()]
