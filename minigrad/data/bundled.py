"""Real data that comes with an installed package, so that examples and tests need no download."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from minigrad.arguments import as_integer, check_choice
from minigrad.backend.dtypes import DtypeLike, as_dtype, is_float
from minigrad.data.dataset import ArrayDataset
from minigrad.data.order import WORD, Indices, largest_remainder, permutation
from minigrad.errors import DtypeError, MissingPackageError

TEST_SAMPLES = 360  # of 1,797
_SPLITS = ("train", "test", "all")


def digits(
    split: str = "train", *, dtype: DtypeLike = np.float32, standardize: bool = False, seed: int = 0
) -> ArrayDataset:
    """The 1,797 handwritten digits of the UCI repository that scikit-learn ships, 8x8 pixels each.

    360 of them are the test set, drawn at random within each class, so that every class has its fraction in both
    parts. The same seed gives the same parts on every machine.
    Source: Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998.

    Args:
        split: "train" (1,437 samples), "test" (360) or "all".
        dtype: Of the images, a float.
        standardize: Subtract the mean and divide by the standard deviation of all training pixels; by default
            pixels are in [0, 1].
        seed: Of the division, in [0, 2**64).

    Returns:
        Images (N, 1, 8, 8) and labels (N,), int64 in [0, 10).

    Raises:
        ArgumentError: an unknown split, or a seed out of range.
        DtypeError: a dtype that is no float.
        MissingPackageError: scikit-learn is not installed.
    """
    check_choice("digits", _SPLITS, split=split)
    kind = as_dtype(dtype)
    if not is_float(kind):
        raise DtypeError(f"digits: expected a float dtype, got {kind.name}")
    pixels, labels = _load_digits()
    train, test = stratified_split(labels, TEST_SAMPLES, as_integer("digits", "seed", seed, 0, WORD))
    images = pixels.reshape(-1, 1, 8, 8) / 16.0
    if standardize:
        images = (images - images[train].mean()) / images[train].std()
    chosen = {"train": train, "test": test, "all": np.arange(len(labels))}[split]
    return ArrayDataset(images[chosen].astype(kind), labels[chosen])


def _load_digits() -> tuple[Any, Any]:
    """Pixels (1797, 64) in 0..16, and labels (1797,)."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped,unused-ignore]
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "sklearn":
            raise
        raise MissingPackageError(
            "digits: expected scikit-learn, which ships the data, got no such package: pip install 'minigrad[examples]'"
        ) from error
    pixels, labels = load_digits(return_X_y=True)
    return pixels, labels.astype(np.int64)


def stratified_split(labels: Indices, test_samples: int, seed: int) -> tuple[Indices, Indices]:
    """Divide samples into train and test, each class in proportion: the test set gets test_samples of them.

    Returns:
        The sorted indices of both parts.
    """
    order = permutation(len(labels), seed)
    classes, counts = np.unique(labels, return_counts=True)
    quotas = largest_remainder(test_samples, [Fraction(int(count), len(labels)) for count in counts])
    test = [order[labels[order] == kind][:quota] for kind, quota in zip(classes, quotas)]
    is_test = np.zeros(len(labels), bool)
    is_test[np.concatenate(test)] = True
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)
