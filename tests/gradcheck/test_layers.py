"""Every layer against central differences, in its inputs and its parameters; and what each layer needs to have."""

from functools import partial

import pytest

from minigrad import nn
from minigrad.testing import gradcheck
from tests.cases.layer_families import LAYER_FAMILIES, LAYERS
from tests.parity import store
from tests.refusals import attention, losses, nn as modules, recurrent

PUBLIC = {
    name for name in nn.__all__ if isinstance(kind := getattr(nn, name), type) and issubclass(kind, nn.Module)
} - {"Module"}
REFUSES_NOTHING = {"Identity"}  # whatever it is made with, whatever it is given


@pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.id)
def test_gradient(case):
    gradcheck(case.ours, case.draw())


def test_every_layer_is_gradchecked_and_compared_with_pytorch():
    """Add a case in tests/cases/layers.py or beside it, and record its family: python -m tests.parity.record layers."""
    assert sorted(PUBLIC - {case.op for case in LAYERS}) == []
    assert sorted({case.op for case in LAYERS} - PUBLIC) == []
    recorded = {case.op for name, cases in LAYER_FAMILIES.items() for case in cases if case.id in store.load(name)[0]}
    assert sorted(PUBLIC - recorded) == []


def test_every_layer_has_an_error_case():
    """Add a row in tests/refusals/nn.py: what it is not made with, or does not take."""
    rows = [*modules.ROWS, *losses.ROWS, *attention.ROWS, *recurrent.ROWS]
    named = set().union(*(_names(call) for call, *_ in rows))
    assert sorted(PUBLIC - named - REFUSES_NOTHING) == []
    assert REFUSES_NOTHING <= PUBLIC - named


def _names(call):
    """What a row of refusals speaks of: the names in the code of its function, and its arguments."""
    if isinstance(call, partial):
        return set().union(_names(call.func), *map(_names, call.args))
    if isinstance(call, str):
        return {call}
    code = getattr(call, "__code__", None)
    return set(code.co_names) if code else {type(call).__name__}
