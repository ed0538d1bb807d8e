"""An affine layer and an activation that run as one: in a Sequential, on a GPU, where nobody hears of one of them."""

import numpy as np
import pytest

import minigrad
from minigrad import nn
from minigrad.autograd.tape import Node
from minigrad.errors import AutogradError, ShapeError
from minigrad.testing import assert_close
from tests.strict_cupy import counted

ACTIVATIONS = [nn.ReLU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.GELU, lambda: nn.GELU("tanh"), lambda: nn.ReLU(inplace=True)]
IDS = ["relu", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh", "inplace"]


class Own(nn.ReLU):
    """A class of a user's, of which nothing is known."""


def pair(device, activation=nn.ReLU, **options):
    minigrad.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 3, **options), activation()).to(device)


def steps(net, x):
    """The operations behind the output, the last first."""
    node, names = net(x).node, []
    while isinstance(node, Node):
        names.append(node.backward.__name__)
        node = node.inputs[0]
    return names


def gradients(net, x, grad, function):
    net.zero_grad()
    x.grad = None
    y = function(x)
    y.backward(grad)
    return [y, x.grad, *(parameter.grad for parameter in net.parameters() if parameter.grad is not None)]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=IDS)
@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 5), (5,), (0, 5), (2100, 5)], ids=str)
def test_it_gives_what_both_give(cuda, activation, shape):
    net = pair(cuda, activation)
    x = minigrad.randn(*shape, device=cuda).requires_grad_()
    grad = minigrad.randn(*shape[:-1], 3, device=cuda)
    assert steps(net, x) == ["_linear_activation_backward"]
    joined = gradients(net, x, grad, net)
    alone = gradients(net, x, grad, lambda x: net[1](net[0](x)))
    for one, other in zip(joined, alone):
        assert_close(one, other)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=IDS)
def test_a_product_one_kernel_and_one_back(cuda, activation):
    net, x = pair(cuda, activation), minigrad.randn(4, 5, device=cuda)
    grad = minigrad.ones(4, 3, device=cuda)
    with counted() as work:
        net(x).backward(grad)
    assert work.pieces == {"gemm": 2, "bias_forward_f32": 1, "bias_backward_f32": 1}


def test_on_a_cpu_they_stay_two():
    net, x = pair("cpu"), minigrad.randn(4, 5).requires_grad_()
    assert steps(net, x) == ["_relu_backward", "_linear_backward"]
    assert np.array_equal(net(x).detach().numpy(), net[1](net[0](x)).detach().numpy())


def hook(net):
    net[1].register_forward_hook(lambda *_: None)


def pre_hook(net):
    net[0].register_forward_pre_hook(lambda *_: None)


def backward_hook(net):
    net[0].register_full_backward_hook(lambda *_: None)


def replaced(net):
    net[0].forward = net[0].forward


@pytest.mark.parametrize("listen", [hook, pre_hook, backward_hook, replaced])
def test_who_is_heard_runs_alone(cuda, listen):
    net = pair(cuda)
    listen(net)
    assert "_linear_activation_backward" not in steps(net, minigrad.randn(4, 5, device=cuda))


def test_two_that_write_into_their_input_go_backward_as_on_a_cpu(cuda):
    def three(place):
        return nn.Sequential(*pair(place, lambda: nn.ReLU(inplace=True)), nn.SiLU(inplace=True))

    nets = [three("cpu"), three(cuda)]
    for net in nets:
        net(minigrad.ones(4, 5, device=net[0].weight.device)).sum().backward()
    assert_close(nets[1][0].weight.grad, nets[0][0].weight.grad)


@pytest.mark.parametrize("kind", [nn.Linear, nn.ReLU])
def test_a_forward_that_was_replaced_for_all_of_a_class_runs(cuda, monkeypatch, kind):
    net = pair(cuda)
    monkeypatch.setattr(kind, "forward", lambda module, x: x[:, :3] * 0 + 7.0)
    assert net(minigrad.ones(2, 5, device=cuda)).tolist() == [[7.0] * 3] * 2


def test_a_hook_sees_the_output_of_its_module(cuda):
    net, seen = pair(cuda), []
    x = minigrad.randn(4, 5, device=cuda)
    handle = net[0].register_forward_hook(lambda module, args, output: seen.append(output))
    y = net(x)
    assert_close(seen[0], net[0](x))
    handle.remove()
    assert_close(net(x), y)
    assert steps(net, x) == ["_linear_activation_backward"]


@pytest.mark.parametrize("net", [pair("cpu", Own), pair("cpu", nn.LeakyReLU), pair("cpu", bias=False)])
def test_what_is_not_joined(cuda, net):
    assert steps(net.to(cuda), minigrad.randn(4, 5, device=cuda))[-1] == "_linear_backward"


def test_frozen_parts_get_nothing(cuda):
    net, x = pair(cuda), minigrad.randn(4, 5, device=cuda)
    net[0].bias.requires_grad_(False)
    net(x).sum().backward()
    assert net[0].bias.grad is None and net[0].weight.grad is not None
    net.requires_grad_(False)
    assert not net(x).requires_grad


def test_errors_are_those_of_the_layer(cuda):
    with pytest.raises(ShapeError, match="linear: expected x"):
        pair(cuda)(minigrad.ones(4, 6, device=cuda))
    y = pair(cuda)(minigrad.ones(4, 5, device=cuda))
    y += 1.0
    with pytest.raises(AutogradError, match="saved data changed|changed in place"):
        y.sum().backward()


def test_in_half_precision(cuda):
    net, x = pair(cuda, nn.GELU), minigrad.randn(4, 5, device=cuda)
    with minigrad.autocast("bfloat16"):
        y = net(x)
    assert y.dtype.name == "bfloat16"
    y.sum().backward()
    assert net[0].weight.grad.dtype.name == "float32"
    with minigrad.autocast("bfloat16"):
        assert_close(y, net[1](net[0](x)))
