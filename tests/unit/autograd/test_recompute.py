"""Checkpointing: the same bits with less memory, and what is refused."""

import functools
import gc
import tracemalloc
import weakref

import numpy as np
import pytest

import minigrad as torch
from minigrad import nn
from minigrad.autograd import Function, grad
from minigrad.errors import ArgumentError, AutogradError
from minigrad.testing import saved_bytes
from minigrad.utils.checkpoint import checkpoint, checkpoint_sequential


def network():
    """One with noise and with buffers that move."""
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=None), nn.Dropout(0.5), nn.ReLU(inplace=True))
    return nn.Sequential(*first, nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 2))


def halves(net, x):
    """Within each other, and one after the other."""
    return checkpoint(lambda x: checkpoint(net[4:], checkpoint(net[2:4], checkpoint(net[:2], x)) * 1), x)


WAYS = {
    "one": lambda net, x: checkpoint(net, x, use_reentrant=False),
    "sequential": lambda net, x: checkpoint_sequential(net, 3, x),
    "nested": halves,
    "keywords": lambda net, x: checkpoint(lambda *, parts: {"y": net(parts["x"])}, parts={"x": x})["y"],
    "autocast": lambda net, x: checkpoint(torch.autocast("bfloat16")(net.__call__), x),
    "within autocast": lambda net, x: checkpoint(torch.autocast("bfloat16")(net.__call__), x),
}


