"""Recurrence: ONNX's parts of the weights in our order, one call a direction; two older forms step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import minigrad as mg
from minigrad import ops
from tests.onnx.node import Function, Inexpressible, Node

ORDER = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 2, 3, 1]}  # of our gates among ONNX's: zrh for rzn, iofc for ifno


def _recurrent(
    node: Node, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None, c: Any = None, p: Any = None
) -> Any:
    x, h, c = (one if one is None or not node.get("layout") else mg.transpose(one, 0, 1) for one in (x, h, c))
    _check(node, x, lengths)
    directions = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
    found = []
    for k, reverse in enumerate(directions[node.get("direction", "forward")]):
        weights = [_in_our_order(node, one[k]) for one in (w, r, *([] if b is None else mg.chunk(b, 2, 1)))]
        state = [mg.zeros(x.shape[1], r.shape[-1]) if one is None else one[k] for one in (h, c)]
        found.append(_run(node, x, state, weights, reverse, None if p is None else p[k]))
    output, *last = [mg.stack(parts, 1 if i == 0 else 0) for i, parts in enumerate(zip(*found))]
    if node.get("layout"):
        return mg.permute(output, 2, 0, 1, 3), *(mg.transpose(one, 0, 1) for one in last)
    return output, *last


def _check(node: Node, x: Any, lengths: Any) -> None:
    """Refuse what the operations do not do.

    Raises:
        Inexpressible: the node asks for it.
    """
    if any(node.get(name) for name in ("activations", "clip", "input_forget")):
        raise Inexpressible("other activations, clipped or coupled gates")
    if lengths is not None and lengths.tolist() != [x.shape[0]] * x.shape[1]:
        raise Inexpressible("different lengths in one padded batch")


def _in_our_order(node: Node, weights: Any) -> Any:
    parts = mg.chunk(weights, len(ORDER[node.kind]), 0)
    return mg.cat([parts[k] for k in ORDER[node.kind]], 0)


def _run(node: Node, x: Any, state: list[Any], weights: list[Any], reverse: bool, peepholes: Any) -> Any:
    """The output of one direction, and its last state."""
    if node.kind == "RNN":
        return ops.rnn(x, state[0], *weights, reverse=reverse)
    if node.kind == "GRU":
        if node.get("linear_before_reset"):
            return ops.gru(x, state[0], *weights, reverse=reverse)
        return _by_steps(_reset_first, x, state[:1], weights, reverse)
    if peepholes is None:
        return ops.lstm(x, tuple(state), *weights, reverse=reverse)
    return _by_steps(_peeping, x, state, [*weights, *mg.chunk(peepholes, 3, 0)], reverse)


def _by_steps(step: Callable[..., Any], x: Any, state: list[Any], weights: list[Any], reverse: bool) -> Any:
    outputs = []
    for one in list(x)[::-1] if reverse else x:
        state = step(one, *state, *weights)
        outputs.append(state[0])
    return mg.stack(outputs[::-1] if reverse else outputs), *state


def _reset_first(x: Any, h: Any, w: Any, r: Any, b: Any = None, rb: Any = None) -> list[Any]:
    """Cho and others, 2014: what r leaves of h goes into the product."""
    inputs, (by_gates, by_new) = ops.linear(x, w, b), mg.split(r, [2 * h.shape[1], h.shape[1]], 0)
    biases = (None, None) if rb is None else mg.split(rb, [2 * h.shape[1], h.shape[1]], 0)
    gates = mg.sigmoid(inputs[:, : 2 * h.shape[1]] + ops.linear(h, by_gates, biases[0]))
    reset, update = mg.chunk(gates, 2, 1)
    new = mg.tanh(inputs[:, 2 * h.shape[1] :] + ops.linear(reset * h, by_new, biases[1]))
    return [(1 - update) * new + update * h]


def _peeping(x: Any, h: Any, c: Any, w: Any, r: Any, b: Any, rb: Any, pi: Any, po: Any, pf: Any) -> list[Any]:
    """Gers and Schmidhuber, "Recurrent nets that time and count", 2000: gates see the cell."""
    i, f, n, o = mg.chunk(ops.linear(x, w, b) + ops.linear(h, r, rb), 4, 1)
    new = mg.sigmoid(f + pf * c) * c + mg.sigmoid(i + pi * c) * mg.tanh(n)
    return [mg.sigmoid(o + po * new) * mg.tanh(new), new]


FUNCTIONS: dict[str, Function] = {"GRU": _recurrent, "LSTM": _recurrent, "RNN": _recurrent}
