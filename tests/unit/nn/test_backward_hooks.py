"""register_full_backward_hook: what PyTorch gives such a hook, and what becomes of what it returns."""

import copy

import pytest

import minigrad as torch
from minigrad import nn
from minigrad.errors import ArgumentError, DtypeError
from minigrad.utils.checkpoint import checkpoint


class Two(nn.Module):
    """Two inputs, a number, and two outputs."""

    def forward(self, a, b, k):
        return a * b * k, a + b


def leaf(*values):
    return torch.tensor([list(values)], requires_grad=True)


def lists(grads):
    return tuple(None if grad is None else grad.tolist()[0] for grad in grads)


def test_it_gets_the_gradients_of_arguments_and_outputs():
    module, heard, a = Two(), [], leaf(1.0, 2.0)
    b = torch.tensor([[3.0, 4.0]])
    handle = module.register_full_backward_hook(lambda *told: heard.append((told[0], *map(lists, told[1:]))))
    for way in (module, lambda *args: checkpoint(module, *args)):
        product, total = way(a, b, 2)
        product.sum().backward()
        assert heard.pop() == (module, ([6.0, 8.0], None, None), ([1.0, 1.0], None))
        product, total = way(a, b, 2)
        (product + total).sum().backward()
        assert heard.pop() == (module, ([7.0, 9.0], None, None), ([1.0, 1.0], [1.0, 1.0]))
    assert not module(b, b, 2)[0].requires_grad and module(b, b, 2)[0].tolist() == [[18.0, 32.0]]
    handle.remove()
    module(a, b, 2)[0].sum().backward()
    assert heard == []


def test_hooks_come_in_order_and_what_they_return_goes_on():
    layer, heard, x = nn.Linear(2, 1, bias=False), [], leaf(1.0, 2.0)
    nn.init.constant_(layer.weight, 2.0)
    layer.register_full_backward_hook(lambda layer, inputs, outputs: heard.append(lists(inputs)) or (inputs[0] * 10,))
    layer.register_full_backward_hook(lambda layer, inputs, outputs: heard.append(lists(inputs)) or inputs[0] + 1)
    layer(x).sum().backward()
    assert heard == [([2.0, 2.0],), ([20.0, 20.0],)] and x.grad.tolist() == [[21.0, 21.0]]
    heard.clear()
    copy.deepcopy(layer)(x).sum().backward()
    assert heard == [([2.0, 2.0],), ([20.0, 20.0],)]
    layer.register_full_backward_hook(lambda layer, inputs, outputs: (None, None))
    with pytest.raises(ArgumentError, match="a gradient for each of 1 arguments, got 2 from the hook"):
        layer(x).sum().backward()


def test_the_modules_of_a_network_in_order():
    net, order = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)), []
    for name, module in net.named_modules():
        module.register_full_backward_hook(lambda module, inputs, outputs, name=name: order.append(name))
    net(leaf(1.0, 2.0)).sum().backward()
    assert order == ["2", "1", "0", ""]


def test_what_is_refused():
    class Mapping(nn.Module):
        def forward(self, x):
            return {"x": x}

    with pytest.raises(DtypeError, match="expected a function, got int"):
        nn.ReLU().register_full_backward_hook(1)
    module = Mapping()
    module.register_full_backward_hook(print)
    with pytest.raises(DtypeError, match="a tensor, or a tuple or list of them, got dict"):
        module(leaf(1.0))
