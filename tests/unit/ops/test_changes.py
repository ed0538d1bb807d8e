"""What is changed in place between forward and backward is noticed, or does not matter: inputs and output of any op."""

import numpy as np
import pytest

from minigrad import Tensor, no_grad
from minigrad.errors import AutogradError
from minigrad.stamp import is_view
from minigrad.testing import assert_close
from tests.cases import CASES

BY_OP = {}
for one in CASES:
    if one.differentiable:
        BY_OP.setdefault(one.op, []).append(one)


def run(case):
    """The float inputs of a case as leaves, all inputs as it is given them, and its output."""
    arrays = [np.array(x) if isinstance(x, (np.ndarray, np.generic)) else x for x in case.draw()]
    tensors = [Tensor(x, x.dtype == np.float64) if isinstance(x, np.ndarray) else x for x in arrays]
    leaves = [x for x in tensors if isinstance(x, Tensor) and x.requires_grad]
    inputs = [x * 1 if isinstance(x, Tensor) and x.requires_grad else x for x in tensors]
    return leaves, inputs, case.ours(*inputs)


def gradients(leaves, output):
    output.backward(Tensor(np.random.default_rng(1).standard_normal(output.shape)))
    return [x.grad_array for x in leaves]


def check(case):
    leaves, inputs, output = run(case)
    for x in inputs:
        if isinstance(x, Tensor) and x is not output and np.may_share_memory(x.data, output.data):
            assert is_view(output) and output.stamp is x.stamp
    expected = gradients(leaves, output)
    for i in range(len(inputs) + 1):
        leaves, inputs, output = run(case)
        changed = (*inputs, output)[i]
        if not isinstance(changed, Tensor) or not changed.data.flags.writeable:
            continue
        with no_grad():
            changed.copy_(changed == 0)
        try:
            found = gradients(leaves, output)
        except AutogradError as error:
            assert "changed in place since" in str(error)
            continue
        for gradient, wanted in zip(found, expected, strict=True):
            assert (gradient is None) == (wanted is None)
            if wanted is not None:
                assert_close(gradient, wanted, what=f"{case.id}, change {i}")


@pytest.mark.parametrize("op", BY_OP)
def test_a_change_is_noticed_or_does_not_matter(op):
    """norm, std and logsumexp saved an array on the memory of their output, whose change nobody noticed."""
    for case in BY_OP[op][:2]:
        check(case)
