"""The tape: what backward computes, announces, frees and refuses."""

import contextvars
import copy
import gc
import threading
import weakref

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, enable_grad, is_grad_enabled, no_grad, ops, optim, tensor
from minigrad.errors import AutogradError, DtypeError, ShapeError
from minigrad.nn import Parameter


def leaf(*values):
    """A float64 vector that wants a gradient."""
    return Tensor(np.asarray(values, np.float64), requires_grad=True)


@pytest.fixture
def no_gc():
    """The cyclic collector off, so that only reference counts free anything."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


# ------------------------------------------------------------------------------------------------------ gradients


def test_gradients_add_over_paths_and_over_backwards():
    x = leaf(3.0)
    y = x * x + x
    y.backward(retain_graph=True)
    assert x.grad.tolist() == [7]
    y.backward()
    assert x.grad.tolist() == [14]


def test_the_gradient_of_a_leaf_itself():
    x = leaf(1.0, 2.0)
    seed = tensor([5.0, 6.0], dtype="float64")
    x.backward(seed)
    x.backward(seed)
    assert x.grad.tolist() == [10, 12] and seed.tolist() == [5, 6]


def test_a_scalar_needs_no_gradient_and_gets_one():
    x = leaf(2.0)
    (x * 3).backward()
    assert x.grad.tolist() == [3]


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: a + b,
        lambda a, b: a + a,
        lambda a, b: (a + b) + a,
        lambda a, b: a.reshape(2, 1) + b.reshape(2, 1),
        lambda a, b: ops.cat([a, b])[:2],
        lambda a, b: ops.stack([a, b])[0] + b,
        lambda a, b: a.clone() - b,
        lambda a, b: ops.pad(a, (0, 0)) + b.T,
        lambda a, b: a.expand(2) / 1.0 + b,
        lambda a, b: a.flip(0) + b.narrow(0, 0, 2),
    ],
)
def test_gradients_are_memory_of_their_own(make):
    """No gradient is the one that was given, that of another leaf, or a view of either."""
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    out = make(a, b)
    seed = minigrad.ones_like(out)
    out.backward(seed)
    grads = [x.grad.data for x in (a, b) if x.grad is not None]
    for i, grad in enumerate(grads):
        assert grad.flags.writeable and not np.shares_memory(grad, seed.data)
        assert not any(np.shares_memory(grad, other) for other in grads[i + 1 :])
    kept = [grad.copy() for grad in grads]
    make(a, b).backward(seed)  # adds in place
    np.testing.assert_array_equal(np.concatenate(grads), 2 * np.concatenate(kept))
    assert seed.tolist() == minigrad.ones_like(seed).tolist()


def test_intermediate_gradients_are_not_changed_by_later_contributions():
    """z passes the same array to x and to y; adding to x's must not show in y's."""
    x, y = leaf(1.0), leaf(1.0)
    inner_x, inner_y = x * 2, y * 3
    z = inner_x + inner_y
    (z + inner_x).backward()
    assert (x.grad.tolist(), y.grad.tolist()) == ([4], [3])


def test_a_part_of_a_lent_gradient():
    """`x[0]` adds to a gradient that was lent to x by a sum."""
    x = leaf(1.0, 2.0)
    inner = x * 1.0
    seed = tensor([10.0, 20.0], dtype="float64")
    (inner[:1] * 5 + (inner + 0.0)).backward(seed)
    assert x.grad.tolist() == [10 + 5 * 30, 20] and seed.tolist() == [10, 20]


def test_assigned_gradients():
    x, g = leaf(1.0, 2.0), tensor([3.0, 4.0], dtype="float64")
    x.grad = g
    (x * 1.0).backward(g)
    assert x.grad.tolist() == [6, 8] and g.tolist() == [3, 4]
    x.grad = None
    assert x.grad is None
    with pytest.raises(ShapeError, match=r"grad: expected a gradient of shape \(2,\), got \(1,\)"):
        x.grad = g[:1]
    with pytest.raises(DtypeError, match="grad: expected a gradient of float64, got float32"):
        x.grad = g.float()
    with pytest.raises(DtypeError, match="grad: expected a gradient that is a Tensor, got float"):
        x.grad = 1.0
    with pytest.raises(AutogradError, match="grad: expected a leaf"):
        (x * 2).grad = g


@pytest.mark.parametrize("flat", [False, True])
def test_what_is_assigned_to_the_data_of_a_gradient_is_the_gradient(flat):
    """As tutorials write it: `p.grad` is a tensor anew each time, which must not take it along."""
    x = Parameter(minigrad.ones(2))
    optimizer = optim.SGD([x], lr=1.0) if flat else None
    y = x * 6
    y.retain_grad()
    y.sum().backward()
    kept = x.grad
    x.grad.data = x.grad.data / 2
    assert x.grad.tolist() == kept.tolist() == [3, 3]
    x.grad.data = x.grad / 3
    y.grad.data = y.grad * 4
    x.grad.data *= 2
    assert x.grad.tolist() == kept.tolist() == copy.copy(kept).tolist() == [2, 2] and y.grad.tolist() == [4, 4]
    loss = (minigrad.ones(2).requires_grad_() * kept).sum()
    x.grad.data = np.ones(2, np.float32)
    with pytest.raises(AutogradError, match="data changed in place since"):
        loss.backward()
    with pytest.raises(ShapeError, match=r"grad.data: expected a gradient of shape \(2,\), got \(3,\)"):
        x.grad.data = minigrad.ones(3)
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()
        (x * 7).sum().backward()
        assert x.tolist() == [0, 0] and kept.tolist() == [1, 1]


def test_requires_grad():
    x = minigrad.ones(2)
    assert x.requires_grad_() is x and (x * 2).requires_grad and not (x.detach() * 2).requires_grad
    with pytest.raises(AutogradError, match=r"requires_grad_: expected a leaf, .*use \.detach\(\)"):
        (x * 2).requires_grad_(False)
    with pytest.raises(AutogradError, match="grad: expected a leaf, got the output of an operation"):
        (x * 2).grad


# --------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "call, kind, message",
    [
        (lambda x: (x * 2).backward(), ShapeError, r"backward: expected a scalar, got shape \(2,\): reduce it"),
        (lambda x: x.backward(minigrad.ones(2)), DtypeError, "expected a gradient of float64, got float32"),
        (lambda x: x.backward(leaf(1.0)), ShapeError, r"expected a gradient of shape \(2,\), got \(1,\)"),
        (lambda x: x.backward(1.0), DtypeError, "expected a gradient that is a Tensor, got float"),
        (lambda x: x.detach().backward(), AutogradError, "expected a tensor that requires grad"),
        (lambda x: x[0].backward(create_graph=True), AutogradError, "only first derivatives are supported"),
    ],
)
def test_backward_refuses(call, kind, message):
    x = leaf(1.0, 2.0)
    with pytest.raises(kind, match=message):
        call(x)
    assert x.grad is None


def test_a_graph_is_used_once():
    x = leaf(2.0)
    y = x * x
    y.backward()
    with pytest.raises(AutogradError, match=r"shape \(1,\), got one that an earlier .* freed: .*retain_graph=True"):
        y.backward()
    with pytest.raises(AutogradError, match="freed"):
        (y + x).backward()


def change_input(x, y):
    x.detach().mul_(3)


def change_through_a_view(x, y):
    x.detach()[:1].fill_(5)


def change_by_index(x, y):
    with no_grad():
        x[0] = 7


def change_like_an_optimizer(x, y):
    with no_grad():
        x.copy_(x - 0.1)


@pytest.mark.parametrize("change", [change_input, change_through_a_view, change_by_index, change_like_an_optimizer])
@pytest.mark.parametrize("make", [lambda x: x * x, lambda x: x.reshape(2, 1) ** 2, lambda x: x @ x, lambda x: x[:] * x])
def test_inputs_changed_after_they_were_saved_are_noticed(make, change):
    x = leaf(1.0, 2.0)
    y = make(x)
    change(x, y)
    with pytest.raises(AutogradError, match=r"backward: expected the data that \w+ saved, got data changed in place"):
        y.backward(minigrad.ones_like(y))


@pytest.mark.parametrize("make", [lambda x: ops.pow(3.0, x), lambda x: ops.pow(x, x), ops.exp, ops.relu, ops.tanh])
@pytest.mark.parametrize("view", [lambda y: y, lambda y: y[:1], lambda y: y.reshape(1, 2)])
def test_outputs_changed_after_they_were_saved_are_noticed(make, view):
    x = leaf(1.0, 2.0)
    y = make(x)
    view(y.detach()).zero_()
    with pytest.raises(AutogradError, match=r"the data that \w+ saved, got data changed in place"):
        y.backward(minigrad.ones_like(y))


def test_a_view_of_an_input_changed_through_the_input_is_noticed():
    base, x = minigrad.ones(2, 2), minigrad.ones(2, requires_grad=True)
    y = base.T[0] * x
    base.fill_(3)
    with pytest.raises(AutogradError, match="data changed in place"):
        y.backward(minigrad.ones_like(y))


def test_changes_of_what_backward_does_not_need_are_fine():
    x, c = leaf(1.0), tensor([2.0], dtype="float64")
    y = x + c
    c.fill_(9)  # addition saved no values
    twin = (x * 1.0).clone()
    (x * 5).detach().zero_()  # not saved by anyone
    copied = c.reshape(1).clone()
    z = copied * y
    c.zero_()  # copied has memory of its own
    z.backward()
    assert x.grad.tolist() == [9] and twin.tolist() == [1]


@pytest.mark.parametrize(
    "make, slope",
    [
        (lambda x, c: x * c, 4.0),
        (lambda x, c: c * x, 4.0),
        (lambda x, c: x / c, 0.25),
        (lambda x, c: x * 4.0, 4.0),
    ],
)
def test_an_operand_that_only_the_other_ones_gradient_needs_is_not_saved(make, slope):
    x, c = leaf(1.0, 2.0), tensor([4.0, 4.0], dtype="float64")
    y = make(x, c)
    change_input(x, y)
    y.backward(minigrad.ones_like(y))
    assert x.grad.tolist() == [slope, slope]


def test_the_output_of_a_power_with_a_constant_exponent_is_not_saved():
    x = leaf(1.0, 2.0)
    y = x**3.0
    y.detach().zero_()
    y.backward(minigrad.ones_like(y))
    assert x.grad.tolist() == [3.0, 12.0]


def test_a_reshape_that_copied_does_not_share_changes():
    c, x = minigrad.ones(2, 2), minigrad.ones(4, requires_grad=True)
    y = c.T.reshape(-1) * x
    c.zero_()
    y.backward(minigrad.ones(4))
    assert x.grad.tolist() == [1, 1, 1, 1]


def test_a_change_before_it_is_saved_is_fine():
    x = leaf(1.0)
    x.detach().fill_(3)
    (x * x).backward()
    assert x.grad.tolist() == [6]


# ----------------------------------------------------------------------------------------------------------- events


class Journal:
    """A listener that writes down what it hears."""

    def __init__(self, fail_at=None):
        self.entries, self.fail_at = [], fail_at

    def note(self, event, *details):
        self.entries.append((event, *details))
        if event == self.fail_at:
            raise KeyError(event)

    def begin(self, leaves):
        self.leaves = list(leaves)
        self.note("begin", len(leaves))

    def leaf(self, leaf):
        self.note("leaf", leaf, leaf.grad.tolist())

    def end(self, error):
        self.note("end", None if error is None else type(error))


def test_begin_leaves_end_in_this_order():
    journal = Journal()
    first, second, unheard, unreached = leaf(1.0), leaf(2.0), leaf(3.0), leaf(4.0)
    for x in (first, second, unreached):
        x.listeners = (journal,)
    y = first * first * unheard
    loss = y + second * 2 + first  # first is complete only after its last use
    loss.backward()
    assert journal.entries == [("begin", 3), ("leaf", second, [2]), ("leaf", first, [7]), ("end", None)]
    assert {id(x) for x in journal.leaves} == {id(first), id(second), id(unheard)}


def test_a_leaf_alone_is_announced_too():
    journal, x = Journal(), leaf(1.0)
    x.listeners = (journal,)
    x.backward()
    assert journal.entries == [("begin", 1), ("leaf", x, [1]), ("end", None)]


def test_a_leaf_reached_only_by_a_path_without_gradient_is_announced():
    journal, x, y = Journal(), leaf(1.0), leaf(2.0)
    x.listeners = y.listeners = (journal,)
    x.grad = y.grad = tensor([0.0], dtype="float64")
    ops.where(tensor([True]), x * 1.0, y * 1.0).backward()
    assert [entry[0] for entry in journal.entries] == ["begin", "leaf", "leaf", "end"]


@pytest.mark.parametrize("fail_at", ["begin", "leaf", "end"])
def test_end_is_always_told(fail_at):
    failing, other, x, y = Journal(fail_at), Journal(), leaf(1.0), leaf(1.0)
    x.listeners, y.listeners = (failing,), (other,)
    with pytest.raises(KeyError, match=fail_at):
        (x * y).backward()
    assert failing.entries[-1] == ("end", None if fail_at == "end" else KeyError)
    begun = [entry[0] for entry in other.entries].count("begin")
    assert [entry[0] for entry in other.entries].count("end") == begun
    if fail_at != "begin":
        assert other.entries[-1] == ("end", KeyError)


def test_end_is_told_when_an_operation_fails():
    journal, x = Journal(), leaf(1.0)
    x.listeners = (journal,)
    y = x * x
    x.detach().fill_(2)
    with pytest.raises(AutogradError):
        y.backward()
    assert journal.entries == [("begin", 1), ("end", AutogradError)]


def test_a_failed_backward_leaves_no_gradients_inside():
    """Nodes that were not reached forget what they were given: a second try starts clean."""
    x, y = leaf(2.0), leaf(3.0)
    outer = x * x + y  # y is complete before x * x has its turn
    y.listeners = (Journal("leaf"),)
    with pytest.raises(KeyError):
        outer.backward(retain_graph=True)
    x.grad = y.grad = None
    y.listeners = ()
    outer.backward()
    assert (x.grad.tolist(), y.grad.tolist()) == ([4], [1])


def test_on_leaf_hears_of_each_leaf_once_when_complete():
    x, y = leaf(1.0), leaf(2.0)
    heard = []
    (x * y * x + y).backward(on_leaf=lambda reached: heard.append((reached, reached.grad.tolist())))
    assert heard == [(y, [2]), (x, [4])] or heard == [(x, [4]), (y, [2])]


def test_hooks_on_a_leaf():
    x, heard = leaf(1.0), []
    remove = x.register_post_accumulate_grad_hook(lambda reached: heard.append(("first", reached.grad.tolist())))
    x.register_post_accumulate_grad_hook(lambda reached: heard.append(("second", reached.grad.tolist())))
    (x * 2 + x).backward()
    assert heard == [("first", [3]), ("second", [3])]
    remove()
    remove()
    (x * 2).backward()
    assert heard[2:] == [("second", [5])]
    for other in (x * 2, x.detach()):
        with pytest.raises(AutogradError, match="hook: expected a leaf that requires grad"):
            other.register_post_accumulate_grad_hook(print)


# ----------------------------------------------------------------------------------------------------------- memory


def test_a_dropped_loss_frees_its_graph_by_reference_counts(no_gc):
    x = leaf(1.0, 2.0)
    middle = x * x
    loss = (middle**2.0).reshape(1, 2)[0, 0]
    inside = weakref.ref(middle)
    del middle
    assert inside() is not None  # saved by the power
    del loss
    assert inside() is None


def test_a_used_graph_leaves_nothing_behind(no_gc):
    x = leaf(1.0, 2.0)
    middle = x * x
    inside = weakref.ref(middle)
    loss = (middle * middle)[0]
    del middle
    loss.backward()
    assert inside() is None and loss.item() == 1


def test_a_failed_backward_leaves_nothing_behind(no_gc):
    x, y = leaf(1.0), leaf(1.0)
    middle = x * x
    inside = weakref.ref(middle)
    y.listeners = (Journal("leaf"), Journal("end"))
    try:
        (middle * middle + y).backward()
    except KeyError:
        pass
    del middle
    assert inside() is None


def test_what_was_saved_dies_as_backward_goes():
    """When the gradient of the first leaf is complete, nothing of the later operations is left."""
    x = leaf(1.0)
    y, saved = x, []
    for _ in range(5):
        y = y * y
        saved.append(weakref.ref(y))
    alive = []
    saved.pop()  # y itself
    y.backward(on_leaf=lambda _: alive.append([ref() is not None for ref in saved]))
    assert alive == [[False] * 4]


def test_a_deep_graph_needs_no_recursion():
    x = leaf(1.0)
    y = x
    for _ in range(20_000):
        y = y + x
    y.backward()
    assert x.grad.tolist() == [20_001]


def test_a_deep_graph_is_freed_without_recursion():
    """Also where each operation saved the tensor before it."""
    y = leaf(1.0)
    for _ in range(20_000):
        y = y * 1.0
    inside = weakref.ref(y)
    del y
    assert inside() is None


# -------------------------------------------------------------------------------------------- what a node saved


def test_saved_data_can_be_dropped_and_put_back():
    x = leaf(3.0)
    y = x * x
    kept, y.node.saved = y.node.saved, None
    with pytest.raises(AutogradError, match="backward: expected the saved data of mul, got none: it was dropped"):
        y.backward(retain_graph=True)
    y.node.saved = kept
    y.backward()
    assert x.grad.tolist() == [6]


def test_saved_data_can_be_put_back_by_a_listener():
    """What recomputation needs: at begin, everything may still be restored."""

    class Restore(Journal):
        def begin(self, leaves):
            y.node.saved = (Tensor(x.data.copy()), Tensor(x.data.copy()), *shapes)

    x = leaf(3.0)
    y = x * x
    shapes = y.node.saved[2:]
    y.node.saved = None
    x.listeners = (Restore(),)
    y.backward()
    assert x.grad.tolist() == [6]


# ------------------------------------------------------------------------------------------------------------ modes


def test_modes_nest():
    x = leaf(1.0)
    with no_grad():
        assert not is_grad_enabled() and not (x * 2).requires_grad
        with enable_grad():
            assert (x * 2).requires_grad
        assert not is_grad_enabled()
    assert is_grad_enabled()


def test_modes_end_with_an_error():
    with pytest.raises(KeyError), no_grad():
        raise KeyError
    assert is_grad_enabled()


def test_modes_decorate():
    @no_grad()
    def off(x):
        return x * 2

    @enable_grad()
    def on(x):
        return x * 2

    x = leaf(1.0)
    assert not off(x).requires_grad and off.__name__ == "off" and off(x).tolist() == [2]
    with no_grad():
        assert on(x).requires_grad


def in_a_thread(function, context=None):
    """What the function returns, run by another thread."""
    found = []
    run = (lambda: found.append(function())) if context is None else (lambda: found.append(context.run(function)))
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def test_a_mode_belongs_to_its_context():
    def change():
        seen = is_grad_enabled()
        with enable_grad():
            pass
        return seen

    with no_grad():
        assert in_a_thread(is_grad_enabled) is True  # a thread with an empty context
        assert in_a_thread(change, contextvars.copy_context()) is False
        assert not is_grad_enabled()


def test_a_mode_set_by_a_thread_does_not_leak():
    inside, done = threading.Event(), threading.Event()

    def stay_inside():
        with no_grad():
            inside.set()
            assert done.wait(timeout=10)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(stay_inside,))
    thread.start()
    assert inside.wait(timeout=10)
    assert is_grad_enabled()
    done.set()
    thread.join()


def test_backward_of_another_thread():
    x = leaf(2.0)
    y = x * x
    in_a_thread(y.backward)
    assert x.grad.tolist() == [4]
