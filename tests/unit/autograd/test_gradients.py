"""autograd.grad and autograd.backward: gradients that go into no `.grad`, and those of several tensors."""

import numpy as np
import pytest

import minigrad as torch
from minigrad.autograd import Function, backward, grad
from minigrad.errors import ArgumentError, AutogradError, DtypeError, ShapeError


class Nothing(Function):
    """Has no gradient for what it was computed from."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return None


def leaf(*values):
    return torch.tensor(list(values), requires_grad=True)


def lists(found):
    return [x if x is None else x.tolist() for x in found]


def test_no_grad_is_touched_and_nobody_hears_of_it():
    x, w, heard = leaf(1.0, 2.0), leaf(3.0, 4.0), []
    x.register_post_accumulate_grad_hook(heard.append)
    w.register_hook(heard.append)
    w.grad = torch.tensor([1.0, 1.0])
    h = x * w
    loss = (h * h).sum()
    assert lists(grad(loss, [h, x, h], retain_graph=True)) == [[6.0, 16.0], [18.0, 64.0], [6.0, 16.0]]
    assert lists(grad([loss, h], x, [None, torch.ones(2)], retain_graph=True)) == [[21.0, 68.0]]
    assert x.grad is None and w.grad.tolist() == [1.0, 1.0] and heard == []
    assert lists(grad(loss, loss, retain_graph=True)) == [1.0]
    loss.backward()
    assert x.grad.tolist() == [18.0, 64.0] and w.grad.tolist() == [7.0, 33.0] and len(heard) == 2


def test_hooks_between_and_of_the_inputs_are_called_once():
    x, heard = leaf(1.0, 2.0), []
    h = x * 3
    z = h * h
    for name, one in (("x", x), ("h", h), ("z", z)):
        one.register_hook(lambda g, name=name: (heard.append(name), g * 2)[1])
    loss = z.sum()
    assert lists(grad(loss, h, retain_graph=True)) == [[24.0, 48.0]] and heard == ["z", "h"]
    assert lists(grad(loss, [x, h], retain_graph=True)) == [[144.0, 288.0], [24.0, 48.0]]
    assert heard == ["z", "h", "z", "h", "x"]
    loss.backward()
    assert x.grad.tolist() == [144.0, 288.0]


def test_what_lies_elsewhere_is_not_walked():
    x, w = leaf(1.0), leaf(2.0)
    h = x * 1
    broken = (w * w) * w
    loss = h * 3 + broken
    with torch.no_grad():
        w.mul_(2)  # backward through broken would be refused
    assert lists(grad(loss, h, retain_graph=True)) == [[3.0]]
    with pytest.raises(AutogradError, match="changed in place"):
        grad(loss, w, retain_graph=True)
    with pytest.raises(AutogradError, match="changed in place"):
        loss.backward()


def test_unused_inputs():
    x, w = leaf(1.0), leaf(2.0)
    y = x * 2
    assert lists(grad(y, [x, w], allow_unused=True, retain_graph=True)) == [[2.0], None]
    assert lists(grad(y, [x, w], materialize_grads=True, retain_graph=True)) == [[2.0], [0.0]]
    with pytest.raises(AutogradError, match=r"got input 1 of shape \(1,\), on which none does: write allow_unused"):
        grad(y, [x, w])
    with pytest.raises(AutogradError, match="got input 0 of shape .*, on which none does"):
        grad(Nothing.apply(x), x)
    assert lists(grad(Nothing.apply(x), [x], allow_unused=True)) == [None]
    grad(y * 1, x)  # which frees y too
    with pytest.raises(AutogradError, match="freed"):
        grad(y, x, allow_unused=True)


def test_inside_a_backward_through_the_same_nodes():
    """What has come to them there is set aside."""
    x, found = leaf(2.0), []
    h = x * 3
    a, b = h * h, h * 5
    b.register_hook(lambda g: found.extend(lists(grad(a, x, retain_graph=True))))
    (a + b).backward()
    assert found == [[36.0]] and x.grad.tolist() == [51.0]


def test_inside_another_one_through_the_same_nodes():
    x, w, found = leaf(2.0), leaf(4.0), []
    h = x * w
    y = h * h * w

    def look(g):
        found.append(g)
        if len(found) == 1:
            found.extend(lists(grad(y, [x, w], retain_graph=True)))
            del found[:2]  # what the hook saw

    h.register_hook(look)
    assert lists(grad(y, x, retain_graph=True)) == [[2 * 2.0 * 4.0**3]] and found == [[256.0], [3 * 4.0 * 16.0]]


def test_an_error_leaves_all_as_it_was():
    x = leaf(2.0)
    h = x * 3
    y = h * h
    handle = h.register_hook(lambda g: 1 / 0)
    for inputs in (x, h, [x, h]):
        with pytest.raises(ZeroDivisionError):
            grad(y, inputs, retain_graph=True)
    handle.remove()
    assert lists(grad(y, [x, h], retain_graph=True)) == [[36.0], [12.0]]
    y.backward()
    assert x.grad.tolist() == [36.0]


def test_gradients_are_memory_of_their_own():
    a, b, seed = leaf(1.0), leaf(1.0), torch.ones(1)
    h, k = a * 1, b * 1
    found = grad(h + k, [a, b, h, k], seed)
    assert len({x.data.ctypes.data for x in (*found, seed)}) == 5


def test_backward_of_several_tensors_is_one():
    x, heard = leaf(1.0, 2.0), []
    x.register_post_accumulate_grad_hook(lambda p: heard.append(p.grad.tolist()))
    y = x * x
    backward([y.sum(), y, x], [None, torch.ones(2), torch.tensor([5.0, 5.0])])
    assert heard == [[9.0, 13.0]]
    with pytest.raises(AutogradError, match="freed"):
        y.backward(torch.ones(2))


REFUSED = {
    "create_graph=False": lambda x, y: grad(y, x, create_graph=True),
    "backward: expected create_graph=False": lambda x, y: backward(y, create_graph=True),
    "is_grads_batched=False": lambda x, y: grad(y, x, is_grads_batched=True),
    "only_inputs=True": lambda x, y: grad(y, x, only_inputs=False),
    "allow_unused=True or None": lambda x, y: grad(y, x, allow_unused=False, materialize_grads=True),
    "expected inputs, got none": lambda x, y: grad(y, []),
    "expected inputs as tensors, got ndarray": lambda x, y: grad(y, [np.ones(2)]),
    "expected inputs that require grad, got number 0": lambda x, y: grad(y, x.detach()),
    "expected outputs that require grad": lambda x, y: grad(y.detach(), x),
    "a gradient for each of 1 tensors, got 2": lambda x, y: grad(y, x, [None, None]),
    r"a gradient for an output of shape \(2,\), got None": lambda x, y: grad(x * 2, x),
    r"grad: expected a gradient of shape \(\), got \(2,\)": lambda x, y: grad(y, x, torch.ones(2)),
    "backward: expected no inputs": lambda x, y: backward(y, inputs=x),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message):
    x = leaf(1.0, 2.0)
    with pytest.raises((ArgumentError, AutogradError, DtypeError, ShapeError), match=message):
        REFUSED[message](x, (x * x).sum())
    assert x.grad is None


def test_on_a_gpu(cuda):
    x = torch.tensor([1.0, 2.0], requires_grad=True, device=cuda)
    h = x * x
    assert lists(grad(h.sum(), [h, x])) == [[1.0, 1.0], [2.0, 4.0]]
    w = torch.ones(2, requires_grad=True, device="cuda:0")
    backward([x * 3, w], [torch.ones(2, device=cuda), torch.ones(2, device="cuda:0")])
    assert w.grad.device == w.device and x.grad.cpu().tolist() == [3.0, 3.0]
    (found,) = grad([x * 3, w, w], w, [torch.ones(2, device=w) for w in (cuda, "cuda:0", "cuda:0")])
    assert found.device == w.device and found.cpu().tolist() == [2.0, 2.0]


def test_retain_grad_as_in_pytorch():
    x = leaf(1.0)
    y = x * 2
    assert (x.retains_grad, y.retains_grad) == (False, False)
    y.grad = None
    with pytest.raises(AutogradError, match="call retain_grad"):
        y.grad
    y.retain_grad()
    assert y.grad is None and y.retains_grad
    y.mul_(3)
    y.backward()
    y.retain_grad()
    assert y.grad.tolist() == [1.0] and y.retains_grad
    grown = torch.zeros(1)
    grown += x
    assert not grown.retains_grad
    with pytest.raises(AutogradError, match="call retain_grad"):
        grown.grad
