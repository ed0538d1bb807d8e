"""Real data that comes with an installed package, so that examples and tests need no download."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from minigrad.arguments import as_integer, check_choice
from minigrad.backend.dtypes import DtypeLike, as_dtype, is_float
from minigrad.data.dataset import ArrayDataset
from minigrad.data.order import WORD, Indices, largest_remainder, permutation
from minigrad.data.tokens import UNKNOWN, Text, encoded
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


def text(*, seed: int = 0, min_count: int = 10) -> Text:
    """The reference of the language that every Python carries for `help()`: some 80 topics, half a million characters.

    The held-out part is whole topics, drawn at random, of a tenth of the characters at most. Topics repeat each other
    a lot: a section of these (what stands between empty lines) that also stands in the training part is left out,
    however its lines are broken and indented, and a topic of which nothing is left. The text differs from one Python
    to the next; the parts of one text are the same on every machine.
    Source: "The Python Language Reference", Python Software Foundation, as `pydoc_data.topics`.

    Args:
        seed: Of the division, in [0, 2**64).
        min_count: A character that the training part has less often is replaced by `\\ufffd`, >= 1; the text that is
            returned tells which.

    Raises:
        ArgumentError: a seed or a count out of range.
        MissingPackageError: this Python comes without its topics.

    Example:
        >>> parts = text()
        >>> parts.decode(parts.encode("def f():"))
        'def f():'
    """
    as_integer("text", "seed", seed, 0, WORD)
    as_integer("text", "min_count", min_count, 1)
    topics = _load_topics()
    whole = "".join(f"{name}\n{topics[name]}\n" for name in topics)
    parts = split_topics(topics, seed)
    counts, held_out_counts = (Counter("".join(part.values())) for part in parts)
    kept = sorted(character for character, count in counts.items() if count >= min_count)
    every = counts + held_out_counts
    replaced = {character: every[character] for character in sorted(every.keys() - set(kept))}
    vocabulary = "".join(kept) + (UNKNOWN if replaced else "")
    train, held_out = ({name: encoded(topic, vocabulary) for name, topic in part.items()} for part in parts)
    digest = hashlib.sha256(whole.encode()).hexdigest()
    return Text(train, held_out, vocabulary, sum(map(len, topics.values())), digest, replaced)


def _load_topics() -> dict[str, str]:
    """The topics, sorted by name."""
    try:
        from pydoc_data.topics import topics
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "text: expected a Python with its own topics (pydoc_data), got one without: install all of its library"
        ) from error
    return {name: topics[name] for name in sorted(topics)}


def split_topics(topics: Mapping[str, str], seed: int) -> tuple[dict[str, str], dict[str, str]]:
    """Divide topics into those to train on and those held out, without the sections that also stand in the former."""
    names = list(topics)
    left = sum(map(len, topics.values())) // 10
    drawn = set[str]()
    for place in permutation(len(names), seed).tolist():
        if len(topics[names[place]]) <= left:
            left -= len(topics[names[place]])
            drawn.add(names[place])
    train = {name: topics[name] for name in names if name not in drawn}
    known = {_words(section) for topic in train.values() for section in topic.split("\n\n")}
    held_out = {
        name: "\n\n".join(section for section in topics[name].split("\n\n") if _words(section) not in known)
        for name in names
        if name in drawn
    }
    return train, {name: topic for name, topic in held_out.items() if topic}


def _words(section: str) -> str:
    """A section, however its lines are broken and indented."""
    return " ".join(section.split())
