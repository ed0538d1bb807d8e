"""autograd.Function: as PyTorch users type it, and what is refused in it."""

import gc
import weakref

import numpy as np
import pytest

import minigrad as torch
from minigrad.autograd.function import Function, once_differentiable
from minigrad.errors import AutogradError, CallError, DtypeError, ShapeError
from minigrad.testing import gradcheck

RNG = np.random.default_rng(0)


class Exp(Function):
    """Saves its output."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y


class Mul(Function):
    """Saves its inputs, keeps a number, and looks at needs_input_grad."""

    @staticmethod
    def forward(ctx, a, b, factor, unused=None):
        ctx.save_for_backward(a, b)
        ctx.factor = factor
        return a * b * factor

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        da = grad * b * ctx.factor if ctx.needs_input_grad[0] else None
        db = grad * a * ctx.factor if ctx.needs_input_grad[1] else None
        return da, db, None, None


class Several(Function):
    """Several outputs, one of which has no gradient, by setup_context, on arrays."""

    @staticmethod
    def forward(x, y, scale=2.0):
        return x * scale, y.data * x.data, x.argmax(), y.exp(), 7

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, ctx.scale = inputs
        ctx.save_for_backward(x, y)
        ctx.mark_non_differentiable(output[3])

    @staticmethod
    def backward(ctx, first, second, third, fourth, fifth):
        x, y = ctx.saved_tensors
        assert third.dtype == np.int64 and not fourth.data.any() and fifth is None
        return first * ctx.scale + second * y, second.data * x.data, None


def leaf(*values, dtype="float64"):
    return torch.tensor(list(values), dtype=dtype, requires_grad=True)


def test_as_pytorch_users_type_it():
    gradcheck(Exp.apply, [RNG.normal(size=(2, 3))])
    gradcheck(lambda a, b: Mul.apply(a, b, 3.0), [RNG.normal(size=4), RNG.normal(size=4)])
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    assert torch.autograd.gradcheck(Mul.apply, (a, b, 3.0), eps=1e-6, atol=1e-4, rtol=1e-3)
    Mul.apply(a, b.detach(), 2.0, "unused").sum().backward()
    assert a.grad.tolist() == [6.0, 8.0] and b.grad is None
    assert Mul.apply(a, b, factor=1.0).tolist() == [3.0, 8.0]


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_several_outputs_are_one_call_of_backward(used):
    gradcheck(lambda x, y: sum(Several.apply(x, y)[i].square().sum() for i in used), [RNG.normal(size=3)] * 2)
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    first, second, third, fourth, fifth = Several.apply(x, y, scale=5.0)
    assert (first.requires_grad, third.requires_grad, fourth.requires_grad, fifth) == (True, False, False, 7)
    heard = []
    second.register_hook(heard.append)
    (first + second).sum().backward(on_leaf=heard.append)
    assert heard[0].tolist() == [1.0, 1.0] and {id(heard[1]), id(heard[2])} == {id(x), id(y)} and len(heard) == 3
    assert x.grad.tolist() == [8.0, 9.0] and y.grad.tolist() == [1.0, 2.0]


def test_unused_outputs_come_as_zeros_or_none():
    seen = []

    class Split(Function):
        @staticmethod
        def forward(ctx, x, materialize):
            ctx.set_materialize_grads(materialize)
            return x + 1, x + 2

        @staticmethod
        def backward(ctx, first, second):
            seen.append(first)
            return second, None

    x = leaf(1.0, 2.0)
    for materialize in (True, False):
        Split.apply(x, materialize)[1].sum().backward()
    assert seen[0].tolist() == [0.0, 0.0] and seen[1] is None


def test_a_parameter_given_twice_is_complete_once():
    x, heard = leaf(3.0), []
    Mul.apply(x, x, 1.0).sum().backward(on_leaf=heard.append)
    assert heard == [x] and x.grad.tolist() == [6.0]


def test_nothing_is_recorded_where_nothing_requires_grad():
    assert not Exp.apply(leaf(1.0).detach()).requires_grad
    with torch.no_grad():
        assert not Exp.apply(leaf(1.0)).requires_grad


def test_an_input_that_is_returned_is_a_view():
    class Reverse(Function):
        @staticmethod
        def forward(ctx, x, by_array):
            return x.data if by_array else x

        @staticmethod
        def backward(ctx, grad):
            return -grad, None

    for by_array in (False, True):
        x = leaf(1.0)
        y = Reverse.apply(x, by_array)
        y.sum().backward()
        assert x.grad.tolist() == [-1.0] and y is not x
        saved = x * x
        with torch.no_grad():
            y.mul_(2)
        with pytest.raises(AutogradError, match="changed in place"):
            saved.backward()
        base = x * 1
        y = Reverse.apply(base, by_array)
        base.mul_(2)
        with pytest.raises(AutogradError, match="take the view again"):
            y * 1


def test_what_was_saved_may_not_change_and_leaves_no_cycle():
    x = leaf(1.0, 2.0)
    y = Exp.apply(x)
    y *= 2
    with pytest.raises(AutogradError, match="the data that Exp saved, got data changed in place"):
        y.sum().backward()
    y = Exp.apply(x)
    memory = weakref.ref(y.node.saved[1])
    gc.disable()
    try:
        del y
        assert memory() is None
    finally:
        gc.enable()


def test_a_second_backward():
    y = Exp.apply(leaf(1.0))
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(AutogradError, match="an earlier backward"):
        y.backward()


def wrong(forward=lambda ctx, x, k: x * 2, backward=lambda ctx, grad: (grad, None)):
    """A Function of these, by the name Wrong."""
    return type("Wrong", (Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


def put(ctx, x, k):
    x.mul_(2)
    return x


def wrote(ctx, grad):
    grad.mul_(2)
    return grad, None


IN_BACKWARD = {
    r"Wrong.backward: expected 2 gradients, one for each argument of forward, got 1": lambda ctx, grad: grad,
    r"Wrong.backward: expected 2 gradients.*got 3": lambda ctx, grad: (grad, None, grad),
    r"Wrong.backward: expected None for argument 1, which is no tensor": lambda ctx, grad: (grad, grad),
    r"Wrong.backward: expected a gradient of shape \(2,\) for argument 0, got \(\)": lambda ctx, g: (g.sum(), None),
    r"Wrong.backward: expected a gradient of float64 for .* 0, got float32": lambda ctx, grad: (grad.float(), None),
    r"Wrong.backward: expected a gradient that is a tensor for argument 0, got int": lambda ctx, grad: (1, None),
    r"mul_: expected memory that may be written": wrote,
    r"Wrong: expected tensors for save_for_backward, got int": lambda ctx, grad: ctx.save_for_backward(1),
}


@pytest.mark.parametrize("message", IN_BACKWARD)
def test_a_backward_that_is_wrong(message):
    with pytest.raises((AutogradError, ShapeError, DtypeError), match=message):
        wrong(backward=IN_BACKWARD[message]).apply(leaf(1.0, 2.0), 3).sum().backward()


IN_FORWARD = {
    r"Wrong.forward: expected inputs that require grad to stay as they are": lambda: wrong(put).apply(leaf(1.0) * 1, 3),
    r"Wrong.forward: .* require grad to stay": lambda: wrong(lambda c, x, k: c.mark_dirty(x)).apply(leaf(1.0), 3),
    r"Wrong.forward: expected a tensor or a tuple of them, got list": lambda: wrong(lambda c, x, k: [x]).apply(1, 2),
    r"Wrong.apply: expected each tensor .* got one inside argument 1, a list": lambda: wrong().apply(1, [leaf(1.0)]),
    r"Wrong.apply: expected what forward.*unexpected keyword": lambda: wrong().apply(leaf(1.0), 1, q=2),
    r"Wrong: expected a call of Wrong.apply": lambda: wrong()(leaf(1.0)),
    r"Function: expected a static forward": lambda: Function.apply(leaf(1.0)),
}


@pytest.mark.parametrize("message", IN_FORWARD)
def test_a_call_that_is_wrong(message):
    with pytest.raises((AutogradError, DtypeError, CallError), match=message):
        IN_FORWARD[message]()


def test_saved_tensors_are_read_in_backward_alone():
    kept = []

    class Keeps(Exp):
        @staticmethod
        def forward(ctx, x):
            kept.append(ctx)
            return Exp.forward(ctx, x)

    y = Keeps.apply(leaf(1.0))
    for _ in range(2):
        with pytest.raises(AutogradError, match="Keeps: expected saved_tensors to be read inside backward"):
            kept[0].saved_tensors
        y.backward(retain_graph=True)


def test_on_a_gpu(cuda):
    x = torch.tensor([1.0, 2.0], requires_grad=True, device=cuda)
    Exp.apply(x).sum().backward()
    first, second, *_ = Several.apply(x, x)
    (first * second).sum().backward()
    with pytest.raises(AutogradError, match="Wrong.backward: expected the gradient that it was lent to stay"):
        wrong(backward=wrote).apply(x, 3).sum().backward()
    assert x.grad.device == x.device
    np.testing.assert_allclose(x.grad.cpu().numpy(), np.exp([1, 2]) + 6 * np.array([1, 4]), rtol=1e-6)


def test_a_gradient_stays_on_the_device_of_its_input(cuda):
    """The backward of an output on another device, of which that is the current one."""

    class Cross(Function):
        @staticmethod
        def forward(ctx, x):
            return x.to(cuda)

        @staticmethod
        def backward(ctx, grad):
            return grad.to("cuda:0")

    x = torch.ones(2, device="cuda:0", requires_grad=True)
    for times in (1, 2):
        Cross.apply(x).sum().backward()
        assert x.grad.device == x.device and x.grad.cpu().tolist() == [times] * 2


class Doubling(Function):
    """Of which backward writes into what it was lent."""

    @staticmethod
    def forward(ctx, x):
        return x.sum()

    @staticmethod
    def backward(ctx, grad):
        grad.data *= 2.0
        return grad.expand(3)


def test_who_writes_into_the_gradient_of_a_loss_on_a_gpu_spoils_no_other(cuda):
    """The 1 that backward starts from is kept for all losses."""
    for function, expected in ((Doubling.apply, 2.0), (torch.sum, 1.0)):
        x = torch.ones(3, device=cuda).requires_grad_()
        function(x).backward()
        assert x.grad.tolist() == [expected] * 3
