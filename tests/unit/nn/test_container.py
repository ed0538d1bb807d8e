"""Sequential, ModuleList, ModuleDict: lists and dicts whose modules are registered."""

from collections import OrderedDict

import numpy as np
import pytest

from minigrad import Tensor, ones
from minigrad.errors import ArgumentError, DtypeError, IndexRangeError
from minigrad.nn import Identity, Linear, ModuleDict, ModuleList, Parameter, ParameterDict, ParameterList, Sequential
from minigrad.testing import assert_close
from tests.unit.nn.nets import Scale

KINDS = [lambda *modules: Sequential(*modules), lambda *modules: ModuleList(modules)]


def numbered(container):
    return [name for name, _ in container.named_children()]


def test_sequential_runs_in_order():
    x = Tensor(np.ones((2, 3), np.float32))
    first, second = Linear(3, 4), Linear(4, 2)
    assert_close(Sequential(first, second)(x), second(first(x)))
    assert Sequential()(x) is x


@pytest.mark.parametrize("make", [OrderedDict, dict])
def test_sequential_with_names(make):
    net = Sequential(make([("in", Linear(3, 4)), ("out", Linear(4, 2))]))
    assert list(net.state_dict()) == ["in.weight", "in.bias", "out.weight", "out.bias"]
    assert net.out is net[1] and numbered(net[1:]) == ["out"]
    net.append(Identity())
    assert numbered(net) == ["in", "out", "2"]


@pytest.mark.parametrize("make", KINDS, ids=["Sequential", "ModuleList"])
def test_a_list_of_modules(make):
    a, b, c, d = (Scale() for _ in range(4))
    held = make(a, b)
    assert len(held) == 2 and list(held) == [a, b] and held[0] is a and held[-1] is b
    assert held.append(c) is held and held[2] is c
    held.insert(1, d)
    assert list(held) == [a, d, b, c] and numbered(held) == ["0", "1", "2", "3"]
    del held[1]
    assert list(held) == [a, b, c] and numbered(held) == ["0", "1", "2"]
    held[-1] = d
    assert list(held) == [a, b, d] and numbered(held) == ["0", "1", "2"]
    part = held[1:]
    assert type(part) is type(held) and list(part) == [b, d]
    del held[:2]
    assert list(held) == [d] and numbered(held) == ["0"]
    assert held.extend([a, b]) is held and list(held) == [d, a, b]
    assert [name for name, _ in held.named_parameters()] == ["0.weight", "1.weight", "2.weight"]


def test_a_slice_of_sequential_keeps_names_and_shares_modules():
    net = Sequential(Scale(), Scale(), Scale())
    part = net[1:]
    assert numbered(part) == ["1", "2"] and part[0] is net[1]
    assert numbered(ModuleList(net)[1:]) == ["0", "1"]


def test_one_module_twice_is_run_twice():
    scale = Scale()
    with_twice = Sequential(scale, scale)
    scale.weight.data[...] = 2.0
    assert_close(with_twice(Tensor(np.ones(3, np.float32))), np.full(3, 4.0, np.float32))
    assert len(list(with_twice.parameters())) == 1 and len(with_twice) == 2


@pytest.mark.parametrize("make", KINDS, ids=["Sequential", "ModuleList"])
def test_wrong_members_and_indexes(make):
    held = make(Scale())
    for index in (1, -2, "0", 0.0):
        with pytest.raises(IndexRangeError, match=r"expected an index in \[-1, 1\), got"):
            held[index]
    with pytest.raises(DtypeError, match="expected a Module, got int"):
        held.append(3)
    with pytest.raises(DtypeError, match="expected a Module, got Tensor"):
        held.insert(0, Tensor(np.ones(1)))
    with pytest.raises(DtypeError, match="expected a Module, got function"):
        make(lambda x: x)
    with pytest.raises(DtypeError, match="expected a Module or None for '0', got int"):
        held[0] = 3


