"""Datasets: what can be asked for sample i, for i in [0, len)."""

from __future__ import annotations

import functools
import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from minigrad.arguments import as_integer, as_sequence, check_shares, is_integer, kind_of
from minigrad.backend.device import array_module, device_of
from minigrad.backend.dtypes import Array
from minigrad.data.order import WORD, Indices, Seed, as_seed, permutation
from minigrad.errors import ArgumentError, AutogradError, DtypeError, IndexRangeError, ShapeError
from minigrad.foreign import spoken
from minigrad.ops.foreign import is_array
from minigrad.tensor import Tensor

_SPLIT_EPOCH = WORD - 1  # an epoch that no sampler reaches: a split never equals a shuffle of the same seed


class Dataset(Protocol):
    """Anything with a length and samples: arrays, tensors, numbers, or tuples and dicts of them.

    It may also have `__getitems__(indices: list[int]) -> list`, the samples of many indices in one read; the loader
    uses that where it is there.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...

    if not TYPE_CHECKING:  # what classes derived from this one get, and other datasets need not have

        def __add__(self, other: Dataset) -> ConcatDataset:
            return ConcatDataset([self, other])


def check_dataset(who: str, dataset: Any, hint: str = "") -> Any:
    """A dataset as it is.

    Raises:
        ArgumentError: it has no length, or no samples; the message ends with the hint.
    """
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise ArgumentError(f"{who}: expected a dataset with __len__ and __getitem__, got {dataset!r:.100}{hint}")
    return dataset


class ArrayDataset(Dataset):
    """Samples that lie in arrays: sample i is the tuple of row i of each.

    Args:
        arrays: Arrays or tensors of one length, at least one; on the CPU or on a GPU. They are not copied.

    Raises:
        ArgumentError: no array.
        DtypeError: an argument that is neither array nor tensor.
        ShapeError: arrays of no axes, or of different lengths.

    Example:
        >>> dataset = ArrayDataset(np.zeros((3, 8)), np.arange(3))
        >>> len(dataset), int(dataset[2][1])
        (3, 2)
    """

    def __init__(self, *arrays: Any) -> None:
        if not arrays:
            raise ArgumentError(f"{type(self).__name__}: expected at least one array, got none")
        self.arrays: tuple[Array, ...] = tuple(a.data if isinstance(a, Tensor) else a for a in arrays)
        for array in self.arrays:
            array_module(array)
        shapes = [array.shape for array in self.arrays]
        if () in shapes or len({shape[0] for shape in shapes}) > 1:
            who = type(self).__name__
            raise ShapeError(f"{who}: expected arrays with one first axis in common, got shapes {shapes}")

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: int) -> tuple[Array, ...]:
        check_index("ArrayDataset", index, len(self))
        return tuple(array[index] for array in self.arrays)

    def batch(self, indices: Sequence[int] | Indices) -> tuple[Tensor, ...]:
        """Many samples in one read: a tensor for each array, on its device.

        Args:
            indices: N integers in [-len, len).

        Returns:
            Tensors of shape (N, ...), copies of the rows.

        Raises:
            DtypeError: indices that are no integers.
            IndexRangeError: an index out of range.
        """
        places = as_indices("ArrayDataset", indices)
        return tuple(Tensor(_rows(array, places)) for array in self.arrays)


class TensorDataset(ArrayDataset):
    """Samples that lie in tensors: sample i is the tuple of row i of each, as tensors.

    Args:
        tensors: Tensors of one length, at least one. They are not copied.

    Attributes:
        tensors: What was given.

    Raises:
        ArgumentError: no tensor. DtypeError: an argument that is none. AutogradError: one that requires grad.
        ShapeError: tensors of no axes, or of different lengths.

    Example:
        >>> from minigrad import arange, zeros
        >>> dataset = TensorDataset(zeros(3, 8), arange(3))
        >>> dataset[2][1].item(), dataset[1:][0].shape
        (2, (2, 8))
    """

    def __init__(self, *tensors: Tensor) -> None:
        for x in tensors:
            if not isinstance(x, Tensor):
                instead = ": ArrayDataset takes arrays" if is_array(x) else ""
                raise DtypeError(f"TensorDataset: expected tensors, got {kind_of(x)}{instead}")
            if x.requires_grad:
                raise AutogradError("TensorDataset: expected tensors without gradient, got one: use .detach()")
        super().__init__(*tensors)
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        """Row `index` of each tensor, or several rows where it is a slice, or integers in a list or a tensor."""
        return tuple(x[index] for x in self.tensors)


def _rows(array: Array, places: Indices) -> Array:
    """Rows of an array; `take` is faster than array[places]. CuPy does not notice an index out of range, NumPy does."""
    if array.__class__ is not np.ndarray:
        check_index_range("ArrayDataset", places, -len(array), len(array))
        with device_of(array).current() as cupy:
            return cupy.take(array, cupy.asarray(places), axis=0)
    try:
        return array.take(places, axis=0)
    except IndexError:
        check_index_range("ArrayDataset", places, -len(array), len(array))
        raise


class Subset(Dataset):
    """Some samples of a dataset, in a given order.

    Args:
        dataset: Any dataset.
        indices: Which of its samples, in [0, len(dataset)); the same one may come again.

    Attributes:
        places: The indices as an array.

    Raises:
        ArgumentError: something that is no dataset.
        DtypeError: indices that are no integers.
        IndexRangeError: an index out of range.
    """

    def __init__(self, dataset: Dataset, indices: Sequence[int] | Indices) -> None:
        self.dataset = check_dataset("Subset", dataset)
        self.places = as_indices("Subset", indices)
        check_index_range("Subset", self.places, 0, len(dataset))

    def __len__(self) -> int:
        return len(self.places)

    @functools.cached_property
    def indices(self) -> list[int]:
        """Which samples of the dataset these are."""
        return [int(place) for place in self.places]

    def __getitem__(self, index: int) -> Any:
        check_index("Subset", index, len(self))
        return self.dataset[int(self.places[index])]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        places = as_indices("Subset", indices)
        check_index_range("Subset", places, -len(self), len(self))
        return read_samples(self.dataset, self.places[places].tolist())


class ConcatDataset(Dataset):
    """The samples of several datasets, one dataset after the other.

    Args:
        datasets: At least one.

    Attributes:
        datasets: What was given.
        cumulative_sizes: The number of samples up to the end of each.

    Raises:
        ArgumentError: none, or something that is no dataset.

    Example:
        >>> len(ConcatDataset([ArrayDataset(np.zeros(3)), ArrayDataset(np.zeros(4))]))
        7
    """

    def __init__(self, datasets: Iterable[Dataset]) -> None:
        if not isinstance(datasets, Iterable):
            raise ArgumentError(f"ConcatDataset: expected a list of datasets, got {datasets!r:.100}")
        self.datasets = [check_dataset("ConcatDataset", dataset) for dataset in datasets]
        if not self.datasets:
            raise ArgumentError("ConcatDataset: expected at least one dataset, got none")
        self.cumulative_sizes = list(itertools.accumulate(map(len, self.datasets)))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, index: int) -> Any:
        check_index("ConcatDataset", index, len(self))
        place = int(index) % len(self)
        which = bisect_right(self.cumulative_sizes, place)
        return self.datasets[which][place - (self.cumulative_sizes[which - 1] if which else 0)]


def read_samples(dataset: Dataset, indices: Sequence[int]) -> list[Any]:
    """Samples of a dataset, by its `__getitems__` where it has one."""
    read_many = getattr(dataset, "__getitems__", None)
    if read_many is not None:
        return list(read_many(indices))
    return [dataset[i] for i in indices]


def batch_reader(dataset: Any) -> Callable[[Sequence[int] | Indices], Any] | None:
    """How to read a whole batch out of arrays, where these or tensors are all that is behind a dataset, else None.

    A class derived from them may change its samples, so it has no such way.
    """
    if isinstance(dataset, ArrayDataset) and type(dataset) in (ArrayDataset, TensorDataset):
        return dataset.batch
    if type(dataset) is Subset:
        subset, read = dataset, batch_reader(dataset.dataset)
        return None if read is None else lambda indices: read(subset.places[as_indices("Subset", indices)])
    return None


@spoken
def random_split(dataset: Dataset, lengths: Sequence[float], seed: Seed | None = None) -> list[Subset]:
    """Divide a dataset at random into parts that share no sample: the same parts on every rank and in every run.

    Args:
        lengths: Samples of each part, integers of sum len(dataset), or fractions of sum 1: of these each part gets
            the whole samples, and the first parts one each of those that are left.
        seed: In [0, 2**64), 0 by default; each gives another division. Or a generator to draw one from.

    Raises:
        ArgumentError: no dataset, lengths of another sum, negative ones, or a seed out of range.

    Example:
        >>> [len(part) for part in random_split(ArrayDataset(np.arange(10)), [0.75, 0.25])]
        [8, 2]
    """
    n = len(check_dataset("random_split", dataset))
    sizes = _split_sizes(n, list(as_sequence("random_split", "lengths", lengths)))
    order = permutation(n, as_seed("random_split", 0 if seed is None else seed), _SPLIT_EPOCH)
    ends = np.cumsum(sizes)
    return [Subset(dataset, order[end - size : end]) for size, end in zip(sizes, ends)]


def _split_sizes(n: int, lengths: list[Any]) -> list[int]:
    if any(isinstance(length, (float, np.floating)) for length in lengths):
        check_shares("random_split", lengths)
        floors = [math.floor(n * length) for length in lengths]
        if sum(floors) > n:
            raise ArgumentError(f"random_split: expected fractions of sum 1, got {lengths} of sum {math.fsum(lengths)}")
        return [floor + len(range(i, n - sum(floors), len(floors))) for i, floor in enumerate(floors)]
    sizes = [as_integer("random_split", "a length", length, 0) for length in lengths]
    if not sizes or sum(sizes) != n:
        raise ArgumentError(f"random_split: expected lengths of sum {n}, the dataset's, got {lengths}")
    return sizes


def as_indices(who: str, indices: Sequence[int] | Indices) -> Indices:
    """Indices as an array of int64 in host memory.

    Raises:
        DtypeError: they are no integers, or not in one row.
    """
    try:
        places = np.asarray(indices)
    except ValueError as error:
        raise DtypeError(f"{who}: expected a sequence of integers as indices, got {indices!r:.100}") from error
    if places.ndim != 1 or (places.dtype.kind not in "iu" and places.size):
        raise DtypeError(f"{who}: expected a sequence of integers as indices, got {places.dtype.name} {places.shape}")
    return places.astype(np.int64, copy=False)


def check_index(who: str, index: int, length: int) -> None:
    """Refuse what is no integer in [-length, length).

    Raises:
        DtypeError: no integer.
        IndexRangeError: out of range.
    """
    if not is_integer(index):
        raise DtypeError(f"{who}: expected an integer as index, got {index!r}: use Subset for several")
    if not -length <= index < length:
        raise IndexRangeError(f"{who}: expected an index in [{-length}, {length}), got {index}")


def check_index_range(who: str, places: Indices, low: int, end: int) -> None:
    """Refuse indices outside [low, end).

    Raises:
        IndexRangeError: the first one outside is named.
    """
    outside = places[(places < low) | (places >= end)]
    if outside.size:
        raise IndexRangeError(f"{who}: expected indices in [{low}, {end}), got {outside[0]}")
