"""Checks of lesson 1: any division of a batch, against the mean over its samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad.course.lesson import Student, WrongError, expect
from minigrad.distributed import Communicator, run
from minigrad.errors import CollectiveMismatchError, CollectiveTimeoutError, RankFailedError

Array = np.ndarray
SHARDS = [
    *[(48, 12, 4), (16, 16, 16, 16), (7,), (5, 0, 3), (0, 0, 9, 0), (1, 1), (1, 63)],
    *[(30, 1, 1, 0, 2, 9, 17, 5), (0, 0)],
]
MICRO_BATCHES = [
    *[[[100, 1], [7, 0, 2]], [[6, 2], [8]], [[5, 5], [5, 5]], [[9], [], [1, 1, 1]], [[0, 4], [0]], [[3]]],
    *[[[0], []]],
]  # first one in which no two mistakes come to the same
TIMEOUT_S = 2.0


def check_combine_gradients(student: Student) -> str:
    """Whether every division of a batch gives the gradient of the whole one."""
    rng = np.random.default_rng(1)
    worst = 0.0
    for shards in SHARDS:
        for dtype in (np.float64, np.float32):
            worst = max(worst, _combined(student, rng, shards, dtype))
    return f"{len(SHARDS)} divisions of a batch over 1 to 8 ranks: at most {worst:.0e} off the mean over its samples"


def _run(what: str, rank: Callable[[Communicator], Any], world_size: int) -> list[Any]:
    """Run a function on threads; where they wait for each other in vain, say in which case."""
    try:
        return run(rank, world_size, timeout_s=TIMEOUT_S)
    except (CollectiveMismatchError, CollectiveTimeoutError, RankFailedError) as error:
        raise WrongError(
            f"{what}: the ranks do not make the same collectives in the same order. All take part in each, also those "
            f"that have nothing: {error}"
        ) from error


def _combined(student: Student, rng: np.random.Generator, shards: tuple[int, ...], dtype: Any) -> float:
    """Try one division; how far it is off in float64, as a fraction of the largest element."""
    of_samples = rng.standard_normal((sum(shards), 5)) + np.arange(sum(shards))[:, np.newaxis] / 8  # not all alike
    parts = np.split(of_samples, np.cumsum(shards)[:-1])
    means = [part.mean(axis=0) if len(part) else np.full(5, np.nan) for part in parts]
    before = [mean.astype(dtype) for mean in means]
    what = f"combine_gradients, {np.dtype(dtype).name}, ranks with {_listed(shards)} samples"

    def rank(comm: Communicator) -> tuple[Any, Array]:
        gradient = before[comm.rank].copy()
        return student.combine_gradients(comm, gradient, shards[comm.rank]), gradient

    results = _run(what, rank, len(shards))
    after = [gradient for _, gradient in results]
    if not sum(shards):
        same = all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before, after))
        expect(same, f"{what}: expected every gradient as it was, since no rank has a sample, got {after[0]}")
        return 0.0
    if len(shards) > 1 and all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before, after)):
        where = "what was returned is lost: " if results[0][0] is not None else ""
        raise WrongError(f"{what}: expected another gradient, got that from before: {where}overwrite the array in "
                         "place, by gradient[...] = or an operator such as *=")
    expect(all(np.array_equal(after[0], other, equal_nan=True) for other in after),
           f"{what}: expected the same bits on all ranks, got {after[0]} on rank 0 and another one elsewhere")
    wanted = of_samples.mean(axis=0)
    scale = float(np.abs(wanted).max())
    off = float(np.abs(after[0] - wanted).max()) / scale
    limit = 1e-12 if dtype is np.float64 else 1e-5
    if not off <= limit:
        raise WrongError(f"{what}: expected the mean over all {sum(shards)} samples, {wanted.round(4)}, "
                         f"got {after[0].round(4)}{_mistake(after[0], before, shards, off)}")
    return off if dtype is np.float64 else 0.0


def _mistake(got: Array, before: list[Array], shards: tuple[int, ...], off: float) -> str:
    """Which mistake gives what came, in words to be put behind it."""
    there = [np.nan_to_num(gradient) for gradient in before]
    weighted = sum(samples * gradient for samples, gradient in zip(shards, there))
    plain = sum(there) / len(shards)
    known = {
        "the mean of the ranks' means. A rank with few samples has as much to say in it as one with many": plain,
        "the sum of the ranks' means, divided by nothing": sum(there),
        "Σ n·g, not yet divided by Σ n": weighted,
        "Σ n·g divided by the number of ranks, which is not the number of samples": weighted / len(shards),
        "Σ n·g / Σ n divided once more, by the number of ranks": weighted / sum(shards) / len(shards),
    }
    if np.isnan(got).any():
        return ": NaN of a rank without samples has come in. 0 · NaN is NaN: set such a gradient to 0, do not weight it"
    for name, value in known.items():
        if np.allclose(got, value, rtol=1e-4):
            return f", {off:.0%} off: this is {name}"
    return f", {off:.1g} of the largest element off: expected Σ n·g / Σ n, in the dtype of the gradient, at every step"


def check_accumulation_weights(student: Student) -> str:
    """Whether micro-batches of any length add up to the mean over all tokens."""
    for of_ranks in MICRO_BATCHES:
        _weighted(student, of_ranks)
    return f"{len(MICRO_BATCHES)} sets of micro-batches: each factor is its tokens over all tokens, to 1e-12"


def _weighted(student: Student, of_ranks: list[list[int]]) -> None:
    """Try one set of micro-batches, those of each rank."""
    what = f"accumulation_weights, ranks with micro-batches of {_listed(of_ranks)} tokens"
    total = sum(map(sum, of_ranks))

    def rank(comm: Communicator) -> Any:
        return student.accumulation_weights(comm, list(of_ranks[comm.rank]))

    for own, got in zip(of_ranks, _run(what, rank, len(of_ranks))):
        floats = isinstance(got, list) and [type(factor) for factor in got] == [float] * len(own)
        expect(floats, f"{what}: expected a list of {len(own)} Python floats for {own}, got {got!r:.100}: "
                       "float(x) makes one of NumPy's x")
        wanted = [count / total if total else 0.0 for count in own]
        if not np.allclose(got, wanted, rtol=1e-12, atol=0.0):
            raise WrongError(f"{what}: expected {_figures(wanted)} for the rank with {own}, each its tokens over all "
                             f"{total}, got {_figures(got)}{_mistaken(got, own, of_ranks)}")


def _mistaken(got: list[float], own: list[int], of_ranks: list[list[int]]) -> str:
    """Which mistake gives what came, in words to be put behind it."""
    micro_batches, mine, ranks = sum(map(len, of_ranks)), len(own) or 1, len(of_ranks)
    total = sum(map(sum, of_ranks))
    known = {
        "1 / the number of micro-batches: a mean of means. A short micro-batch has as much to say as a long one": [
            [1 / many] * len(own) for many in (mine, mine * ranks, micro_batches, micro_batches / ranks)
        ],
        "a share of this rank's own tokens: those of the other ranks have to be counted too": [
            [count / (sum(own) or 1) for count in own]
        ],
        "a share of this rank's tokens divided by the number of ranks, which may have different numbers of tokens": [
            [count / (sum(own) or 1) / ranks for count in own]
        ],
        "its tokens over all, times the number of ranks: PyTorch's DDP needs that, which divides by it. Here gradients "
        "are added up": [[count / (total or 1) * ranks for count in own]],
    }
    if not np.isfinite(got).all():
        return ": where no rank has a token, Σ is 0; do not divide by it"
    for name, values in known.items():
        if any(np.allclose(got, value) for value in values):
            return f": this is {name}"
    if np.allclose(got, [count / (total or 1) for count in own]):
        return ": this is right to a few digits only. Are the counts added up, and divided, in float64?"
    return ""


def _listed(values: Any) -> str:
    *first, last = map(str, values)
    return f"{', '.join(first)} and {last}" if first else last


def _figures(values: list[float]) -> str:
    return "[" + ", ".join(f"{value:.6g}" for value in values) + "]"
