"""Gradient clipping, on as few arrays as the flat layout allows."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from minigrad.arguments import as_real, check_switch
from minigrad.backend.device import Device, array_module, device_of, to_device
from minigrad.backend.dtypes import Array, is_float, widened
from minigrad.backend.fused.norm import largest, sum_of_squares
from minigrad.backend.kernels import kernels_for
from minigrad.backend.memory import contiguous
from minigrad.errors import ArgumentError, DtypeError, NonFiniteError
from minigrad.foreign import spoken
from minigrad.kept import check_finished, gradient_changed
from minigrad.nn.flat import FlatBuffer
from minigrad.nn.parameter import Parameter, at_least_one
from minigrad.tensor import Tensor

__all__ = ["clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"]


@spoken
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale all gradients by min(1, max_norm / (norm + 1e-6)), norm that of all of them as one vector.

    Gradients narrower than float32 are summed in float32. Nothing waits for a GPU, unless error_if_nonfinite.

    Args:
        parameters: One tensor or several, at least one; those without gradient are left out, repeated ones count once.
        max_norm: >= 0; inf only measures.
        norm_type: p of the norm, > 0; inf for the largest absolute value.
        error_if_nonfinite: Raise where the norm is NaN or infinite, instead of scaling by it.

    Returns:
        The norm before clipping, a tensor of no axes; 0 where there is no gradient.

    Raises:
        ArgumentError: max_norm or norm_type out of range, or no parameters.
        DtypeError: something that is no tensor.
        AutogradError: gradients that are not combined yet over the replicas of a graph.
        NonFiniteError: error_if_nonfinite, and it is; the gradients are as they were.
    """
    check_switch("clip_grad_norm_", error_if_nonfinite=error_if_nonfinite)
    return _clip("clip_grad_norm_", [parameters], max_norm, norm_type, error_if_nonfinite)


def clip_replicas_grad_norm_(
    replicas: Sequence[Iterable[Tensor]], max_norm: float, norm_type: float = 2.0
) -> Tensor:
    """Clip replicas that hold the same gradients, all by the factor of the first one.

    GPUs of different models may round a norm differently; by one factor the replicas keep the same bits.

    Args:
        replicas: The parameters of each, at least one.
        max_norm, norm_type: See `clip_grad_norm_`.

    Returns:
        The norm before clipping, where the first replica lives.

    Raises:
        ArgumentError, DtypeError: see `clip_grad_norm_`.
    """
    return _clip("clip_replicas_grad_norm_", replicas, max_norm, norm_type, False)


