"""Recurrent layers: RNN, GRU and LSTM, over whole sequences."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from minigrad.arguments import check_choice, check_counts, check_real, check_switch, kind_of
from minigrad.backend.device import Device
from minigrad.backend.dtypes import DtypeLike
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.nn.cell import Recurrent, shapes_of
from minigrad.nn.parameter import Parameter, zero_parameter
from minigrad.nn.utils.rnn import PackedSequence, permuted
from minigrad.ops import families as ops
from minigrad.tensor import Tensor

__all__ = ["GRU", "LSTM", "RNN"]


class _Layers(Recurrent):
    """Layers one upon the other, in one direction or in both: all but the operation that each of them is.

    Attributes:
        states: How many tensors make its state: h; or h and c.
    """

    gates: int
    states = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        device: Device | str | None,
        dtype: DtypeLike | None,
        rng: np.random.Generator | None,
        proj_size: int = 0,
    ) -> None:
        super().__init__()
        who = self._who()
        check_counts(who, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        check_switch(who, bias=bias, batch_first=batch_first, bidirectional=bidirectional)
        check_real(who, 0.0, 1.0, dropout=dropout)
        if dropout and num_layers == 1:
            warnings.warn(
                f"{who}: expected num_layers > 1 for dropout={dropout}, got 1: it drops between layers", stacklevel=5
            )
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout, self.bidirectional = bias, batch_first, dropout, bidirectional
        self.proj_size = proj_size
        self._kinds: tuple[str, ...] = ()
        self._suffixes = ("", "_reverse") if bidirectional else ("",)
        height = proj_size or hidden_size
        for layer in range(num_layers):
            inputs = height * len(self._suffixes) if layer else input_size
            shapes = shapes_of(self.gates, inputs, hidden_size, bias, proj_size)
            self._kinds = tuple(shapes)
            for suffix in self._suffixes:
                for kind, shape in shapes.items():
                    setattr(self, f"{kind}_l{layer}{suffix}", zero_parameter(shape, device, dtype))
        self.reset_parameters(rng)

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of each layer and direction."""
        places = [(layer, suffix) for layer in range(self.num_layers) for suffix in self._suffixes]
        return [list(self._weights(*place).values()) for place in places]

    def flatten_parameters(self) -> None:
        """Nothing, as there is nothing to do: no library below asks for the weights of all layers in one memory."""

    def _weights(self, layer: int, suffix: str) -> dict[str, Parameter]:
        fields = self.__dict__
        return {kind: fields[f"{kind}_l{layer}{suffix}"] for kind in self._kinds}

    def _operation(self, x: Tensor, state: Any, **options: Any) -> tuple[Tensor, ...]:
        """One layer in one direction: its output, then the last of each tensor of its state."""
        raise NotImplementedError

    def forward(self, x: Any, hx: Any = None) -> tuple[Any, Any]:
        """The output of the last layer at each step, and the last state of each layer and direction.

        Raises:
            ShapeError, DtypeError: x or hx do not fit.
        """
        if isinstance(x, PackedSequence):
            return self._run_packed(x, hx)
        self._check(x)
        if x.ndim == 2:
            states = [state.unsqueeze(1) for state in self._states(hx, x, (), 0)]
            output, last = self._run(x.unsqueeze(1), states)
            output, *last = (one.squeeze(1).clone() for one in (output, *last))  # a view can not be changed in place
            return output, self._as_given(last)
        x = x.transpose(0, 1) if self.batch_first else x
        output, last = self._run(x, self._states(hx, x, (x.shape[1],), 1))
        # a copy for the same reason, and what follows would copy it anyway
        return output.transpose(0, 1).clone() if self.batch_first else output, self._as_given(last)

    def _run_packed(self, x: PackedSequence, hx: Any) -> tuple[PackedSequence, Any]:
        data, sizes, order, back = x
        if not isinstance(data, Tensor) or data.ndim != 2 or data.shape[1] != self.input_size:
            raise ShapeError(f"{self._who()}: expected packed rows of {self.input_size} features, got {data.shape}")
        states = [permuted(state, order) for state in self._states(hx, data, (int(sizes.data[0]),), 1)]
        output, last = self._run(data, states, sizes)
        return PackedSequence(output, sizes, order, back), self._as_given([permuted(state, back) for state in last])

    def _run(self, x: Tensor, states: list[Tensor], sizes: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        last: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = ops.dropout(x, self.dropout, self.training)
            outputs = []
            for suffix in self._suffixes:
                state = [one[len(last)] for one in states]
                output, *ends = self._operation(
                    x, state, reverse=bool(suffix), batch_sizes=sizes, **self._weights(layer, suffix)
                )
                outputs.append(output)
                last.append(tuple(ends))
            x = ops.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
        return x, [ops.stack(ends) for ends in zip(*last)]

    def _check(self, x: Any) -> None:
        who = self._who()
        if not isinstance(x, Tensor):
            raise DtypeError(f"{who}: expected a tensor or a PackedSequence, got {kind_of(x)}")
        if x.ndim not in (2, 3) or x.shape[-1] != self.input_size:
            axes = "N, L" if self.batch_first else "L, N"
            raise ShapeError(
                f"{who}: expected x of shape ({axes}, {self.input_size}) or (L, {self.input_size}), got {x.shape}"
            )

    def _states(self, hx: Any, x: Tensor, sequences: tuple[int, ...], axis: int) -> list[Tensor]:
        """The initial state, checked; none where it is zero."""
        if hx is None:
            return []
        who, count = self._who(), self.num_layers * len(self._suffixes)
        given = hx if self.states > 1 else (hx,)
        if not isinstance(given, (tuple, list)) or len(given) != self.states:
            raise ArgumentError(f"{who}: expected hx to be a pair of tensors, h and c, got {kind_of(hx)}")
        for name, state, width in zip(("h", "c"), given, (self.proj_size or self.hidden_size, self.hidden_size)):
            shape = (count, *sequences, width)
            if not isinstance(state, Tensor):
                raise DtypeError(f"{who}: expected the initial {name} to be a tensor, got {kind_of(state)}")
            if state.shape != shape:
                raise ShapeError(f"{who}: expected the initial {name} of shape {shape}, got {state.shape}")
        return list(given)

    def _as_given(self, last: list[Tensor]) -> Any:
        return tuple(last) if self.states > 1 else last[0]

    def extra_repr(self) -> str:
        """The sizes, and what is not as by default."""
        text = f"{self.input_size}, {self.hidden_size}"
        defaults = {"proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0}
        for name, default in {**defaults, "bidirectional": False}.items():
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)}"
        return text


