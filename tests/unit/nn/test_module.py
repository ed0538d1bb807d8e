"""Module: what is registered, in which order, and what can be done with it."""

import copy

import numpy as np
import pytest

from minigrad import Tensor, no_grad
from minigrad.errors import ArgumentError, DeviceError, DtypeError, LayoutError
from minigrad.nn import Buffer, Linear, Module, Parameter, Sequential
from minigrad.nn.flat import flatten
from minigrad.testing import assert_close
from tests.unit.nn.nets import Scale, Tied


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def names(pairs):
    return [name for name, _ in pairs]


# -------------------------------------------------------------------------------------------------- registration


class Mixed(Module):
    def __init__(self):
        super().__init__()
        self.b = Parameter(ones(1))
        self.inner = Scale()
        self.buffer = Buffer(ones(1))
        self.a = Parameter(ones(2))
        self.nothing = None
        self.register_parameter("placeholder", None)
        self.plain = Tensor(ones(1))


def test_names_are_in_order_of_assignment_own_before_inner():
    net = Mixed()
    assert names(net.named_parameters()) == ["b", "a", "inner.weight"]
    assert names(net.named_parameters("net")) == ["net.b", "net.a", "net.inner.weight"]
    assert names(net.named_parameters(recurse=False)) == ["b", "a"]
    assert names(net.named_buffers()) == ["buffer", "inner.count", "inner.scratch"]
    assert names(net.named_modules()) == ["", "inner"]
    assert names(net.named_children()) == ["inner"]
    assert list(net.modules()) == [net, net.inner]
    assert list(net.children()) == [net.inner]
    assert [p.shape for p in net.parameters()] == [(1,), (2,), (3,)]
    assert [b.shape for b in net.buffers(recurse=False)] == [(1,)]
    assert list(net.state_dict()) == ["b", "a", "buffer", "inner.weight", "inner.count"]
    assert list(net.state_dict("net.")) == ["net.b", "net.a", "net.buffer", "net.inner.weight", "net.inner.count"]
    assert net.num_parameters() == 6


def test_a_registered_object_is_an_attribute():
    net = Mixed()
    assert net.inner.weight is net.get_parameter("inner.weight")
    assert net.inner is net.get_submodule("inner") and net.get_submodule("") is net
    assert net.inner.count is net.get_buffer("inner.count")
    assert net.placeholder is None


def test_replacing_keeps_the_place():
    net = Mixed()
    net.b = Parameter(ones(5))
    assert [p.shape for p in net.parameters()] == [(5,), (2,), (3,)]
    net.b = None
    assert net.b is None and names(net.named_parameters()) == ["a", "inner.weight"]
    net.b = Parameter(ones(4))
    assert [p.shape for p in net.parameters()] == [(4,), (2,), (3,)]


def test_deleting_forgets():
    net = Mixed()
    del net.b, net.inner, net.buffer, net.plain
    assert names(net.named_parameters()) == ["a"] and names(net.named_modules()) == [""]
    assert not hasattr(net, "b") and not list(net.buffers())
    with pytest.raises(AttributeError):
        del net.b
    net.b = Parameter(ones(1))
    assert names(net.named_parameters()) == ["a", "b"]


def test_a_name_has_one_kind():
    net = Mixed()
    net.b = Scale()
    assert names(net.named_parameters(recurse=False)) == ["a"] and names(net.named_children()) == ["inner", "b"]
    net.b = Buffer(ones(1))
    assert names(net.named_children()) == ["inner"] and "b" in net.state_dict()
    net.nothing = Parameter(ones(1))
    assert names(net.named_parameters(recurse=False)) == ["a", "nothing"]


def test_a_tensor_assigned_to_a_buffer_becomes_one():
    net = Scale()
    net.count = Tensor(np.array(3))
    net.scratch = Tensor(ones(4))
    assert isinstance(net.count, Buffer) and isinstance(net.scratch, Buffer)
    assert list(net.state_dict()) == ["weight", "count"]
    net.scratch = None
    net.scratch = Tensor(ones(4))
    assert list(net.state_dict()) == ["weight", "count"]
    net.scratch = Buffer(ones(4))
    assert list(net.state_dict()) == ["weight", "count", "scratch"]


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("b", Tensor(ones(1)), "Mixed: expected a Parameter or None for 'b', got Tensor"),
        ("inner", 3, "Mixed: expected a Module or None for 'inner', got int"),
        ("buffer", [1.0], "Mixed: expected a Tensor or None for 'buffer', got list"),
    ],
)
def test_a_registered_name_takes_only_its_kind(name, value, message):
    net = Mixed()
    with pytest.raises(DtypeError, match=message):
        setattr(net, name, value)
    assert len(list(net.parameters())) == 3


