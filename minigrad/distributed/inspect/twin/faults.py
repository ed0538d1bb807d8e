"""The usual faults of data parallelism, as what they make of the gradients of a step: pure.

Each is a factor for the gradient of every batch of every rank, where Σ n_r·g_r / Σ n_r would be right, and one for the
gradient that the step before ended with. What a fault makes is compared with what there is, where that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from minigrad.backend.dtypes import as_dtype
from minigrad.distributed.inspect.twin.alone import Gradients
from minigrad.distributed.inspect.twin.compare import Expected, Floats, ulps_off

Factors = tuple[tuple[float, ...], ...]  # for each rank one for each of its batches
_LOOSER = 64.0  # a factor is known to some digits, whatever the rounding of what it was read from


@dataclass(frozen=True)
class UsualFault:
    """A usual one.

    Attributes:
        words: What is wrong.
        factors: See the head of this file.
        before: The factor of the gradient of the step before.
    """

    words: str
    factors: Factors
    before: float = 0.0


@dataclass(frozen=True)
class Terms:
    """What the gradients of a step are made of.

    Attributes:
        samples: Of each batch of each rank.
        gradients: Of each batch of each rank; None where it had no samples.
        mean: Whether the gradients are to be weighted by samples; else they are added up.
        before: The gradients that the step before ended with; None where they are not known.
        earlier: The samples of each rank in the steps before, all of them, and of the last of these.
    """

    samples: Factors
    gradients: Sequence[Sequence[Gradients | None]]
    mean: bool
    before: Gradients | None = None
    earlier: tuple[tuple[float, ...], ...] = ()

    @property
    def right(self) -> Factors:
        """The factors of what is right."""
        return weighted(self.samples) if self.mean else tuple((1.0,) * len(row) for row in self.samples)

    def total(self, factors: Factors, before: float = 0.0) -> Gradients:
        """The sum of all gradients, each times its factor."""
        found: Gradients = {}
        for row, parts in zip(factors, self.gradients):
            for factor, gradients in zip(row, parts):
                if gradients is not None:
                    _add(found, gradients, factor)
        if before and self.before is not None:
            _add(found, self.before, before)
        return found

    def largest(self, name: str) -> float:
        """The largest number of one parameter that is added up where all is right."""
        found = 0.0
        for row, parts in zip(self.right, self.gradients):
            for factor, gradients in zip(row, parts):
                values = None if gradients is None else gradients[name]
                if values is not None:
                    sizes = np.abs(factor * values)
                    found = max(found, float(np.max(sizes, initial=0.0, where=np.isfinite(sizes))))
        return found


def weighted(samples: Sequence[Sequence[float]], counts: Sequence[float] | None = None) -> Factors:
    """n_r / Σn for each batch of a rank.

    Args:
        counts: n of each rank; by default the samples of its batches.
    """
    own = [sum(row) for row in samples] if counts is None else list(counts)
    total = sum(own)
    return tuple((n / total if total else 0.0,) * len(row) for n, row in zip(own, samples))


def _add(to: Gradients, gradients: Gradients, factor: float) -> None:
    for name, values in gradients.items():
        if values is not None:
            old = to.get(name)
            with np.errstate(invalid="ignore"):
                to[name] = factor * values if old is None else old + factor * values
        else:
            to.setdefault(name, None)


def usual_faults(terms: Terms) -> Iterator[UsualFault]:
    """Those that would make something else of the gradients than what is right."""
    seen = {(terms.right, 0.0)}
    for fault in (*_of_weights(terms), *_of_batches(terms), *_of_ranks(terms), *_of_time(terms)):
        if (fault.factors, fault.before) not in seen:
            seen.add((fault.factors, fault.before))
            yield fault


def _of_weights(terms: Terms) -> Iterator[UsualFault]:
    samples, right, ranks = terms.samples, terms.right, len(terms.samples)
    counts = [sum(row) for row in samples]
    listed = ", ".join(f"{n:g}" for n in counts)

    def all_times(factor: float) -> Factors:
        return tuple((factor,) * len(row) for row in samples)

    if not terms.mean:
        yield UsualFault(f"weighted by samples ({listed}), where gradients are to be added up", weighted(samples))
        yield UsualFault(f"divided by the {ranks} ranks, where gradients are to be added up", all_times(1 / ranks))
        return
    words = f"a mean of means: each of {ranks} ranks counts alike, though they have {listed} samples"
    yield UsualFault(words, all_times(1 / ranks))
    yield UsualFault("a sum over the ranks: nobody divides by the samples of all", all_times(1.0))
    yield UsualFault(f"divided twice: by the samples of all, and by the {ranks} ranks", _times(right, 1 / ranks))
    yield UsualFault(f"divided twice by the {ranks} ranks", all_times(1 / ranks**2))
    yield UsualFault("weighted twice by n_r / Σn", tuple(tuple(w * w for w in row) for row in right))
    words = f"times {ranks}: a mean over the samples of all, and then added up over the ranks once more"
    yield UsualFault(words, _times(right, float(ranks)))
    others = tuple(tuple(1.0 - w for w in row) for row in right)
    yield UsualFault("each rank has the weight of the others: (Σn - n_r) / Σn", others)


def _of_batches(terms: Terms) -> Iterator[UsualFault]:
    samples, right = terms.samples, terms.right
    most = max(map(len, samples))
    if most < 2:
        return
    if terms.mean:
        for k, which in ((-1, "last"), (0, "first")):
            counts = [row[k] if row else 0.0 for row in samples]
            words = f"the samples of the {which} batch of each rank count for all of them"
            yield UsualFault(words, weighted(samples, counts))
        words = "each batch is combined by itself, as without no_sync, and the means are added up"
        yield UsualFault(words, _by_batch(terms))
    for k in range(most):
        dropped = tuple(tuple(w * (j != k) for j, w in enumerate(row)) for row in right)
        left = tuple(tuple(n * (j != k) for j, n in enumerate(row)) for row in samples)
        name = f"batch {k + 1} of {most} of each rank"
        yield UsualFault(f"a missing micro-batch: {name}", dropped)
        if terms.mean:
            yield UsualFault(f"a missing micro-batch: {name}, with its samples", _kept(weighted(left), dropped))
    for r, row in enumerate(samples):
        for k in range(len(row)):
            dropped = tuple(tuple(w * ((i, j) != (r, k)) for j, w in enumerate(ws)) for i, ws in enumerate(right))
            left = tuple(tuple(n * ((i, j) != (r, k)) for j, n in enumerate(ns)) for i, ns in enumerate(samples))
            name = f"batch {k + 1} of {len(row)} of rank {r}"
            yield UsualFault(f"a missing micro-batch: {name}", dropped)
            if terms.mean:
                yield UsualFault(f"a missing micro-batch: {name}, with its samples", _kept(weighted(left), dropped))


def _of_ranks(terms: Terms) -> Iterator[UsualFault]:
    right, ranks = terms.right, len(terms.samples)
    for r in range(ranks):
        alone = tuple((float(i == r),) * len(row) for i, row in enumerate(terms.samples))
        whose = f"the gradients of rank {r} alone, not combined" if ranks > 1 else "not weighted"
        yield UsualFault(whose, alone)
        without = tuple(tuple(w * (i != r) for w in row) for i, row in enumerate(right))
        yield UsualFault(f"rank {r} is left out of the sum", without)
        if terms.mean:
            left = [sum(row) * (i != r) for i, row in enumerate(terms.samples)]
            yield UsualFault(f"rank {r} is left out, with its samples", weighted(terms.samples, left))


def _of_time(terms: Terms) -> Iterator[UsualFault]:
    nothing = _times(terms.right, 0.0)
    yield UsualFault("zeros: a buffer that nobody has filled", nothing)
    if terms.before is not None:
        yield UsualFault("a stale buffer: the gradients of the step before, once more", nothing, 1.0)
        words = "added to the gradients of the step before, which were not dropped: zero_grad()?"
        yield UsualFault(words, terms.right, 1.0)
        for r, row in enumerate(terms.right):
            words = f"a stale buffer: rank {r}, which has no gradient here, sends what the step before had left"
            yield UsualFault(words, terms.right, row[0] if row else 0.0)
    if terms.mean:
        for samples in terms.earlier:
            counts = [sum(row) + n for row, n in zip(terms.samples, samples)]
            yield UsualFault("samples of steps before count on", weighted(terms.samples, counts))


def _by_batch(terms: Terms) -> Factors:
    totals = [sum(row[k] for row in terms.samples if k < len(row)) for k in range(max(map(len, terms.samples)))]
    return tuple(tuple(n / totals[k] if totals[k] else 0.0 for k, n in enumerate(row)) for row in terms.samples)


def _times(factors: Factors, factor: float) -> Factors:
    return tuple(tuple(factor * w for w in row) for row in factors)


def _kept(factors: Factors, like: Factors) -> Factors:
    """The factors, where those of another table are not 0."""
    return tuple(tuple(w * (kept != 0.0) for w, kept in zip(*rows)) for rows in zip(factors, like))


# ------------------------------------------------------------------------------------------------------- what fits


def explain(
    got: Mapping[str, Floats],
    expected: Mapping[str, Expected],
    wrong: Sequence[str],
    made: Iterable[tuple[str, Callable[[], Mapping[str, Floats | None]]]],
    ulps: float,
    scaled: str,
) -> str:
    """The fault that explains the tensors that are wrong, else one for the first of them, in words; "" for none.

    Args:
        got, expected: By name.
        wrong: The names of those that differ, in order.
        made: Faults in words, and what each makes of the tensors.
        ulps: See `Expected.allowed_ulps`.
        scaled: What to say where all are one factor off, with a place for that.
    """
    partly = ""
    for words, make in made:
        values = make()
        fits = [_fits(got[name], values.get(name), expected[name], ulps) for name in wrong]
        if all(fits):
            return words
        if fits[0] and not partly:
            partly = f"{words}; that does not explain {wrong[fits.index(False)]}"
    factor = _factor(got, expected, wrong, ulps)
    return partly or ("" if factor is None else scaled.format(f"{factor:.4g}"))


def _fits(got: Floats, fault: Floats | None, expected: Expected, ulps: float, factor: float = 1.0) -> bool:
    """Whether a fault makes of a tensor what there is, wherever that is wrong.

    Args:
        factor: Of all that is added up, at most, where the fault makes it smaller.
    """
    if fault is None:
        return False
    allowed = expected.allowed_ulps(ulps)
    beyond = ulps_off(got, expected) > allowed
    largest = max(min(1.0, abs(factor)) * expected.largest, float(np.max(np.abs(fault), initial=0.0)))
    other = Expected(fault, None, largest, expected.dtype)
    return bool((ulps_off(got, other)[beyond] <= allowed).all())


def _factor(
    got: Mapping[str, Floats], expected: Mapping[str, Expected], wrong: Sequence[str], ulps: float
) -> float | None:
    """One factor for all that is wrong; None where there is none."""
    given = np.concatenate([got[name].reshape(-1) for name in wrong])
    right = np.concatenate([expected[name].twin.reshape(-1) for name in wrong])
    if not right.any() or not (np.isfinite(given).all() and np.isfinite(right).all()):
        return None
    factor = float(given @ right / (right @ right))
    fits = (_fits(got[name], factor * expected[name].twin, expected[name], _LOOSER * ulps, factor) for name in wrong)
    return factor if all(fits) else None


def other_weights(
    terms: Terms, got: Mapping[str, Floats], expected: Mapping[str, Expected], wrong: Sequence[str], ulps: float
) -> str:
    """Whether other weights of the ranks explain all that is wrong, in words; "" where none do."""
    ranks = range(len(terms.samples))
    ones = [tuple((float(i == r),) * len(row) for i, row in enumerate(terms.samples)) for r in ranks]
    own = [terms.total(factors) for factors in ones]
    columns = [
        np.concatenate([_flat(each.get(name), expected[name].twin) for name in wrong]) for each in own
    ]
    table, target = np.stack(columns, axis=1), np.concatenate([got[name].reshape(-1) for name in wrong])
    if len(target) <= len(ranks) or not (np.isfinite(table).all() and np.isfinite(target).all()):
        return ""
    weights = np.linalg.lstsq(table, target, rcond=None)[0]
    found = terms.total(tuple((float(w),) * len(row) for w, row in zip(weights, terms.samples)))
    right = [row[0] if row else 0.0 for row in terms.right]
    factor = max((abs(float(w)) / own for w, own in zip(weights, right) if own), default=1.0)
    if not all(_fits(got[name], found.get(name), expected[name], 4.0 * ulps, factor) for name in wrong):
        return ""
    listed = ", ".join(f"{w:.4g}" for w in weights)
    words = f"ranks weigh {listed}, where it should be {', '.join(f'{w:.4g}' for w in right)}"
    return f"{words}: other samples are counted, or a rank's gradient was scaled (clipped, say) before it was combined"


def _flat(values: Floats | None, like: Floats) -> Floats:
    return np.zeros(like.size) if values is None else values.reshape(-1)


def narrow(got: Mapping[str, Floats], expected: Mapping[str, Expected], wrong: Sequence[str]) -> str:
    """Whether all that is wrong has passed through 16 bits, in words; "" where it has not."""
    if any(expected[name].dtype.itemsize <= 2 for name in wrong):
        return ""
    for dtype in map(as_dtype, ("float16", "bfloat16")):
        with np.errstate(over="ignore"):
            if all(np.array_equal(got[name], got[name].astype(dtype).astype(np.float64)) for name in wrong):
                return f"rounded to {dtype.name}: a hook that compresses, or a wire of 16 bits; see ulps"
    return ""
