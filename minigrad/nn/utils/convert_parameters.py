"""Parameters as one vector, and a vector as parameters."""

from __future__ import annotations

from collections.abc import Iterable

from minigrad.errors import DtypeError, ShapeError
from minigrad.nn.parameter import Parameter, at_least_one
from minigrad.ops.join import cat
from minigrad.tensor import Tensor

__all__ = ["parameters_to_vector", "vector_to_parameters"]


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All parameters, one after the other, as one vector; gradients flow back to them.

    Args:
        parameters: Tensors of one dtype and device, at least one.

    Raises:
        ArgumentError: no parameters. DtypeError: something that is no tensor, or several dtypes.
    """
    return cat([param.reshape(-1) for param in _tensors("parameters_to_vector", parameters)])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Copy the values of a vector, as `parameters_to_vector` makes it, into parameters, which stay in their place.

    Args:
        vec: A vector of as many elements as all parameters have, of their dtype.
        parameters: At least one.

    Raises:
        ArgumentError: no parameters. ShapeError: more or fewer elements, or no vector.
        DtypeError: something that is no tensor, or another dtype.
    """
    who = "vector_to_parameters"
    found = _tensors(who, parameters)
    count = sum(param.numel() for param in found)
    if not isinstance(vec, Tensor):
        raise DtypeError(f"{who}: expected a tensor, got {type(vec).__name__}")
    if vec.shape != (count,):
        raise ShapeError(f"{who}: expected a vector of {count} elements, got shape {vec.shape}")
    for param in found:
        if param.dtype != vec.dtype:
            raise DtypeError(f"{who}: expected a vector of {param.dtype.name}, got {vec.dtype.name}")
    values, first = vec.detach(), 0
    for param in found:
        param.detach().copy_(values[first : first + param.numel()].reshape(param.shape))
        first += param.numel()


def _tensors(who: str, parameters: Iterable[Tensor]) -> list[Tensor]:
    found = at_least_one(who, [parameters] if isinstance(parameters, Parameter) else parameters)
    for param in found:
        if not isinstance(param, Tensor):
            raise DtypeError(f"{who}: expected tensors, got {type(param).__name__}")
    return found