@pytest.mark.parametrize("name", ["", "a.b", 3], ids=repr)
def test_a_name_has_no_dots(name):
    net = Mixed()
    for register, value in [
        (net.register_parameter, Parameter(ones(1))),
        (net.register_buffer, Tensor(ones(1))),
        (net.add_module, Scale()),
    ]:
        with pytest.raises(ArgumentError, match="Mixed: expected a name without dots, got"):
            register(name, value)


@pytest.mark.parametrize("value", [Parameter(ones(1)), Buffer(ones(1)), Scale()], ids=lambda v: type(v).__name__)
def test_super_init_comes_first(value):
    class Early(Module):
        def __init__(self):
            self.plain = 1
            self.x = value
            super().__init__()

    with pytest.raises(ArgumentError, match=r"Early: expected super\(\).__init__\(\) to be called first, got 'x'"):
        Early()


def test_modules_are_a_tree():
    outer, inner = Module(), Module()
    outer.inner = inner
    for target, value in [(inner, outer), (outer, outer)]:
        with pytest.raises(ArgumentError, match="Module: expected a tree of modules, got 'loop'"):
            target.loop = value


def test_shared_ones_are_listed_once():
    net = Tied()
    net.again = net.encoder
    assert names(net.named_parameters()) == ["encoder.weight", "encoder.bias"]
    assert names(net.named_parameters(remove_duplicate=False)) == [
        "encoder.weight",
        "encoder.bias",
        "decoder.weight",
        "again.weight",
        "again.bias",
    ]
    assert names(net.named_modules()) == ["", "encoder", "decoder"]
    assert names(net.named_modules("net", remove_duplicate=False)) == [
        "net",
        "net.encoder",
        "net.decoder",
        "net.again",
    ]
    assert names(net.named_children()) == ["encoder", "decoder"]
    assert net.num_parameters() == 12


# --------------------------------------------------------------------------------------------------------- calls


def test_call_runs_forward():
    net = Scale()
    assert_close(net(Tensor(ones(2, 3)), offset=1.0), 2 * ones(2, 3))


def test_hooks_run_in_order_and_can_replace():
    net, calls = Scale(), []

    def noting(name, result=None):
        def hook(*args):
            calls.append((name, len(args)))
            return result

        return hook

    removes = [
        net.register_forward_pre_hook(noting("before 1", 2 * ones(3))),
        net.register_forward_pre_hook(noting("before 2")),
        net.register_forward_hook(noting("after 1", "replaced")),
        net.register_forward_hook(noting("after 2")),
    ]
    assert net(Tensor(ones(3))) == "replaced"
    assert calls == [("before 1", 2), ("before 2", 2), ("after 1", 3), ("after 2", 3)]
    removes[2]()
    assert_close(net(Tensor(ones(3))), 2 * ones(3))
    for remove in removes:
        remove()
    assert_close(net(Tensor(ones(3))), ones(3))
    assert len(calls) == 7


def test_a_pre_hook_sees_and_replaces_all_arguments():
    net, seen = Scale(), []
    net.register_forward_pre_hook(lambda module, args: (args[0] * 3.0, 1.0))
    net.register_forward_hook(lambda module, args, output: seen.append((module, args[1])))
    assert_close(net(Tensor(ones(3))), 4 * ones(3))
    assert seen == [(net, 1.0)]


def test_a_hook_may_remove_itself():
    net, calls = Scale(), []

    def once(module, args, output):
        calls.append(1)
        remove()

    remove = net.register_forward_hook(once)
    net.register_forward_hook(lambda *args: calls.append(2))
    net(Tensor(ones(3)))
    net(Tensor(ones(3)))
    assert calls == [1, 2, 2]


# --------------------------------------------------------------------------------------------------------- modes


def test_train_and_eval_reach_every_module():
    net = Sequential(Scale(), Sequential(Scale()))
    assert all(module.training for module in net.modules())
    assert net.eval() is net and not any(module.training for module in net.modules())
    assert net.train() is net and all(module.training for module in net.modules())
    net[1].train(False)
    assert net.training and not net[1][0].training


def test_a_module_that_overrides_train_is_asked():
    class Frozen(Scale):
        def train(self, mode=True):
            return super().train(False)

    assert not Sequential(Frozen()).train()[0].training


def test_apply_goes_from_the_leaves_to_the_root():
    net, seen = Sequential(Scale(), Sequential(Scale())), []
    assert net.apply(seen.append) is net
    assert seen == [net[0], net[1][0], net[1], net]


def test_requires_grad_and_zero_grad():
    net = Scale()
    assert net.requires_grad_(False) is net and not net.weight.requires_grad
    assert net.num_parameters(trainable_only=True) == 0
    net.requires_grad_()
    net.zero_grad()
    net.zero_grad(set_to_none=False)
    assert net.weight.grad is None
    net.weight.grad = Tensor(ones(3))
    held = net.weight.grad
    net.zero_grad(set_to_none=False)
    assert_close(held, 0 * ones(3))
    assert_close(net.weight.grad, 0 * ones(3))
    net.zero_grad()
    assert net.weight.grad is None