def trained(way, retain=False):
    """All that two steps leave behind: gradients, buffers, where the noise is."""
    net, rows = network(), np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    x = torch.tensor(rows, requires_grad=True)
    for _ in range(2):
        loss = way(net, x).float().square().sum()
        if retain:
            loss.backward(retain_graph=True)
        loss.backward()
    left = [*(p.grad for p in net.parameters()), *net.buffers(), x.grad, torch.randn(1)]
    return [part.numpy() for part in left]


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("name", WAYS)
def test_the_bits_are_those_without_it(name, retain):
    plain = torch.autocast("bfloat16")(lambda net, x: net(x)) if "autocast" in name else lambda net, x: net(x)
    for ours, theirs in zip(trained(WAYS[name], retain), trained(plain, retain), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_what_a_small_case_holds():
    """Of float32 (2, 3), 24 bytes: exp, tanh and the square save one each; with it the input alone is held."""
    x = torch.ones(2, 3, requires_grad=True)
    h = -x
    assert saved_bytes(h.exp().tanh().square().sum()) == 2 * 24  # the square saves what tanh gave
    kept = checkpoint(lambda h: h.exp().tanh().square(), h).sum()
    assert saved_bytes(kept) == 24 and saved_bytes(kept, apart=[h]) == 0
    assert saved_bytes(checkpoint(lambda h: checkpoint(torch.tanh, checkpoint(torch.exp, -h)), h).sum()) == 24
    assert saved_bytes(h[0].square()) == 24  # all that the part is of
    first, second = checkpoint(lambda h: (h.sin(), h.exp()), h)
    first.sum().backward()
    assert saved_bytes(second.sum()) == 2 * 24  # with what the second run made for it
    with pytest.raises(AutogradError, match="saved_bytes: expected the output of an operation"):
        saved_bytes(x)


@pytest.mark.parametrize("function", [lambda h: lambda: h.exp().tanh(), lambda h: functools.partial(torch.tanh, h)])
def test_what_a_function_holds_itself_counts(function):
    h = -torch.ones(2, 3, requires_grad=True)
    assert saved_bytes(checkpoint(function(h)).sum()) == 24


def test_within_autocast_no_conversion_outlives_the_block():
    """A weight of 1000 x 1000 in bfloat16 has 2 MB, of which a plain run holds one."""
    net, x = nn.Linear(1000, 1000, bias=False), torch.ones(1, 1000)
    tracemalloc.start()
    try:
        with torch.autocast("bfloat16"):
            y = checkpoint(net, x)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1e5
    y.float().sum().backward()
    assert (net.weight.grad.numpy() == 1.0).all()


def test_memory_goes_as_backward_comes():
    arrays, watched = [], []

    class Watched(Function):
        @staticmethod
        def forward(ctx, x, i):
            big = torch.Tensor(np.zeros(3))
            arrays.append(weakref.ref(big))
            ctx.save_for_backward(big)
            return x * 1.0, i

        @staticmethod
        def backward(ctx, grad, _):
            watched.append(sum(array() is not None for array in arrays))
            return grad, None

    def three(x):
        for i in range(3):
            x, _ = Watched.apply(x, i)
        return x

    gc.disable()
    try:
        loss = checkpoint(three, torch.ones(3, requires_grad=True)).sum()
        assert [array() for array in arrays] == [None] * 3
        loss.backward()
        assert watched == [3, 2, 1] and len(arrays) == 6 and all(array() is None for array in arrays)
        segment = weakref.ref(checkpoint(three, torch.ones(3, requires_grad=True)).node.backward.stretch)
        assert segment() is None
    finally:
        gc.enable()


def counting(times):
    def run(x):
        times.append(1)
        return x.exp(), x.sin(), x

    return run


def test_it_is_computed_again_once_and_where_it_is_reached():
    x, times = torch.tensor([1.0, 2.0], requires_grad=True), []
    first, second, same = checkpoint(counting(times), x)
    assert same is x and len(times) == 1
    first.sum().backward()
    assert len(times) == 2 and x.grad.tolist() == pytest.approx(np.exp([1.0, 2.0]))
    second.sum().backward()
    assert len(times) == 2  # its part was made with the other one
    with pytest.raises(AutogradError, match="freed"):
        second.sum().backward()
    with torch.no_grad():
        checkpoint(counting(times), x)
    assert len(times) == 3
    assert not checkpoint(counting(times), x.detach())[0].requires_grad


def test_grad_through_it():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    h = checkpoint(lambda x: (x * x).exp(), x)
    plain = grad((x * x).exp().sum(), x)[0]
    assert grad(h.sum(), x, retain_graph=True)[0].tolist() == plain.tolist() and x.grad is None
    h.sum().backward()
    assert x.grad.tolist() == plain.tolist()


def test_hooks_are_those_of_the_first_run():
    x, heard, kept = torch.tensor([1.0], requires_grad=True), [], []

    def run(x):
        h = x * 2
        h.retain_grad()
        kept.append(h)
        h.register_hook(lambda g: (heard.append(g.item()), g * 10)[1])
        return h * 3

    y = checkpoint(run, x)
    y.register_hook(lambda g: heard.append("y"))
    y.sum().backward()
    assert heard == ["y", 3.0] and x.grad.tolist() == [60.0] and kept[0].grad.tolist() == [30.0]


class Two(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x, x + x

    @staticmethod
    def backward(ctx, first, second):
        return 2 * ctx.saved_tensors[0] * first + 2 * second


def test_a_function_of_several_outputs_in_it():
    x = torch.tensor([3.0], requires_grad=True)
    first, second = checkpoint(lambda x: Two.apply(x.exp()), x)
    (first * second).sum().backward()
    y = torch.tensor([3.0], requires_grad=True)
    (y.exp() ** 2 * (2 * y.exp())).sum().backward()
    assert x.grad.item() == pytest.approx(y.grad.item())


def test_both_streams_are_replayed():
    x = torch.ones(1, 4, requires_grad=True)
    y = checkpoint(lambda x: x.exp() * nn.Linear(4, 1).weight.detach() * torch.randn(4), x)
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), y.detach().numpy(), rtol=1e-5)


def test_an_output_that_changes_in_place_is_computed_again():
    x = torch.tensor([1.0], requires_grad=True)
    y = checkpoint(lambda x: x.exp(), x)
    y.mul_(2)
    y.sum().backward()
    assert x.grad.tolist() == pytest.approx([2 * np.e])


def test_noise_without_preserve_is_drawn_anew():
    x = torch.ones(64, requires_grad=True)
    torch.manual_seed(0)
    y = checkpoint(lambda x: nn.functional.dropout(x.exp(), 0.5), x, preserve_rng_state=False)
    y.sum().backward()
    assert ((x.grad.numpy() > 0) != (y.detach().numpy() > 0)).any()


def later(make, change):
    """What backward says of a change in between."""
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    h = x * 1
    y = checkpoint(make, h, w)
    with torch.no_grad():
        change(h, w)
    y.sum().backward()


def other(way):
    """A function that takes another course the second time."""
    turns = []

    def run(h, w):
        turns.append(1)
        return way(h, w, len(turns) == 2)

    return run


