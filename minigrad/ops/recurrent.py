"""Recurrence: rnn, gru and lstm, of one layer in one direction, over all steps of sequences in one node.

The product with x is made for all steps at once; then each step makes one product, h @ weight_hhᵀ. Backward takes the
steps the other way round (Werbos, "Backpropagation Through Time", 1990), and makes the gradient of each weight as one
product over all of them. steps.py says how sequences of different lengths lie in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from minigrad.arguments import check_choice
from minigrad.autograd.tape import Node, accumulate
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, widened
from minigrad.ops.linalg import product
from minigrad.ops.operands import masked
from minigrad.ops.precision import at_precision, autocasts
from minigrad.ops.steps import (
    Arrays,
    Steps,
    affine,
    arrays_of,
    check_tensors,
    give_back,
    give_outputs,
    give_product,
    narrowed,
    pair_of,
    parted,
    sigmoid_inplace,
    steps_of,
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
    xp, weight, h = array_module(arrays.rows), widened(weight_hh.data).T, arrays.h
    after = affine(arrays.rows, weight_ih, bias_ih, bias_hh)
    before, room = xp.empty_like(after), xp.empty_like(h)
    for span, size in steps.spans:
        before[span] = h[:size]
        now = after[span]
        now += product(before[span], weight, room[:size])
        if nonlinearity == "tanh":
            xp.tanh(now, out=now)
        else:
            xp.maximum(now, 0, out=now)
        h[:size] = now
    arrays.outputs[...] = after
    saved = (x, weight_ih, weight_hh, before, after, nonlinearity)
    output, last = give_outputs(steps, arrays, given, _rnn_backward, saved)
    return output, last


def _rnn_backward(node: Node, grad: Array) -> None:
    steps, names, x, weight_ih, weight_hh, before, after, nonlinearity = node.saved
    g, dh, _ = parted(steps, grad, before.shape[1])
    xp, weight = array_module(after), widened(weight_hh.data)
    slopes = 1 - after * after if nonlinearity == "tanh" else after != 0  # of relu, whose h is positive, 0 or NaN
    d = xp.empty_like(after)
    for span, size in reversed(steps.spans):
        now = g[span] + dh[:size]
        if nonlinearity == "tanh":
            xp.multiply(now, slopes[span], out=d[span])
        else:
            masked(now, slopes[span], d[span])
        product(d[span], weight, dh[:size])
    give_back(dict(zip(names, node.inputs)), x, weight_ih, weight_hh, before, d, d, dh)


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
    xp, weight, h = array_module(arrays.rows), widened(weight_hh.data).T, arrays.h
    bias, width = 0 if bias_hh is None else widened(bias_hh.data), h.shape[1]
    gates = affine(arrays.rows, weight_ih, bias_ih)
    before, inner = xp.empty((steps.rows, width), gates.dtype), xp.empty((steps.rows, width), gates.dtype)
    room = xp.empty((len(h), 3 * width), gates.dtype)
    for span, size in steps.spans:
        was = before[span]
        was[...] = h[:size]
        of_hidden = product(was, weight, room[:size])
        of_hidden += bias
        both, n = gates[span, : 2 * width], gates[span, 2 * width :]
        both += of_hidden[:, : 2 * width]
        sigmoid_inplace(both)
        inner[span] = of_hidden[:, 2 * width :]
        n += both[:, :width] * inner[span]
        xp.tanh(n, out=n)
        now = h[:size]
        now -= n
        now *= both[:, width:]
        now += n
        arrays.outputs[span] = now
    saved = (x, weight_ih, weight_hh, before, gates, inner)
    output, last = give_outputs(steps, arrays, given, _gru_backward, saved)
    return output, last


def _gru_backward(node: Node, grad: Array) -> None:
    steps, names, x, weight_ih, weight_hh, before, gates, inner = node.saved
    width, weight = before.shape[1], widened(weight_hh.data)
    g, dh, _ = parted(steps, grad, width)
    r, z, n = (gates[:, i * width : (i + 1) * width] for i in range(3))
    of_n = (1 - z) * (1 - n * n)
    factors = array_module(gates).empty((steps.rows, 3, width), gates.dtype)  # of d: the gradient of b, by and by
    factors[:, 0] = of_n * inner * r * (1 - r)
    factors[:, 1] = (before - n) * z * (1 - z)
    factors[:, 2] = of_n * r
    for span, size in reversed(steps.spans):
        d = g[span] + dh[:size]
        of_n[span] *= d
        now = factors[span]
        now *= d[:, None]
        product(now.reshape(size, len(weight)), weight, dh[:size])
        d *= z[span]
        dh[:size] += d
    of_hidden = factors.reshape(gates.shape)
    of_input = of_hidden.copy()
    of_input[:, 2 * width :] = of_n
    give_back(dict(zip(names, node.inputs)), x, weight_ih, weight_hh, before, of_input, of_hidden, dh)


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
    gates = affine(arrays.rows, weight_ih, bias_ih, bias_hh)
    kept = _lstm_steps(steps, arrays, gates, weight_hh, weight_hr)
    saved = (x, weight_ih, weight_hh, weight_hr, gates, *kept)
    output, last, cell = give_outputs(steps, arrays, given, _lstm_backward, saved)
    return output, last, cell


def _lstm_steps(
    steps: Steps, arrays: Arrays, gates: Array, weight_hh: Tensor, weight_hr: Tensor | None
) -> tuple[Array, Array, Array]:
    """Take the steps: gates become i, f, n and o. Returns h and c before, and tanh(c) after, each row."""
    xp, weight, h, c = array_module(gates), widened(weight_hh.data).T, arrays.h, arrays.c
    down = None if weight_hr is None else widened(weight_hr.data).T
    units = c.shape[1]
    before = xp.empty((steps.rows, h.shape[1]), gates.dtype)
    cells, squashed = (xp.empty((steps.rows, units), gates.dtype) for _ in range(2))
    half, rest = xp.full(4 * units, 0.5, gates.dtype), xp.full(4 * units, 0.5, gates.dtype)
    half[2 * units : 3 * units], rest[2 * units : 3 * units] = 1, 0  # sigmoid(a) = (1 + tanh(a/2))/2; n is tanh(a)
    room, product_of = xp.empty((len(h), 4 * units), gates.dtype), xp.empty_like(c)
    for span, size in steps.spans:
        before[span], cells[span] = h[:size], c[:size]
        now = gates[span]
        now += product(before[span], weight, room[:size])
        now *= half
        xp.tanh(now, out=now)
        now *= half
        now += rest
        i, f, n, o = (now[:, k * units : (k + 1) * units] for k in range(4))
        cell, part = c[:size], product_of[:size]
        cell *= f
        cell += xp.multiply(i, n, out=part)
        high = xp.tanh(cell, out=squashed[span])
        xp.multiply(o, high, out=part)
        h[:size] = part if down is None else product(part, down)
        arrays.outputs[span] = h[:size]
    return before, cells, squashed


def _lstm_backward(node: Node, grad: Array) -> None:
    steps, names, x, weight_ih, weight_hh, weight_hr, gates, before, cells, squashed = node.saved
    units, weight, xp = cells.shape[1], widened(weight_hh.data), array_module(gates)
    edges = dict(zip(names, node.inputs))
    g, dh, dc = parted(steps, grad, before.shape[1], units)
    i, f, n, o = (gates[:, k * units : (k + 1) * units] for k in range(4))
    factors = xp.empty((steps.rows, 4, units), gates.dtype)  # of dc, the last of d: the gates' gradients, by and by
    factors[:, 0] = n * i * (1 - i)
    factors[:, 1] = cells * f * (1 - f)
    factors[:, 2] = i * (1 - n * n)
    factors[:, 3] = squashed * o * (1 - o)
    through = o * (1 - squashed * squashed)
    down = None if weight_hr is None else widened(weight_hr.data)
    of_height = g.copy() if down is not None else g
    for span, size in reversed(steps.spans):
        d = g[span] + dh[:size]
        if down is not None:
            of_height[span] = d
            d = product(d, down)
        back, now = dc[:size], factors[span]
        through[span] *= d
        back += through[span]
        now[:, :3] *= back[:, None]
        now[:, 3] *= d
        back *= f[span]
        product(now.reshape(size, len(weight)), weight, dh[:size])
    if down is not None:
        give_product(edges["weight_hr"], of_height.T, o * squashed, weight_hr)
    of_gates = factors.reshape(gates.shape)
    give_back(edges, x, weight_ih, weight_hh, before, of_gates, of_gates, dh)
    accumulate(edges.get("c"), narrowed(dc, x))