# -------------------------------------------------------------------------------------------------------- moving


def test_to_changes_the_dtype_of_floats_in_place():
    net = Scale()
    weight = net.weight
    weight.grad = Tensor(ones(3))
    assert net.double() is net and net.weight is weight
    assert weight.dtype == weight.grad.dtype == net.scratch.dtype == np.float64
    assert net.count.dtype == np.int64
    for change, name in [(net.half, "float16"), (net.bfloat16, "bfloat16"), (net.float, "float32")]:
        assert change().weight.dtype.name == name
    assert net.to("float64").weight.dtype == net.to(np.float64).weight.dtype == np.float64
    assert net.to("cpu", "float32").weight.dtype == net.to("cpu", dtype=float).weight.dtype == np.float32
    assert net.cpu() is net


def test_tied_parameters_stay_tied():
    net = Tied().double()
    assert net.decoder.weight is net.encoder.weight and net.encoder.weight.dtype == np.float64


def test_an_absent_device_moves_nothing():
    net = Scale()
    with pytest.raises(DeviceError, match="cuda:63"):
        net.to("cuda:63", "float64")
    assert net.weight.dtype == np.float32


def test_a_flat_layout_does_not_move():
    net = Sequential(Scale(), Scale())
    flatten(net[1].parameters())
    memory = net[0].weight.data
    with pytest.raises(LayoutError, match=r"Sequential.to: .* got 1.weight of float32 \(3,\) on cpu to move to f"):
        net.double()
    assert net[0].weight.data is memory
    assert net.to("cpu").float() is net, "what changes nothing is allowed"


def test_a_graph_notices_that_its_module_moved():
    net = Linear(3, 2)
    loss = net(Tensor(ones(4, 3), requires_grad=True))
    net.double()
    with pytest.raises(Exception, match="linear saved, got data changed"):
        loss.backward(Tensor(ones(4, 2)))


def test_moving_frees_from_what_viewed_the_old_memory():
    net = Scale()
    old = net.weight.detach()
    x = Tensor(ones(3), requires_grad=True)
    y = x * old
    net.double()
    with no_grad():
        net.weight.fill_(5.0)
    y.backward(Tensor(ones(3)))
    assert_close(x.grad, ones(3))


# ---------------------------------------------------------------------------------------------- copies and text


def test_deepcopy_is_independent():
    net = Sequential(Scale(), Scale())
    flatten(net.parameters())
    net[0].weight.grad = Tensor(ones(3))
    net.eval()
    twin = copy.deepcopy(net)
    assert twin.state_dict().keys() == net.state_dict().keys()
    assert twin[0].weight is twin.get_parameter("0.weight") and twin[0].weight is not net[0].weight
    assert twin[0].weight.flat is None and twin[0].weight.grad is None and not twin.training
    with no_grad():
        twin[0].weight.fill_(9.0)
    assert_close(net[0].weight, ones(3))
    [buffer] = flatten(twin.parameters())
    assert len(buffer.params) == 2
    assert list(twin[0].state_dict()) == ["weight", "count"], "the copied scratch is still not persistent"


def test_deepcopy_keeps_ties_and_hooks():
    net, seen = Tied(), []
    net.register_forward_hook(lambda module, args, output: seen.append(module))
    twin = copy.deepcopy(net)
    assert twin.decoder.weight is twin.encoder.weight is not net.encoder.weight
    twin(Tensor(ones(1, 3)))
    assert seen == [twin]


def test_repr_is_nested():
    net = Sequential(Scale(), Sequential(Linear(2, 3), Sequential()))
    assert repr(net) == (
        "Sequential(\n"
        "  (0): Scale()\n"
        "  (1): Sequential(\n"
        "    (0): Linear(in_features=2, out_features=3, bias=True)\n"
        "    (1): Sequential()\n"
        "  )\n"
        ")"
    )


# --------------------------------------------------------------------------------------------------- parameters


def test_parameter_takes_the_memory_of_a_tensor():
    x = Tensor(ones(3))
    param = Parameter(x)
    assert param.data is x.data and param.requires_grad and param.is_leaf
    y = Tensor(ones(3), requires_grad=True) * x
    with no_grad():
        param.fill_(2.0)
    with pytest.raises(Exception, match="changed in place"):
        y.backward(Tensor(ones(3)))


def test_parameter_of_integers_is_not_trained():
    with pytest.raises(DtypeError, match="requires_grad_: expected a float dtype, got int64"):
        Parameter(np.arange(3))
    assert not Parameter(np.arange(3), requires_grad=False).requires_grad
