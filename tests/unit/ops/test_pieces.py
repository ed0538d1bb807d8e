"""Pieces of a tensor: the gradient of the whole is what theirs are, however they come."""

import numpy as np
import pytest

from minigrad import Tensor, nn, no_grad
from minigrad.autograd import grad
from minigrad.autograd.tape import Node, accumulate, reach
from minigrad.backend.workspace import memory_order
from minigrad.errors import AutogradError
from minigrad.ops.pieces import room_for
from minigrad.tensor import record
from minigrad.utils.checkpoint import checkpoint


def leaf(*shape):
    return Tensor(np.arange(np.prod(shape), dtype=np.float64).reshape(shape), requires_grad=True)


def times(x, factor):
    """x * factor, whose gradient is written where it belongs."""
    return record(x.data * factor, _times_backward, (x,), (factor,))


def _times_backward(node, given):
    (edge,) = node.inputs
    place = room_for(edge, given.shape)
    accumulate(edge, given * node.saved[0] if place is None else np.multiply(given, node.saved[0], out=place))


def plain(x, factor):
    """x * factor, whose gradient is an array of its own."""
    return x * factor


@pytest.mark.parametrize("by", [times, plain])
def test_a_piece_without_gradient_is_zero_and_uses_add_up(by):
    x = leaf(2, 4, 3)
    first, _, last, _ = (x * 1).unbind(1)
    (by(first, 2).sum() + by(last, 3).sum() + by(last, 10).sum()).backward()
    expected = np.zeros((2, 4, 3))
    expected[:, 0], expected[:, 2] = 2, 13
    assert np.array_equal(x.grad.numpy(), expected)


@pytest.mark.parametrize("by", [times, plain])
@pytest.mark.parametrize("take", [
    lambda x: x.split(2), lambda x: x.split([1, 0, 4], 1), lambda x: x.chunk(3, -1), lambda x: x.unbind(2),
    lambda x: x.permute(2, 0, 1).unbind(), lambda x: x[:, ::2].mT.split([1, 3, 2], 1) if x.shape[2] > 5 else x.split(4),
])
def test_each_way_of_taking_apart(take, by):
    x = leaf(4, 5, 6)
    parts = take(x * 1)
    weights = [np.random.default_rng(i).standard_normal(part.shape) for i, part in enumerate(parts)]
    sum((by(part, weight)).sum() for part, weight in zip(parts, weights)).backward(retain_graph=True)
    marks = take(Tensor(np.arange(120.0).reshape(4, 5, 6)))
    expected = np.zeros(120)
    for mark, weight in zip(marks, weights):
        expected[mark.numpy().astype(int)] = weight
    assert np.array_equal(x.grad.numpy().reshape(-1), expected)


@pytest.mark.parametrize("by", [times, plain])
def test_a_graph_that_is_kept_gives_the_same_again_and_a_backward_of_fewer_pieces_zeros(by):
    x = leaf(3, 2)
    a, b, c = (x * 1).unbind()
    both, one = by(a, 2).sum() + by(b, 3).sum(), by(b, 5).sum()
    both.backward(retain_graph=True)
    both.backward(retain_graph=True)
    one.backward()
    assert x.grad.tolist() == [[4, 4], [11, 11], [0, 0]]
    with pytest.raises(AutogradError, match="freed"):
        (c * 2).sum().backward()


def test_pieces_of_a_leaf_can_go_backward_one_after_the_other():
    x = leaf(6)
    a, b = x.split(3)
    (a * 2).sum().backward()
    (b * 3).sum().backward()
    assert x.grad.tolist() == [2, 2, 2, 3, 3, 3]
    with pytest.raises(AutogradError, match="freed"):
        a.sum().backward()


@pytest.mark.parametrize("by", [times, plain])
def test_hooks_on_pieces_see_their_gradient_and_may_replace_it(by):
    x, seen = leaf(3, 2), []
    a, b, c = (x * 1).unbind()
    for piece in (a, c):
        piece.register_hook(lambda given: seen.append(given.tolist()))
    b.register_hook(lambda given: given * 10)
    c.retain_grad()
    (by(a, 2).sum() + by(b, 3).sum() + by(c, 4).sum() + by(a, 1).sum()).backward()
    assert seen == [[4, 4], [3, 3]] and c.grad.tolist() == [4, 4]
    assert x.grad.tolist() == [[3, 3], [30, 30], [4, 4]]


@pytest.mark.parametrize("by", [times, plain])
def test_a_hook_may_ask_for_gradients_through_the_same_pieces(by):
    x, found = leaf(4, 2), []
    y = x * 1
    a, b, c, d = y.unbind()
    other = by(b, 7).sum() + by(d, 9).sum()
    middle = a * 2  # recorded before what uses b and d: half of these gradients have come when its hook is called
    middle.register_hook(lambda given: found.append([z.tolist() for z in grad(other, [x, b], retain_graph=True)]))
    (by(b, 3).sum() + by(d, 5).sum() + by(c, 4).sum() + middle.sum()).backward(retain_graph=True)
    assert found == [[[[0, 0], [7, 7], [0, 0], [9, 9]], [7, 7]]]
    assert x.grad.tolist() == [[2, 2], [3, 3], [4, 4], [5, 5]]
    assert [z.tolist() for z in grad(other, [d, y])] == [[9, 9], [[0, 0], [7, 7], [0, 0], [9, 9]]]


