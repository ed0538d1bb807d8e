"""How much each rank's gradient counts: n_r / Σn, the one convention of every way to combine gradients."""

from __future__ import annotations

import numpy as np

from minigrad.backend.device import device_of
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.grad_scale import scale_


def weight_of(samples: float, total: float) -> float:
    """n_r / Σn; 0 where no rank has a sample."""
    return samples / total if total else 0.0


def as_weight(gradients: Array, weight: float) -> Array | None:
    """A weight as collectives take it: float64 (1,) where the gradients live, or None for 1."""
    if weight == 1.0:
        return None
    with device_of(gradients).current() as xp:
        return xp.full(1, weight, np.float64)


def scale(gradients: Array, weight: float) -> None:
    """Scale gradients, 1-D, in place. A weight of 0 leaves zeros, whatever was there: 0 · NaN would be NaN."""
    factor = as_weight(gradients, weight)
    if factor is not None:
        with device_of(gradients).current():
            scale_(gradients, factor)
