"""How much each rank's gradient counts: n_r / Σn, the one convention of every way to combine gradients."""

from __future__ import annotations

from minigrad.backend.dtypes import Array
from minigrad.errors import ArgumentError


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


def weight_of(samples: float, total: float) -> float:
    """n_r / Σn; 0 where no rank has a sample."""
    return samples / total if total else 0.0


def scale(gradients: Array, weight: float) -> None:
    """Scale gradients in place. A weight of 0 leaves zeros, whatever was there: 0 · NaN would be NaN."""
    if weight == 0.0:
        gradients[...] = 0
    elif weight != 1.0:
        gradients *= weight
