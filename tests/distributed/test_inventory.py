"""What a wrapped module holds: any change of its parameters is noticed, and buffers are those that there are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minigrad
from minigrad.distributed import DDP, SoloCommunicator
from minigrad.nn.inventory import Inventory
from minigrad.errors import LayoutError
from minigrad.nn.module import Module
from minigrad.nn.parameter import Buffer, Parameter
from tests.distributed.models import Mlp, data

PATHS = st.sampled_from(["", "left", "right", "left.inner"])
NAMES = st.sampled_from(["a", "b", "c"])
CHANGES = {
    "parameter": lambda module, name: setattr(module, name, Parameter(np.zeros(1))),
    "buffer": lambda module, name: setattr(module, name, Buffer(np.zeros(1))),
    "module": lambda module, name: setattr(module, name, tree(1)),
    "nothing": lambda module, name: setattr(module, name, None),
    "delete": lambda module, name: delattr(module, name) if hasattr(module, name) else None,
}


def tree(depth):
    """A module with two parameters and a buffer, and as deep a tree of such modules below it."""
    module = Module()
    module.a, module.b, module.c = Parameter(np.zeros(1)), Buffer(np.zeros(1)), Parameter(np.zeros(1))
    if depth > 1:
        module.left, module.right = tree(depth - 1), tree(1)
    if depth > 2:
        module.left.inner = module.left.left
    return module


def parameters(module):
    return [(name, id(param)) for name, param in module.named_parameters()]


@given(st.lists(st.tuples(PATHS, NAMES, st.sampled_from(sorted(CHANGES))), max_size=4))
def test_what_is_refused_is_what_changes_the_named_parameters(changes):
    module = tree(3)
    inventory, wrapped = Inventory(module), parameters(module)
    kept = []  # so that no id is given twice
    for path, name, change in changes:
        holder = module.get_submodule(path)
        kept += list(module.parameters())
        CHANGES[change](holder, name)
        assert [*map(id, inventory.buffers())] == [*map(id, module.buffers())]
        if parameters(module) == wrapped:
            inventory.check("DDP", module)
        else:
            with pytest.raises(LayoutError, match="DDP: expected the parameters that were wrapped, got others at "):
                inventory.check("DDP", module)


@pytest.mark.parametrize("holder, name", [("left", "b"), ("right", "c")])
def test_a_parameter_that_gets_another_name_is_noticed(holder, name):
    """The same objects in the same order: it moves to another module, or is renamed."""
    module = Module()
    module.left, module.right = Module(), Module()
    module.left.a, module.right.b = Parameter(np.zeros(1)), Parameter(np.zeros(1))
    inventory = Inventory(module)
    param = module.right.b
    del module.right.b
    setattr(module.get_submodule(holder), name, param)
    with pytest.raises(LayoutError, match=f"got others at {', '.join(sorted([f'{holder}.{name}', 'right.b']))}:"):
        inventory.check("DDP", module)


def test_another_order_is_noticed():
    module = tree(1)
    inventory, first = Inventory(module), module.a
    del module.a
    module.a = first
    with pytest.raises(LayoutError, match="got them in another order:"):
        inventory.check("DDP", module)


def test_a_parameter_that_is_replaced_between_forward_and_backward_is_noticed_later():
    ddp = DDP(Mlp(0), SoloCommunicator())
    x = minigrad.Tensor(data(2, 0)[0])
    loss = ddp(x).sum()
    ddp.module.w2 = Parameter(np.zeros((2, 5)))
    loss.backward()
    for _ in range(2):
        with pytest.raises(LayoutError, match="got others at w2"):
            ddp(x)


def test_a_module_that_takes_the_place_of_the_wrapped_one_is_noticed():
    ddp = DDP(Mlp(0), SoloCommunicator())
    ddp.module = Mlp(0)
    with pytest.raises(LayoutError, match="got others at b1, w1, w2:"):
        ddp(minigrad.Tensor(data(2, 0)[0]))


def test_a_module_of_the_same_parameters_may_take_its_place():
    """Its buffers are then those that are kept alike."""
    module, other = tree(1), tree(1)
    inventory = Inventory(module)
    other.a, other.c = module.a, module.c
    inventory.check("DDP", other)
    assert [*map(id, inventory.buffers())] == [id(other.b)]


def test_parameters_are_noticed_in_a_registry_that_is_new_itself():
    module = tree(2)
    inventory = Inventory(module)
    module.left._parameters = {"a": Parameter(np.zeros(1)), "c": module.left.c}
    with pytest.raises(LayoutError, match="got others at left.a:"):
        inventory.check("DDP", module)
