"""Recurrence: rnn, gru and lstm, of one layer in one direction, over all steps of sequences in one node.

The product with x is made for all steps at once; then each step makes one product, h @ weight_hhᵀ. Backward takes the
steps the other way round (Werbos, "Backpropagation Through Time", 1990), and makes the gradient of each weight as one
product over all of them. steps.py says how sequences of different lengths lie in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minigrad.arguments import check_choice
from minigrad.autograd.tape import Node, accumulate
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, widened
from minigrad.backend.workspace import empty
from minigrad.ops.linalg import product
from minigrad.ops.operands import masked
from minigrad.ops.precision import at_precision, autocasts
from minigrad.ops.steps import (
    Arrays,
    Steps,
    arrays_of,
    check_tensors,
    give_outputs,
    given_gradients,
    narrowed,
    pair_of,
    steps_of,
)
from minigrad.ops.stretches import (
    GRU_FOLD,
    LSTM_FOLD,
    PLAIN_FOLD,
    Fold,
    empty_columns,
    fold_gates,
    fold_of_weights,
    folded,
    give_back,
    into,
    sigmoids,
    slopes,
    stretches,
    tanh_slopes,
    unfold_gates,
)
from minigrad.tensor import Tensor

__all__ = ["gru", "lstm", "rnn"]

Sizes = Sequence[int] | Tensor | None


@autocasts("low", itself=True)
def rnn(
    x: Tensor,
    hx: Tensor | None,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    nonlinearity: str = "tanh",
    *,
    reverse: bool = False,
    batch_sizes: Sizes = None,
) -> tuple[Tensor, Tensor]:
    """h ← tanh(x @ weight_ihᵀ + bias_ih + h @ weight_hhᵀ + bias_hh) at each step (Elman, 1990); or relu of that.

    With d = g + dh, g the output's gradient at this step and dh what comes back from the next one: da = d·(1 - h²),
    or d where h > 0; dh = da @ weight_hh, dx = da @ weight_ih, and each weight and bias adds up over the steps.

    Shapes:
        x: (L, N, I), hx: (N, H), weight_ih: (H, I), weight_hh: (H, H), biases: (H,) -> (L, N, H) and (N, H): h after
            each step, and after the last one of each sequence. With batch_sizes x is (R, I), the output (R, H).

    Args:
        hx: The initial h; zeros where it is None.
        nonlinearity: "tanh" or "relu".
        reverse: Take the steps from the last to the first.
        batch_sizes: How many sequences each step has, the longest first: a PackedSequence has them.

    Raises:
        ShapeError, DtypeError, DeviceError: shapes, dtypes or devices that do not fit as above, or no step.
        ArgumentError: another nonlinearity, or batch_sizes that grow or do not add up to the rows.
    """
    check_choice("rnn", ("tanh", "relu"), nonlinearity=nonlinearity)
    x, hx, weight_ih, weight_hh, bias_ih, bias_hh = at_precision(
        "rnn", x, hx, weight_ih, weight_hh, bias_ih, bias_hh
    )
    steps = steps_of("rnn", x, reverse, batch_sizes)
    given = check_tensors(
        "rnn", 1, steps,
        dict(x=x, weight_ih=weight_ih, weight_hh=weight_hh, bias_ih=bias_ih, bias_hh=bias_hh, h=hx),
    )
    arrays = arrays_of(steps, given)
    xp, h = array_module(arrays.rows), arrays.h
    of_input, of_hidden = folded(weight_ih, PLAIN_FOLD), folded(weight_hh, PLAIN_FOLD)
    bias = _summed(folded(bias_ih, PLAIN_FOLD), folded(bias_hh, PLAIN_FOLD))
    before, after = (empty_columns(arrays.rows, len(h), steps.rows) for _ in range(2))
    for stretch in stretches(steps, 3 * len(h), _on_host(h)):
        values = xp.empty((stretch.steps, len(h), stretch.size), h.dtype)
        now, room = h[:, : stretch.size], xp.empty(values.shape[1:], h.dtype)
        product(of_input, stretch.of_rows(arrays.rows), values)
        if bias is not None:
            values += bias
        befores, outputs = stretch.of_columns(before), stretch.of_rows(arrays.outputs)
        for step in stretch.order:
            befores[step] = now
            product(of_hidden, now, room)
            room += values[step]
            if nonlinearity == "tanh":
                xp.tanh(room, out=now)
            else:
                xp.maximum(room, 0, out=now)
            values[step] = now
            outputs[step] = now
        stretch.of_columns(after)[...] = values
    saved = (x, weight_ih, weight_hh, of_input, of_hidden, nonlinearity, before, after)
    output, last = give_outputs(steps, arrays, given, _rnn_backward, saved)
    return output, last


def _rnn_backward(node: Node, grad: Array) -> None:
    steps, _, _, _, _, of_input, of_hidden, nonlinearity, before, after = node.saved
    g, dh, _ = given_gradients(steps, node, len(before))
    xp, d = array_module(after), empty_columns(after, *after.shape)
    for stretch in reversed(list(stretches(steps, 3 * len(before), _on_host(dh)))):
        values, given, found = stretch.of_columns(after), stretch.of_rows(g), stretch.of_columns(d)
        slope = 1 - values * values if nonlinearity == "tanh" else values != 0  # of relu: h is positive, 0 or NaN
        now, sums = dh[:, : stretch.size], xp.empty(values.shape[1:], d.dtype)
        for step in reversed(stretch.order):
            xp.add(given[step], now, out=sums)
            if nonlinearity == "tanh":
                xp.multiply(sums, slope[step], out=sums)
            else:
                masked(sums, slope[step], sums)
            found[step] = sums
            into(of_hidden.T, sums, now)
    give_back(node, PLAIN_FOLD, of_input, before, d, d, [dh])


@autocasts("low", itself=True)
def gru(
    x: Tensor,
    hx: Tensor | None,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    *,
    reverse: bool = False,
    batch_sizes: Sizes = None,
) -> tuple[Tensor, Tensor]:
    """h ← (1 - z)·n + z·h at each step, with gates r, z = sigmoid(a + b) and n = tanh(a + r·b) of it.

    a = x @ weight_ihᵀ + bias_ih and b = h @ weight_hhᵀ + bias_hh are three parts each, for r, z and n (Cho et al.,
    "Learning phrase representations using RNN encoder-decoder", 2014, with r after the product).

    With d = g + dh, g the output's gradient at this step and dh what comes back from the next one: of n it is
    dn = d·(1 - z)·(1 - n²), of z d·(h - n)·z·(1 - z), of r dn·b·r·(1 - r), each before its sigmoid or tanh; of b they
    are those of r and z, and dn·r. dh = d·z + db @ weight_hh, dx = da @ weight_ih; weights add up over the steps.

    Shapes:
        x: (L, N, I), hx: (N, H), weight_ih: (3·H, I), weight_hh: (3·H, H), biases: (3·H,) -> (L, N, H) and (N, H):
            h after each step, and after the last one of each sequence. With batch_sizes x is (R, I), the output (R, H).

    Args:
        hx: The initial h; zeros where it is None.
        reverse: Take the steps from the last to the first.
        batch_sizes: How many sequences each step has, the longest first: a PackedSequence has them.

    Raises:
        ShapeError, DtypeError, DeviceError: shapes, dtypes or devices that do not fit as above, or no step.
        ArgumentError: batch_sizes that grow or do not add up to the rows.
    """
    x, hx, weight_ih, weight_hh, bias_ih, bias_hh = at_precision(
        "gru", x, hx, weight_ih, weight_hh, bias_ih, bias_hh
    )
    steps = steps_of("gru", x, reverse, batch_sizes)
    given = check_tensors(
        "gru", 3, steps,
        dict(x=x, weight_ih=weight_ih, weight_hh=weight_hh, bias_ih=bias_ih, bias_hh=bias_hh, h=hx),
    )
    arrays = arrays_of(steps, given)
    fold = fold_of_weights(steps, weight_hh, GRU_FOLD)
    of_input, of_hidden = folded(weight_ih, fold), folded(weight_hh, fold)
    biases = folded(bias_ih, fold), folded(bias_hh, fold)
    kept, before = _gru_steps(steps, arrays, fold, of_input, of_hidden, *biases)
    saved = (x, weight_ih, weight_hh, fold, of_input, of_hidden, before, kept)
    output, last = give_outputs(steps, arrays, given, _gru_backward, saved)
    return output, last


@np.errstate(over="ignore")  # as for lstm
def _gru_steps(
    steps: Steps,
    arrays: Arrays,
    fold: Fold,
    of_input: Array,
    of_hidden: Array,
    bias_ih: Array | None,
    bias_hh: Array | None,
) -> tuple[Array, Array]:
    """Take the steps. Returns r, z, n and the part of b for n at each row, and h before it."""
    xp, h = array_module(arrays.rows), arrays.h
    units, both, one = len(h), 2 * len(h), xp.ones((), h.dtype)
    kept, before = empty((4 * units * steps.rows,), h.dtype, h), empty_columns(arrays.rows, units, steps.rows)
    for stretch in stretches(steps, 4 * units, _on_host(h)):
        parts, shape = stretch.of_kept(kept, 4, units), (stretch.steps, 3 * units, stretch.size)
        gates, now, room = parts[:, :3].reshape(shape), h[:, : stretch.size], xp.empty(shape[1:], h.dtype)
        product(of_input, stretch.of_rows(arrays.rows), gates)
        if bias_ih is not None:
            gates += bias_ih
        befores, outputs = stretch.of_columns(before), stretch.of_rows(arrays.outputs)
        for step in stretch.order:
            befores[step] = now
            product(of_hidden, now, room)
            if bias_hh is not None:
                room += bias_hh
            fold_gates(gates[step], GRU_FOLD, fold)
            fold_gates(room, GRU_FOLD, fold)
            of_both, (r, z, n, inner) = gates[step, :both], parts[step]
            of_both += room[:both]
            sigmoids(of_both, one)
            inner[...] = room[both:]
            n += xp.multiply(r, inner, out=room[both:])
            xp.tanh(n, out=n)
            now -= n
            now *= z
            now += n
            outputs[step] = now
    return kept, before


def _gru_backward(node: Node, grad: Array) -> None:
    steps, _, _, _, _, fold, weight_ih, weight_hh, before, kept = node.saved
    units, rows = before.shape
    g, dh, _ = given_gradients(steps, node, units)
    xp = array_module(kept)
    one, of_input, of_hidden = xp.ones((), kept.dtype), *(empty_columns(kept, 3 * units, rows) for _ in range(2))
    for stretch in reversed(list(stretches(steps, 4 * units, _on_host(kept)))):
        parts, given = stretch.of_kept(kept, 4, units), stretch.of_rows(g)
        factors, of_n = _gru_factors(parts, stretch.of_columns(before), one)
        now, d, z = dh[:, : stretch.size], xp.empty(of_n.shape[1:], kept.dtype), parts[:, 1]
        for step in reversed(stretch.order):
            xp.add(given[step], now, out=d)
            of_n[step] *= d
            factors[step] *= d
            of_gates = factors[step].reshape(3 * units, stretch.size)
            unfold_gates(of_gates, GRU_FOLD, fold)
            into(weight_hh.T, of_gates, now)
            d *= z[step]
            now += d
        shape = (stretch.steps, 3 * units, stretch.size)
        stretch.of_columns(of_hidden)[...] = factors.reshape(shape)
        factors[:, 2] = of_n
        stretch.of_columns(of_input)[...] = factors.reshape(shape)
    give_back(node, fold, weight_ih, before, of_input, of_hidden, [dh])


def _gru_factors(parts: Array, before: Array, one: Array) -> tuple[Array, Array]:
    """What d is multiplied by, to give the gradients of b (steps, 3, units, size), and of a for n."""
    xp, (r, z, n, inner) = array_module(parts), parts.swapaxes(0, 1)
    factors, of_n = xp.empty((len(parts), 3, *parts.shape[2:]), parts.dtype), xp.empty_like(n)
    tanh_slopes(n, one, of_n)
    of_n *= one - z
    slopes(parts[:, :2], factors[:, :2])
    factors[:, 0] *= of_n
    factors[:, 0] *= inner
    factors[:, 1] *= before - n
    xp.multiply(of_n, r, out=factors[:, 2])
    return factors, of_n


@autocasts("low", itself=True)
def lstm(
    x: Tensor,
    hx: tuple[Tensor, Tensor] | None,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    weight_hr: Tensor | None = None,
    *,
    reverse: bool = False,
    batch_sizes: Sizes = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """c ← f·c + i·n and h ← o·tanh(c) at each step (Hochreiter and Schmidhuber, "Long short-term memory", 1997).

    i, f, o = sigmoid and n = tanh of the four parts, in the order i, f, n, o, of x @ weight_ihᵀ + bias_ih +
    h @ weight_hhᵀ + bias_hh. With weight_hr it is h ← (o·tanh(c)) @ weight_hrᵀ (Sak et al., 2014).

    With d = g + dh, g the output's gradient at this step and dh what comes back from the next one, dc grows by
    d·o·(1 - tanh²(c)). Before its sigmoid or tanh it is of i dc·n·i·(1 - i), of f dc·c·f·(1 - f), of n dc·i·(1 - n²),
    of o d·tanh(c)·o·(1 - o), with c as it was; then dc ← dc·f, dh = da @ weight_hh, dx = da @ weight_ih, and weights
    add up over the steps. With weight_hr, d @ weight_hr takes the place of d.

    Shapes:
        x: (L, N, I), hx: h (N, H) and c (N, H), weight_ih: (4·H, I), weight_hh: (4·H, H), biases: (4·H,) -> (L, N, H),
            (N, H) and (N, H): h after each step, h and c after the last one of each sequence. With batch_sizes x is
            (R, I), the output (R, H). With weight_hr (P, H) all h are of length P.

    Args:
        hx: The initial h and c; zeros where it is None.
        reverse: Take the steps from the last to the first.
        batch_sizes: How many sequences each step has, the longest first: a PackedSequence has them.

    Raises:
        ShapeError, DtypeError, DeviceError: shapes, dtypes or devices that do not fit as above, or no step.
        ArgumentError: batch_sizes that grow or do not add up to the rows.
    """
    first, second = pair_of("lstm", hx)
    x, first, second, weight_ih, weight_hh, bias_ih, bias_hh, weight_hr = at_precision(
        "lstm", x, first, second, weight_ih, weight_hh, bias_ih, bias_hh, weight_hr
    )
    steps = steps_of("lstm", x, reverse, batch_sizes)
    given = check_tensors(
        "lstm", 4, steps,
        dict(x=x, weight_ih=weight_ih, weight_hh=weight_hh, bias_ih=bias_ih, bias_hh=bias_hh, weight_hr=weight_hr,
             h=first, c=second),
    )
    units = weight_ih.shape[0] // 4
    arrays = arrays_of(steps, given, units)
    fold = fold_of_weights(steps, weight_hh, LSTM_FOLD)
    of_input, of_hidden = folded(weight_ih, fold), folded(weight_hh, fold)
    bias = _summed(folded(bias_ih, fold), folded(bias_hh, fold))
    kept, before = _lstm_steps(steps, arrays, fold, of_input, of_hidden, bias, weight_hr)
    saved = (x, weight_ih, weight_hh, weight_hr, fold, of_input, of_hidden, before, kept)
    output, last, cell = give_outputs(steps, arrays, given, _lstm_backward, saved)
    return output, last, cell


@np.errstate(over="ignore")  # 1 / (1 + infinity) is the 0 that it should be
def _lstm_steps(
    steps: Steps,
    arrays: Arrays,
    fold: Fold,
    of_input: Array,
    of_hidden: Array,
    bias: Array | None,
    weight_hr: Tensor | None,
) -> tuple[Array, Array]:
    """Take the steps. Returns i, f, o, n, c before and tanh(c) after each row, and h before it."""
    xp, h, c = array_module(arrays.rows), arrays.h, arrays.c
    units, down, one = len(c), None if weight_hr is None else widened(weight_hr.data), xp.ones((), c.dtype)
    kept, before = empty((6 * units * steps.rows,), c.dtype, c), empty_columns(arrays.rows, len(h), steps.rows)
    for stretch in stretches(steps, 6 * units, _on_host(c)):
        size = stretch.size
        parts, shape = stretch.of_kept(kept, 6, units), (stretch.steps, 4 * units, size)
        gates, room, part = parts[:, :4].reshape(shape), xp.empty(shape[1:], c.dtype), xp.empty((units, size), c.dtype)
        height, cell = h[:, :size], c[:, :size]
        product(of_input, stretch.of_rows(arrays.rows), gates)
        if bias is not None:
            gates += bias
        befores, outputs = stretch.of_columns(before), stretch.of_rows(arrays.outputs)
        for step in stretch.order:
            now, (i, f, o, n, was, high) = gates[step], parts[step]
            befores[step], was[...] = height, cell
            product(of_hidden, height, room)
            now += room
            fold_gates(now, LSTM_FOLD, fold)
            sigmoids(now[: 3 * units], one)
            xp.tanh(n, out=n)
            xp.multiply(f, was, out=cell)
            cell += xp.multiply(i, n, out=part)
            xp.tanh(cell, out=high)
            xp.multiply(o, high, out=height if down is None else part)
            if down is not None:
                into(down, part, height)
            outputs[step] = height
    return kept, before


def _lstm_backward(node: Node, grad: Array) -> None:
    steps, names, _, _, _, weight_hr, fold, weight_ih, weight_hh, before, kept = node.saved
    units = len(weight_hh) // 4
    g, dh, dc = given_gradients(steps, node, len(before), units)
    xp, down = array_module(kept), None if weight_hr is None else widened(weight_hr.data)
    one, of_gates = xp.ones((), kept.dtype), empty_columns(kept, 4 * units, steps.rows)
    of_height = None if down is None else empty_columns(kept, *before.shape)
    for stretch in reversed(list(stretches(steps, 6 * units, _on_host(kept)))):
        parts, given = stretch.of_kept(kept, 6, units), stretch.of_rows(g)
        factors, through = _lstm_factors(parts, one)
        height, cell, sums = dh[:, : stretch.size], dc[:, : stretch.size], xp.empty((len(dh), stretch.size), kept.dtype)
        for step in reversed(stretch.order):
            d, now, via = xp.add(given[step], height, out=sums), factors[step], through[step]
            if down is not None and of_height is not None:
                stretch.of_columns(of_height)[step] = d
                d = product(down.T, d)
            via *= d
            cell += via
            now[:2] *= cell
            now[2] *= d
            now[3] *= cell
            cell *= parts[step, 1]
            gates = now.reshape(4 * units, stretch.size)
            unfold_gates(gates, LSTM_FOLD, fold)
            into(weight_hh.T, gates, height)
        stretch.of_columns(of_gates)[...] = factors.reshape(stretch.steps, 4 * units, stretch.size)
    if weight_hr is not None:
        edge = dict(zip(names, node.inputs))["weight_hr"]
        accumulate(edge, narrowed(of_height @ _raised(steps, kept, units).T, weight_hr))
    give_back(node, fold, weight_ih, before, of_gates, of_gates, [dh, dc])


def _lstm_factors(parts: Array, one: Array) -> tuple[Array, Array]:
    """What dc, or d for o, is multiplied by to give the gates' gradients (steps, 4, units, size); and d for dc."""
    xp = array_module(parts)
    factors, through = xp.empty((len(parts), 4, *parts.shape[2:]), parts.dtype), xp.empty_like(parts[:, 0])
    slopes(parts[:, :3], factors[:, :3])
    factors[:, :3] *= parts[:, 3:]  # n, c and tanh(c)
    tanh_slopes(parts[:, 3], one, factors[:, 3])
    factors[:, 3] *= parts[:, 0]
    tanh_slopes(parts[:, 5], one, through)
    through *= parts[:, 2]
    return factors, through


def _raised(steps: Steps, kept: Array, units: int) -> Array:
    """o·tanh(c) of each row, as columns: what weight_hr multiplies."""
    found = empty_columns(kept, units, steps.rows)
    for stretch in stretches(steps, 6 * units, _on_host(kept)):
        parts = stretch.of_kept(kept, 6, units)
        stretch.of_columns(found)[...] = parts[:, 2] * parts[:, 5]
    return found


def _summed(first: Array | None, second: Array | None) -> Array | None:
    if first is None or second is None:
        return first if second is None else second
    first += second
    return first


def _on_host(x: Array) -> bool:
    return x.__class__ is np.ndarray
