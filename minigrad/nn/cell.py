"""Recurrent cells: RNNCell, GRUCell and LSTMCell, which take one step; and what they share with whole layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad.arguments import check_choice, check_counts, check_switch, kind_of
from minigrad.backend.device import Device
from minigrad.backend.dtypes import DtypeLike
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.nn import init
from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter, zero_parameter
from minigrad.ops import families as ops
from minigrad.tensor import Tensor

__all__ = ["GRUCell", "LSTMCell", "RNNCell"]


def shapes_of(gates: int, inputs: int, hidden: int, bias: bool, projected: int = 0) -> dict[str, tuple[int, ...]]:
    """The parameters of one layer in one direction."""
    rows = gates * hidden
    shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, inputs), "weight_hh": (rows, projected or hidden)}
    if bias:
        shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
    return shapes | ({"weight_hr": (projected, hidden)} if projected else {})


class Recurrent(Module):
    """What all that have a hidden state share: how their parameters start."""

    hidden_size: int

    def reset_parameters(self, rng: np.random.Generator | None = None) -> None:
        """Draw initial values again, uniform in ± 1/√hidden_size."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for param in self.parameters():
            init.uniform_(param, -bound, bound, rng)


class _Cell(Recurrent):
    """What the cells share: sizes, parameters, and one step of a sequence's operation."""

    gates: int
    weight_ih: Parameter
    weight_hh: Parameter

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Device | str | None = None,
        dtype: DtypeLike | None = None,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__()
        check_counts(self._who(), input_size=input_size, hidden_size=hidden_size)
        check_switch(self._who(), bias=bias)
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        self.bias_ih: Parameter | None = None
        self.bias_hh: Parameter | None = None
        for name, shape in shapes_of(self.gates, input_size, hidden_size, bias).items():
            setattr(self, name, zero_parameter(shape, device, dtype))
        self.reset_parameters(rng)

    def _step(self, operation: Callable[..., Any], x: Any, state: tuple[Any, ...], **options: Any) -> Any:
        """The last state after one step of operation(x, hx, weights...)."""
        self._check(x, state)
        alone = x.ndim == 1
        if alone:
            x, state = x.unsqueeze(0), tuple([one.unsqueeze(0) for one in state])
        hx = None if not state else state if len(state) > 1 else state[0]
        weights = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        last = operation(x.unsqueeze(0), hx, *weights, **options)[1:]
        return [one.squeeze(0).clone() for one in last] if alone else last  # a view could not be changed in place

    def _check(self, x: Any, state: tuple[Any, ...]) -> None:
        who, width = self._who(), self.input_size
        if not isinstance(x, Tensor):
            raise DtypeError(f"{who}: expected a tensor, got {kind_of(x)}")
        if x.ndim not in (1, 2) or x.shape[-1] != width:
            raise ShapeError(f"{who}: expected x of shape (N, {width}) or ({width},), got {x.shape}")
        shape = (*x.shape[:-1], self.hidden_size)
        for name, one in zip(("h", "c"), state):
            if not isinstance(one, Tensor):
                raise DtypeError(f"{who}: expected the initial {name} to be a tensor, got {kind_of(one)}")
            if one.shape != shape:
                raise ShapeError(f"{who}: expected the initial {name} of shape {shape}, got {one.shape}")

    def extra_repr(self) -> str:
        """The sizes, and what is not as by default."""
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class RNNCell(_Cell):
    """One step of Elman's network: tanh(x @ weight_ihᵀ + bias_ih + h @ weight_hhᵀ + bias_hh), or relu of that.

    All parameters start uniform in ± 1/√hidden_size.

    Shapes:
        x: (N, input_size) or (input_size,), hx: (N, hidden_size) or (hidden_size,), zeros by default -> as hx
        weight_ih: (hidden_size, input_size), weight_hh: (hidden_size, hidden_size), biases: (hidden_size,)

    Args:
        nonlinearity: "tanh" or "relu".
        rng: Source of the initial values; by default the init stream.

    Raises:
        ArgumentError: a size below 1, or another nonlinearity.
    """

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Device | str | None = None,
        dtype: DtypeLike | None = None,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        check_choice(self._who(), ("tanh", "relu"), nonlinearity=nonlinearity)
        super().__init__(input_size, hidden_size, bias, device, dtype, rng=rng)
        self.nonlinearity = nonlinearity

    def forward(self, x: Tensor, hx: Tensor | None = None) -> Tensor:
        """The next h."""
        (h,) = self._step(ops.rnn, x, () if hx is None else (hx,), nonlinearity=self.nonlinearity)
        return h  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """The sizes, and what is not as by default."""
        text = super().extra_repr()
        return text if self.nonlinearity == "tanh" else f"{text}, nonlinearity={self.nonlinearity}"


class GRUCell(_Cell):
    """One step of a gated recurrent unit; see `ops.gru`.

    All parameters start uniform in ± 1/√hidden_size.

    Shapes:
        x: (N, input_size) or (input_size,), hx: (N, hidden_size) or (hidden_size,), zeros by default -> as hx
        weight_ih: (3·hidden_size, input_size), weight_hh: (3·hidden_size, hidden_size), biases: (3·hidden_size,)

    Args:
        rng: Source of the initial values; by default the init stream.

    Raises:
        ArgumentError: a size below 1.
    """

    gates = 3

    def forward(self, x: Tensor, hx: Tensor | None = None) -> Tensor:
        """The next h."""
        (h,) = self._step(ops.gru, x, () if hx is None else (hx,))
        return h  # type: ignore[no-any-return]


class LSTMCell(_Cell):
    """One step of long short-term memory; see `ops.lstm`.

    All parameters start uniform in ± 1/√hidden_size.

    Shapes:
        x: (N, input_size) or (input_size,), hx: h and c, each (N, hidden_size) or (hidden_size,), zeros by default
            -> the next h and c
        weight_ih: (4·hidden_size, input_size), weight_hh: (4·hidden_size, hidden_size), biases: (4·hidden_size,)

    Args:
        rng: Source of the initial values; by default the init stream.

    Raises:
        ArgumentError: a size below 1, or hx is no pair.
    """

    gates = 4

    def forward(self, x: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """The next h and c."""
        if hx is not None and (not isinstance(hx, (tuple, list)) or len(hx) != 2):
            raise ArgumentError(f"LSTMCell: expected hx to be a pair of tensors, h and c, got {kind_of(hx)}")
        h, c = self._step(ops.lstm, x, () if hx is None else tuple(hx))
        return h, c
