"""Cases for minigrad/ops/recurrent.py: all outputs of a call as one vector, so that each has a gradient at once."""

import minigrad
from minigrad import ops
from tests.cases.case import Case, normal

SIZES = [3, 2, 2, 1]


def _inputs(gates, steps=(4, 3), hidden=3, cells=0, bias=True, projected=0):
    """x, h, c where there are cells, weights and biases."""
    height, rows = projected or hidden, gates * hidden
    shapes = [(*steps, 2), (3, height), *[(3, hidden)] * cells, (rows, 2), (rows, height), *[(rows,)] * (2 * bias)]
    return normal(*shapes, *[(projected, hidden)] * bool(projected))


def _case(op, label, inputs, cells=0, reverse=False, sizes=None, **options):
    """A call of ours beside one of PyTorch's, of one layer; against the direction on steps that are turned round."""

    def ours(x, h, *rest):
        hx = (h, *rest[:cells]) if cells else h
        found = getattr(ops, op)(x, hx, *rest[cells:], reverse=reverse, batch_sizes=sizes, **options)
        return minigrad.cat([one.reshape(-1) for one in found])

    def theirs(torch, x, h, *rest):
        function = getattr(torch, f"rnn_{options['nonlinearity']}" if op == "rnn" else op)
        hx, weights = [one[None] for one in (h, *rest[:cells])], list(rest[cells:])
        hx, biased = hx if cells else hx[0], len(weights) > 2
        if sizes is None:
            found = function(x.flip(0) if reverse else x, hx, weights, biased, 1, 0.0, True, False, False)
        else:
            found = function(x, torch.tensor(sizes), hx, weights, biased, 1, 0.0, True, False)
        output, *last = found
        return torch.cat([one.reshape(-1) for one in (output.flip(0) if reverse else output, *last)])

    return Case(op, label, inputs, ours, theirs)


CASES = [
    _case("rnn", "tanh", _inputs(1), nonlinearity="tanh"),
    _case("rnn", "relu-packed", _inputs(1, (8,), bias=False), sizes=SIZES, nonlinearity="relu"),
    _case("rnn", "reverse", _inputs(1), reverse=True, nonlinearity="tanh"),
    _case("gru", "plain", _inputs(3)),
    _case("gru", "packed", _inputs(3, (8,), bias=False), sizes=SIZES),
    _case("gru", "reverse", _inputs(3), reverse=True),
    _case("lstm", "plain", _inputs(4, cells=1), 1),
    _case("lstm", "packed", _inputs(4, (8,), cells=1, bias=False), 1, sizes=SIZES),
    _case("lstm", "reverse", _inputs(4, cells=1), 1, reverse=True),
    _case("lstm", "projected", _inputs(4, cells=1, projected=2), 1),
]
