"""How samples become a batch: the leaves are stacked along a new first axis, tuples and dicts keep their form."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minigrad.backend.device import array_module, device_of
from minigrad.backend.dtypes import Array
from minigrad.errors import ArgumentError, AutogradError, DeviceError, DtypeError, ShapeError
from minigrad.tensor import Tensor


def default_collate(samples: Sequence[Any]) -> Any:
    """Make one batch of samples of the same form.

    Tensors, arrays and NumPy scalars of one shape and dtype become a tensor of that dtype; Python numbers one of
    float32, int64 or bool; tuples, named tuples, lists and dicts stay what they are, with each field collated; texts
    become a list.

    Shapes:
        N samples of (...) -> (N, ...)

    Raises:
        ArgumentError: no list, no samples, or dicts of different keys.
        ShapeError: shapes or lengths that differ.
        DtypeError: dtypes or types that differ, or a type that can't be collated.
        DeviceError: samples on different devices.
        AutogradError: a sample that requires grad.

    Example:
        >>> images, labels = default_collate([(np.zeros(4), 0), (np.ones(4), 1)])
        >>> images.shape, labels.tolist()
        ((2, 4), [0, 1])
    """
    if not isinstance(samples, (list, tuple)):
        raise ArgumentError(f"collate: expected a list of samples, got {type(samples).__name__}")
    if not samples:
        raise ArgumentError("collate: expected at least one sample, got none")
    first = samples[0]
    if isinstance(first, numbers.Real) and not isinstance(first, np.generic):
        return _numbers(samples)
    _check_same_type(samples)
    if isinstance(first, Tensor):
        return _tensors(samples)
    if isinstance(first, (str, bytes)):
        return list(samples)
    if isinstance(first, Mapping):
        return _mappings(samples)
    if isinstance(first, (tuple, list)):
        return _sequences(samples)
    return Tensor(_stack(samples))


def _check_same_type(samples: Sequence[Any]) -> None:
    kinds = list(dict.fromkeys(type(sample) for sample in samples))
    if len(kinds) > 1:
        names = " and ".join(kind.__name__ for kind in kinds)
        raise DtypeError(f"collate: expected samples of one type, got {names}")


def _numbers(samples: Sequence[Any]) -> Tensor:
    """Python numbers as one tensor, of the widest kind among them."""
    if not all(isinstance(sample, (bool, int, float)) for sample in samples):
        _check_same_type(samples)
        raise DtypeError(f"collate: expected int, float or bool, got {type(samples[0]).__name__}")
    if any(isinstance(sample, float) for sample in samples):
        return Tensor(np.array(samples, np.float32))
    dtype = bool if all(isinstance(sample, bool) for sample in samples) else np.int64
    try:
        return Tensor(np.array(samples, dtype))
    except OverflowError as error:
        raise ArgumentError(f"collate: expected integers that fit into int64, got {max(samples, key=abs)}") from error


def _tensors(samples: Sequence[Tensor]) -> Tensor:
    if any(sample.requires_grad for sample in samples):
        raise AutogradError("collate: expected samples without gradient, got requires_grad=True: use .detach()")
    return Tensor(_stack([sample.data for sample in samples]))


def _stack(arrays: Sequence[Array]) -> Array:
    xp = _module_of(arrays[0])
    shapes = list(dict.fromkeys(array.shape for array in arrays))
    if len(shapes) > 1:
        raise ShapeError(f"collate: expected samples of one shape, got {' and '.join(map(str, shapes))}")
    dtypes = dict.fromkeys(array.dtype for array in arrays)
    names = list(dict.fromkeys(dtype.name for dtype in dtypes))  # of each dtype once, for a name takes 4 µs
    if len(names) > 1:
        raise DtypeError(f"collate: expected samples of one dtype, got {' and '.join(names)}")
    if xp is np:
        return np.array(arrays)  # what stack gives, without a new view of each
    devices = list(dict.fromkeys(str(device_of(array)) for array in arrays))
    if len(devices) > 1:
        raise DeviceError(f"collate: expected samples on one device, got {' and '.join(devices)}")
    with device_of(arrays[0]).current():
        return xp.stack(arrays)


def _module_of(sample: Any) -> Any:
    try:
        return array_module(sample)
    except DtypeError as error:
        raise DtypeError(
            "collate: expected tensors, arrays, numbers, texts, or tuples, lists and dicts of them, "
            f"got {type(sample).__name__}: pass collate_fn="
        ) from error


def _mappings(samples: Sequence[Mapping[Any, Any]]) -> dict[Any, Any]:
    keys = samples[0].keys()
    for sample in samples:
        if sample.keys() != keys:
            raise ArgumentError(f"collate: expected samples with the keys {list(keys)}, got {list(sample.keys())}")
    return {key: default_collate([sample[key] for sample in samples]) for key in keys}


def _sequences(samples: Sequence[Any]) -> Any:
    lengths = list(dict.fromkeys(len(sample) for sample in samples))
    if len(lengths) > 1:
        raise ShapeError(f"collate: expected samples of one length, got {' and '.join(map(str, lengths))}")
    kind = type(samples[0])
    fields = [default_collate(field) for field in zip(*samples)]
    return kind(*fields) if hasattr(kind, "_fields") else kind(fields)


def map_tensors(function: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """Apply a function to every tensor in a batch; whatever else it holds stays as it is."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: map_tensors(function, value) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        fields = [map_tensors(function, value) for value in batch]
        return type(batch)(*fields) if hasattr(batch, "_fields") else type(batch)(fields)
    return batch
