"""How many labels a batch of predictions has met, counted where they are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad.backend.device import array_module, device_of
from minigrad.backend.dtypes import Array
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.train.totals import Scalar


def matches(who: str, given: Array, labels: Any, ignore_index: int) -> tuple[Scalar, Scalar]:
    """How many labels were met, NaN where a row of logits has one, and how many there are."""
    xp = array_module(given)
    if not getattr(labels, "ndim", 0):
        what = "no labels" if labels is None else f"{labels!r:.60}"
        raise ArgumentError(
            f"{who}: expected labels with predictions of shape {given.shape}, got {what}: or give a fraction and n"
        )
    if labels.dtype.kind not in "iub":
        raise DtypeError(f"{who}: expected labels of integers, got {labels.dtype.name}: write labels.argmax(1)")
    by_class = given.ndim == labels.ndim + 1
    if (given.shape[:1] + given.shape[2:] if by_class else given.shape) != labels.shape:
        raise ShapeError(f"{who}: expected labels (N, ...) of logits (N, C, ...), got {labels.shape} of {given.shape}")
    if by_class and given.shape[1] == 1:
        raise ShapeError(f"{who}: expected logits of several classes, got {given.shape}: write x[:, 0] > 0 for one")
    if not by_class and given.dtype.kind not in "iub":
        raise DtypeError(
            f"{who}: expected classes of integers, or logits (N, C), got {given.dtype.name} {given.shape}: "
            "write x > 0 for logits of one class, x > 0.5 for probabilities"
        )
    with device_of(given).current():
        counted = labels != ignore_index
        met = (((given.argmax(1) if by_class else given) == labels) & counted).sum(dtype=np.float64)
        n = counted.sum(dtype=np.float64)
        if by_class and given.dtype.kind not in "iub":
            broken = (xp.isnan(given).any(1) & counted).any()
            met = xp.where(broken, math.nan, met)
    return (float(met), float(n)) if xp is np else (met, n)