def clip_divided_grad_norm_(
    who: str,
    gradients: Sequence[Array],
    buffers: Iterable[FlatBuffer],
    device: Device,
    combined: Callable[[Array, bool], Array],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """`clip_grad_norm_` of gradients that are divided among ranks.

    Args:
        who: For messages.
        gradients: Those that this rank has; it may have none.
        buffers: In which they lie.
        device: Where they live.
        combined: The reduction over the ranks of a float64 (1,): its sum, or its largest with True.
        max_norm, norm_type, error_if_nonfinite: See `clip_grad_norm_`.

    Raises:
        ArgumentError, NonFiniteError: see `clip_grad_norm_`.
    """
    check_switch(who, error_if_nonfinite=error_if_nonfinite)
    max_norm = as_real(who, "max_norm", max_norm, 0.0)
    norm_type = as_real(who, "norm_type", norm_type, above=0.0)
    with device.current() as xp:
        total = xp.zeros(1, np.float64)
        if gradients:
            total[...] = _power_total(list(gradients), norm_type)
        norm = _root(combined(total, norm_type == math.inf), norm_type).reshape(())
        if error_if_nonfinite:
            _check_finite(who, norm)
    _shrink(gradients, buffers, max_norm, norm)
    return Tensor(norm)


def _clip(
    who: str,
    replicas: Sequence[Tensor | Iterable[Tensor]],
    max_norm: float,
    norm_type: float,
    error_if_nonfinite: bool,
) -> Tensor:
    max_norm = as_real(who, "max_norm", max_norm, 0.0)
    norm_type = as_real(who, "norm_type", norm_type, above=0.0)
    (gradients, buffers), *others = [_gradients(who, parameters) for parameters in replicas]
    if not gradients:
        return Tensor(np.zeros((), np.float32))
    with device_of(gradients[0]).current():
        norm = _norm(gradients, norm_type)
        if error_if_nonfinite:
            _check_finite(who, norm)
    every = itertools.chain(gradients, *(found for found, _ in others))
    _shrink(every, itertools.chain(buffers, *(found for _, found in others)), max_norm, norm)
    return Tensor(norm)


def _check_finite(who: str, norm: Array) -> None:
    if not array_module(norm).isfinite(norm):
        raise NonFiniteError(
            f"{who}: expected a finite norm of the gradients, got {float(norm)}: "
            "look for it in the loss, or pass error_if_nonfinite=False"
        )


def _shrink(gradients: Iterable[Array], buffers: Iterable[FlatBuffer], max_norm: float, norm: Array) -> None:
    """Scale gradients of this norm to max_norm where it is greater."""
    with device_of(norm).current() as xp:
        factor = xp.minimum(max_norm / (norm + 1e-6), 1.0)
    if xp is np and factor == 1.0:  # where looking costs nothing, a pass over the gradients is saved
        return
    for grad in gradients:
        _scale(grad, factor)
    if xp is not np or factor != factor:
        for buffer in buffers:
            buffer.clear_padding()


@spoken
def get_total_norm(
    tensors: Tensor | Iterable[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """The norm of all tensors as one vector, for example of gradients: a tensor of no axes, 0 where there is none.

    Args:
        tensors: One or several, of float dtypes.
        norm_type, error_if_nonfinite: See `clip_grad_norm_`.

    Raises:
        ArgumentError, DtypeError, NonFiniteError: see `clip_grad_norm_`.
    """
    check_switch("get_total_norm", error_if_nonfinite=error_if_nonfinite)
    norm_type = as_real("get_total_norm", "norm_type", norm_type, above=0.0)
    arrays = [_float_tensor("get_total_norm", x).data for x in _as_iterable("get_total_norm", tensors)]
    if not arrays:
        return Tensor(np.zeros((), np.float32))
    with device_of(arrays[0]).current():
        norm = _norm(arrays, norm_type)
        if error_if_nonfinite:
            _check_finite("get_total_norm", norm)
    return Tensor(norm)


@spoken
def clip_grads_with_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor) -> None:
    """Scale all gradients by min(1, max_norm / (total_norm + 1e-6)): what `clip_grad_norm_` does after it measured.

    Args:
        parameters, max_norm: See `clip_grad_norm_`.
        total_norm: What `get_total_norm` returned.

    Raises:
        ArgumentError, DtypeError, AutogradError: see `clip_grad_norm_`.
    """
    who = "clip_grads_with_norm_"
    max_norm = as_real(who, "max_norm", max_norm, 0.0)
    norm = _float_tensor(who, total_norm)
    if norm.numel() != 1:
        raise ArgumentError(f"{who}: expected total_norm of one element, got shape {norm.shape}")
    _shrink(*_gradients(who, parameters), max_norm, norm.data.reshape(()))


@spoken
def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Clip every element of every gradient to [-clip_value, clip_value].

    Args:
        parameters: One tensor or several, at least one; those without gradient are left out.
        clip_value: >= 0.

    Raises:
        ArgumentError: clip_value out of range, or no parameters.
        DtypeError: something that is no tensor.
        AutogradError: see `clip_grad_norm_`.
    """
    limit = as_real("clip_grad_value_", "clip_value", clip_value, 0.0)
    for grad in _gradients("clip_grad_value_", parameters)[0]:
        with device_of(grad).current() as xp:
            xp.clip(grad, -limit, limit, out=grad)


def _gradients(who: str, parameters: Tensor | Iterable[Tensor]) -> tuple[list[Array], list[FlatBuffer]]:
    """The gradients as few arrays, which cover no other parameter's: contiguous runs, with padding, of flat buffers."""
    given = _as_iterable(who, parameters)
    found: list[Array] = []
    flat: dict[int, tuple[FlatBuffer, list[Parameter]]] = {}
    for param in {id(param): param for param in at_least_one(who, given)}.values():
        if _float_tensor(who, param).grad_array is None:
            continue
        check_finished(who, param)
        gradient_changed(param)
        if isinstance(param, Parameter) and param.flat is not None:
            flat.setdefault(id(param.flat), (param.flat, []))[1].append(param)
        else:
            found.append(param.grad_array)
    for buffer, members in flat.values():
        found += [buffer.grad[start:stop] for start, stop in buffer.runs(members)]
    return found, [buffer for buffer, _ in flat.values()]


def _as_iterable(who: str, tensors: Tensor | Iterable[Tensor]) -> Iterable[Tensor]:
    given = [tensors] if isinstance(tensors, Tensor) else tensors
    if not isinstance(given, Iterable):
        raise DtypeError(f"{who}: expected tensors, got {type(given).__name__}")
    return given


def _float_tensor(who: str, x: Any) -> Tensor:
    if not isinstance(x, Tensor) or not is_float(x.dtype):
        got = f"one of {x.dtype.name}" if isinstance(x, Tensor) else type(x).__name__
        raise DtypeError(f"{who}: expected float tensors, got {got}")
    return x


def _norm(gradients: list[Array], p: float) -> Array:
    """The p-norm of all gradients as one vector, on the device of the first and in the widest dtype there."""
    dtype = functools.reduce(np.promote_types, (grad.dtype for grad in gradients), np.dtype(np.float32))
    return _root(_power_total(gradients, p), p).astype(dtype)


def _power_total(gradients: list[Array], p: float) -> Array:
    """Σ|g|ᵖ, or max|g| for p = inf, of all gradients, on the device of the first."""
    device = device_of(gradients[0])
    groups: dict[Device, list[Array]] = {}
    for grad in gradients:
        groups.setdefault(device_of(grad), []).append(grad)
    parts = []
    for place, group in groups.items():
        with place.current():
            parts += _power_sums(group, p)
    total = to_device(parts[0], device)
    xp = array_module(total)
    for part in parts[1:]:
        here = to_device(part, device)
        total = xp.maximum(total, here) if p == math.inf else total + here
    return total


def _root(total: Array, p: float) -> Array:
    """The p-norm, by what `_power_total` gives."""
    if p == 2.0:
        return array_module(total).sqrt(total)
    return total if p in (1.0, math.inf) else total ** (1 / p)


def _power_sums(gradients: list[Array], p: float) -> list[Array]:
    """Σ|g|ᵖ, or max|g| for p = inf, of each of the arrays of a device; by kernels of all together."""
    if p in (2.0, math.inf) and kernels_for(gradients[0]) is not None:
        return [(sum_of_squares if p == 2.0 else largest)([contiguous(grad) for grad in gradients])]
    return [_power_sum(grad, p) for grad in gradients]


def _power_sum(grad: Array, p: float) -> Array:
    """Σ|g|ᵖ of one array, or max|g| for p = inf; of halves in float32."""
    xp = array_module(grad)
    vector = widened(grad).reshape(-1)
    if p == 2.0:
        return xp.dot(vector, vector)
    if p == math.inf:
        return xp.maximum(vector.max(), -vector.min()) if vector.size else xp.zeros((), vector.dtype)
    size = xp.abs(vector)
    return size.sum(dtype=size.dtype) if p == 1.0 else (size**p).sum(dtype=size.dtype)


def _scale(grad: Array, factor: Array) -> None:
    """grad *= factor, in place, whichever of the two dtypes is wider."""
    with device_of(grad).current():
        here = to_device(factor, device_of(grad))
        if grad.dtype.itemsize >= 4:
            grad *= here.astype(grad.dtype)
        else:
            grad[...] = grad * here
