"""state_dict and load_state_dict: complete, in place, and all or nothing."""

import numpy as np
import pytest

from minigrad import Tensor, no_grad
from minigrad.errors import ArgumentError, AutogradError, StateDictError
from minigrad.nn import Linear, Sequential
from minigrad.nn.flat import flatten
from minigrad.testing import assert_close
from tests.unit.nn.nets import Scale, Tied


def net():
    return Sequential(Scale(), Linear(3, 2))


def values(module):
    return {name: x.data.copy() for name, x in module.state_dict().items()}


def test_state_dict_is_a_view():
    module = Scale()
    state = module.state_dict()
    with no_grad():
        module.weight.fill_(5.0)
    assert_close(state["weight"], np.full(3, 5.0, np.float32))
    assert not state["weight"].requires_grad
    x = Tensor(np.ones(3, np.float32), requires_grad=True)
    y = module(x)
    state["weight"].fill_(1.0)
    with pytest.raises(AutogradError, match="changed in place"):
        y.backward(Tensor(np.ones(3, np.float32)))


def test_load_copies_in_place():
    source, target = net(), net()
    [buffer] = flatten(target.parameters())
    memory = [param.data for param in target.parameters()]
    assert target.load_state_dict(source.state_dict()) == ([], [])
    assert [param.data is data for param, data in zip(target.parameters(), memory)] == [True] * 3
    buffer.check()
    for name, value in values(source).items():
        assert_close(target.state_dict()[name], value, tolerance=0)
    with no_grad():
        source[1].weight.fill_(3.0)
    assert not (target[1].weight.data == 3.0).any()


def test_load_takes_arrays_and_is_noticed_by_a_graph():
    module = Linear(3, 2)
    loss = module(Tensor(np.ones((1, 3), np.float32), requires_grad=True))
    module.load_state_dict(values(module))
    with pytest.raises(AutogradError, match="changed in place"):
        loss.backward(Tensor(np.ones((1, 2), np.float32)))


def test_all_that_is_wrong_is_listed_and_nothing_changes():
    module = net()
    state = values(net())
    del state["0.count"]
    state["extra"] = np.ones(1)
    state["0.weight"] = state["0.weight"].astype(np.float64)
    state["1.weight"] = state["1.weight"].T
    state["1.bias"] = [0.0, 0.0]
    before = values(module)
    with pytest.raises(StateDictError) as caught:
        module.load_state_dict(state)
    assert str(caught.value) == (
        "Sequential.load_state_dict: expected the names, shapes and dtypes of the module, got:\n"
        "  missing 0.count\n"
        "  unexpected extra\n"
        "  0.weight: expected float32 (3,), got float64 (3,)\n"
        "  1.weight: expected float32 (2, 3), got float32 (3, 2)\n"
        "  1.bias: expected a tensor, got list"
    )
    assert all((before[name] == value).all() for name, value in values(module).items())


def test_not_strict_returns_the_difference_and_still_checks_shapes():
    module, state = net(), values(net())
    del state["0.count"], state["1.bias"]
    state["extra"] = np.ones(1)
    found = module.load_state_dict(state, strict=False)
    assert found.missing_keys == ["0.count", "1.bias"] and found.unexpected_keys == ["extra"]
    assert_close(module[1].weight, state["1.weight"], tolerance=0)
    with pytest.raises(StateDictError, match=r"0.weight: expected float32 \(3,\), got float32 \(4,\)"):
        module.load_state_dict({"0.weight": np.ones(4, np.float32)}, strict=False)


def test_a_shared_tensor_has_all_its_names():
    module = Tied()
    state = module.state_dict()
    assert list(state) == ["encoder.weight", "encoder.bias", "decoder.weight"]
    assert state["decoder.weight"].data is state["encoder.weight"].data
    other = Tied()
    other.load_state_dict(state)
    assert_close(other.decoder.weight, module.encoder.weight, tolerance=0)


@pytest.mark.parametrize(
    "changed, hint",
    [
        (lambda state: {f"module.{name}": x for name, x in state.items()}, "module. is in front of its names: load"),
        (lambda state: {"epoch": 3, "model_state_dict": state}, "state_dict['model_state_dict'] has such names: load"),
        (lambda state: {name.removeprefix("1."): x for name, x in state.items()}, None),
    ],
)
def test_what_to_load_instead_of_a_checkpoint_or_of_the_state_of_a_wrapper(changed, hint):
    module = net()
    with pytest.raises(StateDictError) as caught:
        module.load_state_dict(changed(module.state_dict()))
    last = str(caught.value).splitlines()[-1]
    assert last.startswith(f"  {hint}") if hint else " front " not in last
    with pytest.raises(StateDictError, match=r"\n  0. is not in front of its names: load \{'0\.' \+ n: x for"):
        Sequential(Linear(2, 3)).load_state_dict(Linear(2, 3).state_dict())


def test_values_are_never_taken_in_the_place_of_parameters():
    module = net()
    module.load_state_dict(module.state_dict(), True, False)
    with pytest.raises(ArgumentError, match=r"load_state_dict: expected assign=False, got True: values are copied"):
        module.load_state_dict(module.state_dict(), assign=True)
