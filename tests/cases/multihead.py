"""Cases for minigrad/ops/multihead.py; more are in transformer_layers.py."""

from minigrad import ops
from tests.cases.case import Case, normal


def _case(label, shapes, call):
    def taken(forward):
        def run(*args):
            output, weights = call(forward, *args)
            return output if weights is None else output.sum() * weights

        return run

    return Case(
        "multi_head_attention_forward", label, normal(*shapes), taken(ops.multi_head_attention_forward),
        lambda t, *a: taken(t.nn.functional.multi_head_attention_forward)(*a),
    )


CASES = [
    _case(
        "one_projection",
        [(3, 2, 4), (12, 4), (12,), (4, 4)],
        lambda f, x, w, b, o: f(x, x, x, 4, 2, w, b, None, None, False, 0.0, o, None),
    ),
    _case(
        "keys_and_values",
        [(3, 1, 2), (4, 1, 2), (6, 2), (1, 1, 2), (1, 1, 2), (2, 2), (2,)],
        lambda f, x, y, w, k, v, o, b: f(x, y, y, 2, 1, w, None, k, v, True, 0.5, o, b, False, need_weights=False),
    ),
]