class RNN(_Layers):
    """Layers of Elman's network, h ← tanh(W·x + U·h + b) or relu of that, over the steps of sequences; see `ops.rnn`.

    All parameters start uniform in ± 1/√hidden_size.

    Shapes:
        x: (L, N, input_size), (N, L, input_size) with batch_first, (L, input_size) of one sequence, or a
            PackedSequence; hx: (layers·D, N, hidden_size), zeros by default -> output as x, with D·hidden_size
            features, and the last h of each layer and direction, as hx; D is 2 where bidirectional, else 1
        weight_ih_l0: (hidden_size, input_size), weight_hh_l0: (hidden_size, hidden_size), bias_ih_l0, bias_hh_l0:
            (hidden_size,); alike for l1 and so on, and with _reverse

    Args:
        nonlinearity: "tanh" or "relu".
        dropout: In [0, 1]: the probability with which, in training, an element between two layers is dropped.
        bidirectional: A second network in each layer takes the steps from the last to the first.
        rng: Source of the initial values; by default the init stream.

    Raises:
        ArgumentError: a size below 1, or an option out of its range.
    """

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Device | str | None = None,
        dtype: DtypeLike | None = None,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        check_choice(self._who(), ("tanh", "relu"), nonlinearity=nonlinearity)
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype, rng
        )
        self.nonlinearity = nonlinearity

    def _operation(self, x: Tensor, state: Any, **options: Any) -> tuple[Tensor, ...]:
        return ops.rnn(x, state[0] if state else None, **options, nonlinearity=self.nonlinearity)


class GRU(_Layers):
    """Layers of gated recurrent units over the steps of sequences; see `ops.gru`.

    All parameters start uniform in ± 1/√hidden_size.

    Shapes:
        As `RNN`, but weight_ih, weight_hh and biases have 3·hidden_size rows: of the gates r, z and n.

    Args:
        dropout: In [0, 1]: the probability with which, in training, an element between two layers is dropped.
        bidirectional: A second network in each layer takes the steps from the last to the first.
        rng: Source of the initial values; by default the init stream.

    Raises:
        ArgumentError: a size below 1, or an option out of its range.
    """

    gates = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Device | str | None = None,
        dtype: DtypeLike | None = None,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype, rng
        )

    def _operation(self, x: Tensor, state: Any, **options: Any) -> tuple[Tensor, ...]:
        return ops.gru(x, state[0] if state else None, **options)


class LSTM(_Layers):
    """Layers of long short-term memory over the steps of sequences; see `ops.lstm`.

    All parameters start uniform in ± 1/√hidden_size.

    Shapes:
        As `RNN`, but hx is a pair, h and c, and so is the last state; weight_ih, weight_hh and biases have
        4·hidden_size rows: of i, f, n and o. With proj_size all h have that length, and weight_hr_l0 and its kin
        are (proj_size, hidden_size).

    Args:
        dropout: In [0, 1]: the probability with which, in training, an element between two layers is dropped.
        bidirectional: A second network in each layer takes the steps from the last to the first.
        proj_size: The length of h after a product that shortens it, below hidden_size; 0 for none.
        rng: Source of the initial values; by default the init stream.

    Raises:
        ArgumentError: a size below 1, or an option out of its range.

    Example:
        >>> from minigrad import nn, ones
        >>> output, (h, c) = nn.LSTM(3, 5, batch_first=True)(ones(2, 4, 3))
        >>> output.shape, h.shape, c.shape
        ((2, 4, 5), (1, 2, 5), (1, 2, 5))
    """

    gates, states = 4, 2

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Device | str | None = None,
        dtype: DtypeLike | None = None,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        check_counts("LSTM", 0, proj_size=proj_size)
        if proj_size and proj_size >= hidden_size:
            raise ArgumentError(f"LSTM: expected proj_size below hidden_size, got {proj_size} and {hidden_size}")
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype, rng,
            proj_size,
        )

    def _operation(self, x: Tensor, state: Any, **options: Any) -> tuple[Tensor, ...]:
        return ops.lstm(x, tuple(state) or None, **options)