class Scaled(nn.Module):
    """Moves a buffer of its own, and computes from it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, h, w):
        with torch.no_grad():
            self.mean.mul_(0.5).add_(h.detach() * 0.5)
        return h * self.mean * w


def switched():
    """A batch norm that is in evaluation when backward comes."""
    norm = nn.BatchNorm1d(1)
    y = checkpoint(norm, torch.tensor([[1.0], [2.0]], requires_grad=True))
    norm.eval()
    y.sum().backward()


def fails(h, w, again):
    if again:
        raise ZeroDivisionError("of the function")
    return h.exp()


CHANGED = {
    r"what the function read to be as it was, .* of shape \(2,\) changed in place": lambda: later(
        lambda h, w: (h + 1).exp(), lambda h, w: h.mul_(2)
    ),
    r"what the function read to be as it was": lambda: later(lambda h, w: (h + w).exp(), lambda h, w: w.mul_(2)),
    r"operation 1 of 2 to be exp with .*, got sin": lambda: later(
        other(lambda h, w, again: (h * w).sin() if again else (h * w).exp()), lambda h, w: None
    ),
    r"expected 1 operations again, got 2, of which the first too many is exp": lambda: later(
        other(lambda h, w, again: h.exp().exp() if again else h.exp()), lambda h, w: None
    ),
    r"expected 2 operations again, got 1, of which the first that is missing is exp": lambda: later(
        other(lambda h, w, again: h.exp() if again else h.exp().exp()), lambda h, w: None
    ),
    r"to be exp with float32 \(2,\) saved for 1 of 1 inputs again, got exp with float32 \(1,\)": lambda: later(
        other(lambda h, w, again: torch.ones(1, requires_grad=True).exp() if again else h.exp()), lambda h, w: None
    ),
    r"of shape \(2,\) changed in place by the second run": lambda: later(Scaled(), lambda h, w: None),
    r"operation 0 of 1 to be rows .*, False saved .*, got rows .*, True saved": switched,
    r"that leaves its arguments as they are": lambda: later(lambda h, w: h.mul_(2), lambda h, w: None),
    r"of the function": lambda: later(other(fails), lambda h, w: None),
}


@pytest.mark.parametrize("message", CHANGED)
def test_what_changed_in_between(message):
    with pytest.raises((AutogradError, ZeroDivisionError), match=message):
        CHANGED[message]()


REFUSED = {
    "expected a function, got Tensor": lambda x: checkpoint(x, x),
    "use_reentrant=False, got True": lambda x: checkpoint(torch.exp, x, use_reentrant=True),
    "no context_fn": lambda x: checkpoint(torch.exp, x, context_fn=lambda: None),
    "determinism_check='default'": lambda x: checkpoint(torch.exp, x, determinism_check="none"),
    "debug=False": lambda x: checkpoint(torch.exp, x, debug=True),
    "preserve_rng_state to be True or False": lambda x: checkpoint(torch.exp, x, preserve_rng_state=1),
    "expected tensors in what the function returns.*, got object": lambda x: checkpoint(lambda x: object(), x),
    "a Sequential or list of layers": lambda x: checkpoint_sequential(torch.exp, 1, x),
    r"segments to be an integer in \[1, 2\)": lambda x: checkpoint_sequential([torch.exp], 2, x),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message):
    with pytest.raises(ArgumentError, match=message):
        REFUSED[message](torch.ones(2, requires_grad=True))


def test_on_a_gpu(cuda):
    torch.manual_seed(0)
    x = torch.ones(4, 3, device=cuda, requires_grad=True)
    net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.GELU(), nn.Linear(8, 2)).to(cuda)
    found = []
    for way in (net, lambda x: checkpoint(net, x)):
        torch.manual_seed(1)
        way(x).square().sum().backward()
        found.append(x.grad.cpu().numpy())
        x.grad = None
    np.testing.assert_array_equal(*found)


def test_a_second_run_begins_where_the_first_did(cuda):
    """On the device of the arguments, though the gradient comes from another one."""
    x = torch.ones(2, device=cuda, requires_grad=True)
    checkpoint(lambda x: x.exp().to("cuda:0"), x).to(cuda).sum().backward()
    assert x.grad.device == x.device and x.grad.cpu().tolist() == pytest.approx([np.e, np.e])