def test_module_dict():
    a, b = Scale(), Scale()
    held = ModuleDict({"a": a})
    held["b"] = b
    assert held["a"] is a and len(held) == 2 and "b" in held and "c" not in held
    assert list(held) == list(held.keys()) == ["a", "b"] and list(held.values()) == [a, b]
    assert list(held.items()) == [("a", a), ("b", b)]
    assert [name for name, _ in held.named_parameters()] == ["a.weight", "b.weight"]
    held["a"] = b
    assert list(held.values()) == [b, b]
    del held["a"]
    assert list(held) == ["b"]
    with pytest.raises(ArgumentError, match=r"ModuleDict: expected one of \['b'\], got 'a'"):
        held["a"]
    with pytest.raises(ArgumentError, match="got 'a'"):
        del held["a"]
    with pytest.raises(DtypeError, match="expected a Module for 'c', got NoneType"):
        held["c"] = None
    with pytest.raises(ArgumentError, match="got 'keys', which the class defines"):
        held["keys"] = a


def test_a_list_of_parameters():
    first, second = Parameter(ones(2)), Parameter(ones(3), requires_grad=False)
    held = ParameterList([first, second])
    assert len(held) == 2 and list(held) == [first, second] and held[-1] is second
    raw = ones(1)
    assert held.append(raw) is held and isinstance(held[2], Parameter) and held[2].data is raw.data
    held += [ones(2, 2)]
    assert list(held.state_dict()) == ["0", "1", "2", "3"] and len(list(held.parameters())) == 4
    held[0] = ones(4)
    assert held[0].shape == (4,) and [name for name, _ in held.named_parameters()] == ["0", "1", "2", "3"]
    part = held[1:3]
    assert type(part) is ParameterList and part[0] is second and list(part.state_dict()) == ["0", "1"]
    net = Sequential(Linear(1, 1))
    net.weights = held
    assert "weights.3" in net.state_dict()
    assert repr(ParameterList([first, raw])) == "ParameterList((0): float32 (2,), (1): float32 (1,))"
    with pytest.raises(IndexRangeError, match=r"ParameterList: expected an index in \[-4, 4\), got 4"):
        held[4]


def test_a_dict_of_parameters():
    first = Parameter(ones(2))
    held = ParameterDict({"a": first})
    held["b"] = ones(3)
    held.update({"a": ones(4), "c": ones(1)})
    assert list(held) == ["a", "b", "c"] and len(held) == 3 and "b" in held and held["a"].shape == (4,)
    assert list(held.state_dict()) == ["a", "b", "c"] and all(p.requires_grad for p in held.values())
    del held["b"]
    assert [name for name, _ in held.items()] == ["a", "c"] == list(held.keys())
    assert repr(held) == "ParameterDict((a): float32 (4,), (c): float32 (1,))"


def test_containers_are_added_and_taken_from_as_in_pytorch():
    first, second, third = Linear(1, 1), Linear(1, 2), Linear(2, 1)
    held = ModuleList([first]) + [second]
    held += [third]
    assert list(held) == [first, second, third] and held.pop(0) is first and list(held) == [second, third]
    net = Sequential(first) + Sequential(second)
    assert list(net.insert(1, third)) == [first, third, second] and net.pop(-1) is second and len(net) == 2
    named = ModuleDict([("a", first), ("b", second)])
    assert named.pop("a") is first and named.get("a") is None and named.get("b") is second
    named.clear()
    assert len(named) == 0 and not list(named.parameters())


def test_a_dict_of_parameters_is_numbered_by_sorted_names_as_in_pytorch():
    pairs = [("b", ones(1)), ("a", ones(2))]
    assert list(ParameterDict(dict(pairs))) == ["a", "b"]
    assert list(ParameterDict(OrderedDict(pairs))) == list(ParameterDict(pairs)) == ["b", "a"]
    assert list(ParameterDict(ParameterDict(pairs))) == ["b", "a"]
