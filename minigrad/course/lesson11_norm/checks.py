"""Lesson 11, the checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.course.counting import Counting
from minigrad.course.lesson import Student, expect
from minigrad.distributed import Communicator, run
from minigrad.errors import DistributedError
from minigrad.tensor import Tensor

TIMEOUT_S = 2.0
EPS = 2e-3  # another than the default
SHARDS = ((4, 3), (5, 0, 2), (1, 1, 1, 1), (0, 7), (6,))  # rows of each rank
COLUMNS = 3


# ---------------------------------------------------------------------------------------------------- combine_moments


def check_combine_moments(student: Student) -> str:
    """Parts of whole numbers, against fractions."""
    worst = 0.0
    for mean in (0, 10_000):
        for sizes in ((3, 5), (2, 0, 9), (1, 1), (0, 4, 0), (7,), (40, 1, 3, 2)):
            worst = max(worst, _combined_error(student.combine_moments, mean, sizes))
    nothing = [np.full(2, np.nan)] * 2
    none = student.combine_moments([0, 0], nothing, nothing)
    expect(
        none[0] == 0 and not np.any(none[1]) and not np.any(none[2]),
        f"combine_moments of two parts without values: expected 0, zeros, zeros, got {none[0]}, {none[1]}, {none[2]}",
    )
    return f"12 sets of parts, means of 0 and of 10,000; the largest relative error is {_power(worst)}"


def _combined_error(combine: Callable[..., Any], offset: int, sizes: tuple[int, ...]) -> float:
    rng = np.random.default_rng(sum(sizes))
    parts = [rng.integers(offset - 2, offset + 3, (size, 2)) + part for part, size in enumerate(sizes)]
    with np.errstate(invalid="ignore"):
        means = [part.sum(axis=0) / np.float64(len(part)) for part in parts]  # NaN where there is none
        variances = [((part - mean) ** 2).sum(axis=0) / np.float64(len(part)) for part, mean in zip(parts, means)]
    joined = np.concatenate(parts)
    true_mean, true_variance = _exact(joined)
    count, mean, variance = combine(list(sizes), means, variances)
    told = f"combine_moments of parts of {list(sizes)} values around {offset:,}"
    expect(int(count) == sum(sizes), f"{told}: expected {sum(sizes)} values, got {count}")
    filled = [size > 0 for size in sizes]
    some = [variance for variance, is_there in zip(variances, filled) if is_there]
    middle = [mean for mean, is_there in zip(means, filled) if is_there]
    mistakes = {
        "the mean of the parts' means, whatever their counts": np.mean(middle, axis=0),
    }
    _expect_near(f"{told}: the mean", mean, true_mean, 1e-13 * max(1, offset), mistakes)
    weights = np.array([size for size in sizes if size])[:, None] / sum(sizes)
    mistakes = {
        "the mean of the parts' variances, in which is nothing of the distance of their means": np.mean(some, axis=0),
        "the variances by count, in which is nothing of the distance of their means": np.sum(weights * some, axis=0),
        "that of a sample, Σ(x - mean)² / (count - 1)": true_variance / (1.0 - 1.0 / max(2, sum(sizes))),
    }
    hint = "A small difference of large squares, as in E[x²] - E[x]², has none of its digits left: add up differences"
    return _expect_near(f"{told}: the variance", variance, true_variance, 1e-11, mistakes, hint)


def _exact(values: Array) -> tuple[Array, Array]:
    """Mean and variance of each column, whole numbers, rounded once."""
    means, variances = [], []
    for column in values.T.tolist():
        mean = Fraction(sum(column), len(column))
        means.append(float(mean))
        variances.append(float(sum((value - mean) ** 2 for value in column) / len(column)))
    return np.array(means), np.array(variances)


def _expect_near(
    told: str, got: Any, right: Array, tolerance: float, mistakes: Mapping[str, Array], hint: str = ""
) -> float:
    """Require values within tolerance · max(1, |right|); return the largest error relative to that.

    Where they are not, but near to what a mistake gives, the message names it.
    """
    got = np.asarray(got)
    expect(got.shape == right.shape, f"{told}: expected shape {right.shape}, got {got.shape}")
    size = max(1.0, float(np.max(np.abs(right), initial=0.0)))
    error = float(np.max(np.abs(got.astype(np.float64) - right), initial=0.0)) / size
    if not error <= tolerance:
        near = [name for name, value in mistakes.items() if np.allclose(got, value, 1e-6, 1e-6)]
        why = f"this is {near[0]}" if near else hint
        shown = "the last digits are wrong" if error < 1e-4 else f"expected {_short(right)}, got {_short(got)}"
        expect(False, f"{told}: {shown}, off by {error:.1e}, more than {tolerance:.0e}{': ' if why else ''}{why}")
    return error


def _short(values: Array) -> str:
    flat = values.reshape(-1)
    return f"[{', '.join(f'{value:.6g}' for value in flat[:4])}{', ...' if flat.size > 4 else ''}]"


def _power(error: float) -> str:
    """Rounded up to a power of ten: the same on all machines."""
    return f"below 1e{int(np.floor(np.log10(max(error, 1e-17)))) + 1}"


# -------------------------------------------------------------------------------------------------- sync_norm_forward


def check_sync_norm_forward(student: Student) -> str:
    """Any shards, against the joined batch."""
    for dtype, offset, tolerance in ((np.float64, 0.0, 1e-12), (np.float32, 1e4, 2e-6), (np.float64, 1e4, 1e-10)):
        for sizes in SHARDS:
            _check_forward(student.sync_norm_forward, sizes, np.dtype(dtype), offset, tolerance)
    few, many = (_traffic(lambda comm, x: student.sync_norm_forward(comm, x, EPS), rows) for rows in (4, 400))
    _expect_traffic("sync_norm_forward", few, many, 3)
    return f"{3 * len(SHARDS)} sets of shards, to 1e-12 in float64; {_traffic_told(few)}"


def _parts(sizes: Sequence[int], dtype: np.dtype[Any], offset: float) -> list[Array]:
    """Rows of each rank; each rank has another mean."""
    rng = np.random.default_rng([11, *sizes])
    return [
        (rng.standard_normal((size, COLUMNS)) * (1 + rank) + rank + offset).astype(dtype)
        for rank, size in enumerate(sizes)
    ]


def _joined(parts: Sequence[Array]) -> tuple[Array, Array]:
    """The normalised rows of the joined batch, and 1 / sqrt(variance + eps), in float64."""
    rows = np.concatenate(parts).astype(np.longdouble)
    mean = rows.mean(axis=0)
    inverse = 1.0 / np.sqrt(((rows - mean) ** 2).mean(axis=0) + EPS)
    return ((rows - mean) * inverse).astype(np.float64), inverse.astype(np.float64)


def _mistaken(parts: Sequence[Array]) -> dict[str, tuple[Array, Array]]:
    """Mean and 1 / sqrt(variance + eps) as mistakes have them, by what is said of them."""
    rows, filled = np.concatenate(parts).astype(np.float64), [part.astype(np.float64) for part in parts if len(part)]
    mean, variance = rows.mean(axis=0), rows.var(axis=0)
    means, variances = (np.mean([take(part, axis=0) for part in filled], axis=0) for take in (np.mean, np.var))
    sample = variance * len(rows) / max(1, len(rows) - 1)
    return {
        "what comes without eps": (mean, 1.0 / np.sqrt(variance)),
        "what comes of eps = 1e-5, and not of the one that was given": (mean, 1.0 / np.sqrt(variance + 1e-5)),
        "what comes of eps outside of the root": (mean, 1.0 / (np.sqrt(variance) + EPS)),
        "what comes of the variance of a sample, Σ(x - mean)² / (count - 1)": (mean, 1.0 / np.sqrt(sample + EPS)),
        "what comes of the mean of the ranks' means and of their variances": (means, 1.0 / np.sqrt(variances + EPS)),
    }


def _check_forward(
    forward: Callable[..., Any], sizes: tuple[int, ...], dtype: np.dtype[Any], offset: float, tolerance: float
) -> None:
    parts = _parts(sizes, dtype, offset)
    kept = [part.copy() for part in parts]
    told = f"sync_norm_forward, ranks with {list(sizes)} rows of {dtype.name} around {offset:,.0f}"
    found = _on_ranks(told, sizes, lambda comm: forward(comm, parts[comm.rank], EPS))
    whole, inverse = _joined(parts)
    others, cuts = _mistaken(parts), np.split(whole, np.cumsum(sizes)[:-1])
    hint = "Are the statistics in float64, and about the mean? E[x²] - E[x]² loses as many digits as mean² has"
    for rank, (rows, its_inverse, count) in enumerate(found):
        here = f"{told}: rank {rank}"
        expect(np.array_equal(parts[rank], kept[rank]), f"{here}: expected x to stay as it is, got it changed")
        own = _joined([kept[rank]])[0] if sizes[rank] else cuts[rank]
        mistakes = {
            "the rows normalised by the statistics of this rank alone": own,
            **{why: (kept[rank] - mean) * inv for why, (mean, inv) in others.items()},
        }
        inverses = {why: inv for why, (_, inv) in others.items()}
        expect(np.asarray(rows).dtype == dtype, f"{here}: expected rows of {dtype.name}, got {np.asarray(rows).dtype}")
        _expect_near(f"{here}: the normalised rows", rows, cuts[rank], tolerance, mistakes, hint)
        _expect_near(f"{here}: 1 / sqrt(variance + eps)", its_inverse, inverse, tolerance, inverses, hint)
        expect(int(count) == sum(sizes), f"{here}: expected the count of all rows, {sum(sizes)}, got {count}")
        expect(
            np.array_equal(its_inverse, found[0][1]),
            f"{here}: expected the bits of rank 0, got others: ranks that normalise differently drift apart",
        )


def _on_ranks(told: str, sizes: Sequence[int], body: Callable[[Communicator], Any]) -> list[Any]:
    try:
        with np.errstate(all="ignore"):
            return run(body, len(sizes), timeout_s=TIMEOUT_S)
    except DistributedError as error:
        empty = ": a rank without rows has to make the same calls as the others" if 0 in sizes else ""
        expect(False, f"{told}: the ranks did not make the same calls{empty}: {error}")
        raise


def _traffic(call: Callable[[Communicator, Array], Any], rows: int) -> tuple[list[str], int]:
    """The collectives of a rank with so many rows, and their bytes."""

    def body(comm: Communicator) -> tuple[list[str], int]:
        counting = Counting(comm)
        call(counting, np.random.default_rng(comm.rank).standard_normal((rows, COLUMNS)))
        return counting.kinds, counting.handed_in_bytes

    return run(body, 2, timeout_s=TIMEOUT_S)[0]


def _traffic_told(found: tuple[list[str], int]) -> str:
    return f"{len(found[0])} collective{'s' * (len(found[0]) > 1)}, {found[1]} bytes a rank"


def _expect_traffic(name: str, few: tuple[list[str], int], many: tuple[list[str], int], most: int) -> None:
    expect(
        1 <= len(few[0]) <= most,
        f"{name}: expected at most {most} collective{'s' * (most > 1)}, got {len(few[0])}: {', '.join(few[0])}",
    )
    expect(
        many[1] <= 2 * few[1],
        f"{name}: expected as many bytes for 400 rows as for 4, got {many[1]} and {few[1]}: send sums, not rows",
    )


# ------------------------------------------------------------------------------------------------- sync_norm_backward


def check_sync_norm_backward(student: Student) -> str:
    """Any shards, against the gradient that the tape finds for the joined batch."""
    for dtype, tolerance in ((np.float64, 1e-12), (np.float32, 2e-6)):
        for sizes in SHARDS:
            _check_backward(student.sync_norm_backward, sizes, np.dtype(dtype), tolerance)
    few, many = (_traffic(lambda comm, x: student.sync_norm_backward(comm, x, x, x[0], 2), rows) for rows in (4, 400))
    _expect_traffic("sync_norm_backward", few, many, 1)
    return f"{2 * len(SHARDS)} sets of shards, to 1e-12 in float64; {_traffic_told(few)}"


def _check_backward(
    backward: Callable[..., Any], sizes: tuple[int, ...], dtype: np.dtype[Any], tolerance: float
) -> None:
    parts, cuts = _parts(sizes, np.dtype(np.float64), 0.0), np.cumsum(sizes)[:-1]
    grad = np.random.default_rng(7).standard_normal((sum(sizes), COLUMNS)).astype(dtype)
    whole, inverse = _joined(parts)
    whole = whole.astype(dtype)
    right = np.split(_by_tape(np.concatenate(parts), grad.astype(np.float64)), cuts)
    grads, rows = np.split(grad, cuts), np.split(whole, cuts)
    kept = grad.copy()
    told = f"sync_norm_backward, ranks with {list(sizes)} rows of {dtype.name}"
    found = _on_ranks(told, sizes, lambda comm: backward(comm, grads[comm.rank], rows[comm.rank], inverse, sum(sizes)))
    expect(np.array_equal(grad, kept), f"{told}: expected grad to stay as it is, got it changed")
    sums = [(g.sum(axis=0, dtype=np.float64), (g * r).sum(axis=0, dtype=np.float64)) for g, r in zip(grads, rows)]
    mean, slope = (sum(pair[i] for pair in sums) / sum(sizes) for i in range(2))
    for rank, got in enumerate(found):
        g, r, n = grads[rank], rows[rank], max(1, sizes[rank])
        own = inverse * (g - sums[rank][0] / n - r * sums[rank][1] / n)
        mixed = inverse * (g - sums[rank][0] / sum(sizes) - r * sums[rank][1] / sum(sizes))
        mistakes = {
            "what comes of the sums of this rank's rows alone: its rows act on those of the others too": own,
            "what comes of the sums of this rank's rows, over the count of all: add the sums up over the ranks": mixed,
            "inverse · grad: mean and variance depend on x, too": inverse * g,
            "without the part that comes through the variance": inverse * (g - mean),
            "without the part that comes through the mean": inverse * (g - r * slope),
        }
        here = f"{told}: rank {rank}"
        kind = np.asarray(got).dtype
        expect(kind == dtype, f"{here}: expected a gradient of {dtype.name}, got {kind}")
        _expect_near(f"{here}: the gradient of x", got, right[rank], tolerance, mistakes)


def _by_tape(rows: Array, grad: Array) -> Array:
    x = Tensor(rows, requires_grad=True)
    centered = x - x.mean(dim=0)
    normalised = centered / (centered.square().mean(dim=0) + EPS).sqrt()
    (normalised * Tensor(grad)).sum().backward()
    assert x.grad is not None
    return x.grad.data