def test_a_hook_on_a_piece_may_ask_too():
    x, found = leaf(3, 2), []
    a, b, c = (x * 1).unbind()
    other = times(a, 7).sum() + times(c, 9).sum()
    b.register_hook(lambda given: found.append(grad(other, x, retain_graph=True)[0].tolist()))
    (times(a, 3).sum() + times(b, 5).sum() + times(c, 4).sum()).backward(retain_graph=True)
    assert found == [[[7, 7], [0, 0], [9, 9]]] and x.grad.tolist() == [[3, 3], [5, 5], [4, 4]]


def test_a_backward_that_failed_leaves_nothing_behind():
    x, fails = leaf(3, 2), [True]

    def hook(given):
        if fails[0]:
            raise KeyError

    a, b, c = (x * 1).unbind()
    a.register_hook(hook)
    loss, other = times(a, 2).sum() + times(c, 3).sum(), times(b, 4).sum() + times(c, 1).sum()
    with pytest.raises(KeyError):
        loss.backward(retain_graph=True)
    fails[0] = False
    other.backward(retain_graph=True)
    loss.backward()
    assert x.grad.tolist() == [[2, 2], [4, 4], [4, 4]]


def test_a_leaf_is_told_of_once_and_after_all_pieces():
    layer, told = nn.Linear(2, 6), []
    query, key, value = layer.weight.chunk(3)
    x = Tensor(np.ones((1, 2), np.float32))
    loss = (x @ query.mT + (x @ value.mT) * 3).sum()
    loss.backward(on_leaf=lambda reached: told.append((reached.shape, reached.grad.tolist())))
    assert told == [((6, 2), [[1, 1]] * 2 + [[0, 0]] * 2 + [[3, 3]] * 2)]


def test_recomputed_pieces_give_the_same():
    def stretch(x):
        a, b, _ = (x * 1).chunk(3, 1)
        return times(a, 2) * b

    x, y = leaf(2, 6), leaf(2, 6)
    checkpoint(stretch, x).sum().backward()
    stretch(y).sum().backward()
    assert np.array_equal(x.grad.numpy(), y.grad.numpy()) and x.grad.numpy().any()


def test_a_piece_knows_when_the_whole_was_changed():
    x = leaf(2, 2)
    y = x * 1
    a, b = y.unbind()
    product = a * b
    with no_grad():
        y += 1
    with pytest.raises(AutogradError, match="changed in place"):
        product.sum().backward()
    z = x * 1
    a, b = z.unbind()
    z *= 2
    with pytest.raises(AutogradError, match="take the view again"):
        a * 2


def test_the_gradient_lies_as_the_whole_does():
    x = leaf(2, 3, 3, 4) * 1  # permuted as a GPT's queries, keys and values are
    whole = x.permute(2, 0, 3, 1)
    pieces = whole.unbind()
    loss = sum(times(piece, 2).sum() for piece in pieces)
    heard = []
    x.node.backward = lambda node, given: heard.append(given)
    loss.backward()
    assert heard[0].flags.c_contiguous and (heard[0] == 2).all() and memory_order(whole.data) == (1, 3, 0, 2)


def test_one_node_of_the_whole_stands_behind_them():
    x = leaf(4, 2) * 1
    nodes, _ = reach((sum(x.unbind())).sum().node)
    behind = [node for node in nodes.values() if x.node in node.inputs]
    assert len(behind) == 1 and isinstance(behind[0], Node)
    with no_grad():
        assert not any(piece.requires_grad for piece in x.unbind())


@pytest.mark.parametrize("index", [
    (slice(None), 0), (..., -1), (0,), (None, slice(1, None)), (slice(None, None, -2), slice(0, 2), 1), (...,),
    (2, 1, 0),
])
def test_a_slice_gives_its_gradient_to_the_whole_as_that_lies(index):
    x, factor = leaf(3, 4, 2), 3.0
    turned = x.permute(1, 2, 0).permute(2, 0, 1)
    lying = (x * 1).permute(2, 0, 1).permute(1, 2, 0)
    (turned[index] * factor).sum().backward()
    (lying[index] * factor + lying[index]).sum().backward()
    expected = np.zeros((3, 4, 2))
    expected[index] = 7
    assert np.array_equal(x.grad.numpy(), expected)


@pytest.mark.parametrize("by", [times, plain, lambda x, factor: x])
def test_a_checkpoint_runs_again_when_some_pieces_were_left_of_its_last_run(by):
    """Pieces of one run then fill the gradient of another run's whole."""
    x = leaf(6)
    outs = checkpoint(lambda x: [by(part, i + 2) for i, part in enumerate((x * 1).split(2))], x)
    outs[0].sum().backward(retain_graph=True)
    expected = x.grad.numpy().copy()
    x.grad = None
    outs[1].sum().backward(retain_graph=True)
    assert x.grad.tolist() == [0, 0, *[1 if expected[0] == 1 else 3] * 2, 0, 0]
    x.grad = None
    sum(out.sum() for out in outs).backward()
    assert x.grad.tolist() == ([1] * 6 if expected[0] == 1 else [2, 2, 3, 3, 4, 4])
