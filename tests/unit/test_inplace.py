"""Changes in place: what they write, what the tape makes of it, and what is refused. Values: tests/cases/inplace.py."""

import numpy as np
import pytest

import minigrad
from minigrad import nn, no_grad, tensor
from minigrad.errors import ArgumentError, AutogradError, DtypeError, IndexRangeError, ShapeError
from minigrad.nn.flat import flatten
from minigrad.stamp import next_number


def test_each_returns_the_tensor_it_changed():
    x = minigrad.zeros(2, 2)
    memory = x.data
    for change in (
        lambda: x.fill_(2),
        lambda: x.add_(1),
        lambda: x.add_(tensor([1.0, 2.0]), alpha=0.5),
        lambda: x.mul_(tensor([[2.0], [4.0]])),
        lambda: x.copy_(x + 1),
    ):
        assert change() is x
    assert x.data is memory and x.tolist() == [[8, 9], [15, 17]]
    assert x.zero_() is x and x.tolist() == [[0, 0], [0, 0]]


def test_assignment_by_every_kind_of_index():
    x = minigrad.zeros(3, 3)
    x[0] = 1
    x[1, 1:] = tensor([2.0, 3.0])
    x[tensor([2]), 0] = 4
    x[..., -1] = np.asarray([5.0, 6.0, 7.0], np.float32)
    x[x == 0] = np.float64(-1)
    assert x.tolist() == [[1, 1, 5], [-1, 2, 6], [4, -1, 7]]


OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "@"]
METHODS = {
    "copy_": lambda x, v: x.copy_(v),
    "fill_": lambda x, v: x.fill_(v.sum()),
    "zero_": lambda x, v: x.zero_(),
    "normal_": lambda x, v: x.normal_(),
    "uniform_": lambda x, v: x.uniform_(),
    "clamp_": lambda x, v: x.clamp_(max=0.5),
    "lerp_": lambda x, v: x.lerp_(v, 0.5),
    "masked_fill_": lambda x, v: x.masked_fill_(v == v, v.sum()),
    "scatter_": lambda x, v: x.scatter_(0, tensor([[0, 0]]), v),
    "index_add_": lambda x, v: x.index_add_(0, tensor([1, 0]), v),
    "setitem": lambda x, v: x.__setitem__(0, v[1]),
}
CHANGES = [(symbol, lambda x, v, symbol=symbol: augmented(symbol, x, v)) for symbol in OPERATORS] + [*METHODS.items()]
every_change = pytest.mark.parametrize("change", [change for _, change in CHANGES], ids=[name for name, _ in CHANGES])


def augmented(symbol, x, y):
    names = {"x": x, "y": y}
    exec(f"x {symbol}= y", names)
    return names["x"]


@every_change
def test_each_changes_the_memory_and_the_stamp_and_keeps_shape_and_dtype(change):
    x, value = tensor([[3.0, 4.0], [5.0, 6.0]]), tensor([[2.0, 2.0], [2.0, 2.0]])
    memory, before, number = x.data, x.data.copy(), next_number()
    change(x, value)
    assert x.data is memory and x.shape == (2, 2) and x.dtype == minigrad.float32
    assert not np.array_equal(memory, before) and x.stamp.changed > number


@every_change
def test_a_leaf_that_requires_grad_changes_with_recording_off_alone(change):
    x, value = minigrad.full((2, 2), 3.0, requires_grad=True), minigrad.full((2, 2), 2.0)
    with pytest.raises(AutogradError, match=r"expected recording to be off, got a leaf of shape \(2, 2\).*no_grad\(\)"):
        change(x, value)
    assert x.tolist() == [[3, 3], [3, 3]] and x.is_leaf
    with no_grad():
        change(x, value)
    assert x.tolist() != [[3, 3], [3, 3]] and x.is_leaf and x.requires_grad


@every_change
def test_a_view_is_refused_while_recording(change):
    base = minigrad.full((3, 2), 3.0, requires_grad=True) * 1
    view, value = base[1:], minigrad.full((2, 2), 2.0)
    with pytest.raises(AutogradError, match=r"expected recording to be off, got a view of shape \(2, 2\)"):
        change(view, value)
    with no_grad():
        change(view, value)
    assert base.tolist() != [[3, 3]] * 3


@every_change
def test_a_node_that_saved_the_old_values_says_so(change):
    x = minigrad.full((2, 2), 3.0, requires_grad=True)
    y = x * 1
    square = y * y
    change(y, minigrad.full((2, 2), 2.0))
    with pytest.raises(AutogradError, match="data that mul saved, got data changed in place since"):
        square.sum().backward()
    assert x.grad is None


def test_values_that_require_grad_put_a_plain_tensor_on_the_tape_but_no_view_of_one():
    w = tensor([1.0, 2.0], requires_grad=True)
    changes = [METHODS[name] for name in ("copy_", "lerp_", "fill_")] + [lambda x, v: augmented("+", x, v)]
    for change in [*changes, lambda x, v: x.__setitem__(..., v)]:
        x = minigrad.zeros(2)
        change(x, w)
        assert not x.is_leaf and x.requires_grad
        with pytest.raises(AutogradError, match="got a view"):
            change(minigrad.zeros(2, 2)[0], w)


def test_a_view_taken_before_a_recorded_change_is_refused_when_it_is_used():
    """Its history is the old one: through a tensor of no history the gradient of w would be lost in silence."""
    w = tensor([1.0, 2.0], requires_grad=True)
    for base in (minigrad.zeros(2), w * 1):
        view, copy = base.view(1, 2), base.detach()
        base += w
        for use in (lambda: view * 2, lambda: view.view(2), lambda: view.add_(1)):
            with pytest.raises(AutogradError, match="view: expected one of what its base is now, .* take the view ag"):
                use()
        assert (copy * 2).tolist() == (base.view(1, 2) * 2).tolist()[0]
        with no_grad():
            base += 1
        assert (base.view(1, 2) * 2).requires_grad


def test_a_node_that_needs_no_old_values_goes_backward():
    x = tensor([1.0, 2.0], requires_grad=True)
    y = x * 2
    total = y.sum()
    y *= y.detach().clone()
    y += 1
    (y.sum() + total).backward()
    assert x.grad.tolist() == [6, 10]


def test_what_is_divided_to_a_whole_number_has_no_gradient():
    x = tensor([5.0, 7.0], requires_grad=True)
    y = x * 1
    y //= 2
    assert y.tolist() == [2, 3] and not y.requires_grad and y.is_leaf and y.grad is None
    z = y * x
    z.sum().backward()
    assert x.grad.tolist() == [2, 3]


def test_parameters_trained_by_hand():
    """In a flat layout and outside of one; every name for the tensor and its memory sees the change."""
    for made in (list, lambda params: flatten(params) and params):
        layer = nn.Linear(3, 2)
        params = made(list(layer.parameters()))
        expected = []
        layer(minigrad.ones(4, 3)).sum().backward()
        with no_grad():
            for p in params:
                expected.append(p.data - np.float32(0.1) * p.grad.data)
                p -= 0.1 * p.grad
            layer.weight += 1
            layer.bias[0] = 5
        expected[0] += 1
        expected[1][0] = 5
        for p, wanted in zip((layer.weight, layer.bias), expected):
            assert np.array_equal(p.data, wanted) and isinstance(p, nn.Parameter)
        assert all(own is p for own, p in zip(layer.parameters(), params, strict=True))
        for flat in {id(p.flat): p.flat for p in params if p.flat is not None}.values():
            flat.check()
            assert np.array_equal(flat.data[slice(*flat.span(layer.bias))], expected[1])


def test_a_gradient_changed_in_place_stays_the_gradient_it_was():
    for made in (list, lambda params: flatten(params) and params):
        [p] = made([nn.Parameter(tensor([1.0, 2.0]))])
        (p * p).sum().backward()
        array = p.grad_array
        p.grad *= 0.5
        p.grad += tensor([1.0, 1.0])
        p.grad[1] = 7
        p.grad.clamp_(max=6.5)
        assert p.grad_array is array and p.grad.tolist() == [2, 6.5]
        p.requires_grad_(False)
        p.grad *= 2
        assert not p.requires_grad and p.grad.tolist() == [4, 13]


def test_a_buffer_of_a_module_counts():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = nn.Buffer(tensor(0))

        def forward(self, x):
            self.calls += 1
            return x

    counter = Counter()
    buffer = counter.calls
    counter(counter(None))
    assert counter.calls is buffer and counter.state_dict()["calls"].item() == 2


@pytest.mark.parametrize("place", ["cpu", "cuda:1"])
def test_operands_may_overlap_with_what_changes(place, cuda):
    x = minigrad.arange(5.0, device=place)
    x[1:] += x[:-1]
    assert x.tolist() == [0, 1, 3, 5, 7]
    x[1:] = x[:-1]
    assert x.tolist() == [0, 0, 1, 3, 5]
    x.copy_(x.flip(0))
    x[:-1].lerp_(x[1:], 1.0)
    assert x.tolist() == [3, 1, 0, 0, 0]


def test_in_autocast_the_dtype_stays_too():
    x = minigrad.ones(2, 2, dtype="bfloat16", requires_grad=True)
    with minigrad.autocast():
        y = x * 1
        y += minigrad.full((2, 2), 0.5)
        y **= 2
        y[0] = minigrad.full((2,), 3.0)
        z = minigrad.ones(2, 2)
        z @= y
    assert y.dtype == minigrad.bfloat16 and z.dtype == minigrad.float32 and z.tolist() == [[5.25, 5.25]] * 2
    z.sum().backward()
    assert x.grad.dtype == minigrad.bfloat16 and x.grad.tolist() == [[0, 0], [6, 6]]


def test_random_values_in_place_come_from_the_stream_or_the_generator_given():
    minigrad.manual_seed(3)
    x, y = minigrad.zeros(1000).normal_(2.0, 0.5), minigrad.zeros(1000, dtype="float16").uniform_(-1.0, 3.0)
    minigrad.manual_seed(3)
    expected = minigrad.zeros(1000).normal_(2.0, 0.5)
    assert x.tolist() == expected.tolist() and abs(x.data.mean() - 2) < 0.1 and abs(x.data.std() - 0.5) < 0.05
    assert -1 <= y.data.min() < -0.9 and 2.9 < y.data.max() <= 3 and abs(y.data.astype("f8").mean() - 1) < 0.2
    drawn = minigrad.zeros(3).uniform_(rng=np.random.default_rng(1)).data
    assert np.array_equal(drawn, np.random.default_rng(1).uniform(size=3).astype("f4"))


@pytest.mark.parametrize(
    "call, kind, message",
    [
        (lambda x: x.copy_(minigrad.ones(3)), ShapeError, r"copy_: .* fits into \(2,\) there, got \(3,\)"),
        (lambda x: x.copy_(minigrad.ones(1, 2)), ShapeError, r"copy_: .* fits into \(2,\) there, got \(1, 2\)"),
        (lambda x: x.__iadd__(minigrad.ones(2, 2)), ShapeError, r"add_: .* fits into \(2,\) there, got \(2, 2\)"),
        (lambda x: x.__imatmul__(minigrad.ones(2)), ShapeError, r"matmul_: .* fits into \(2,\) there, got \(\)"),
        (lambda x: x.masked_fill_(minigrad.ones(3, 2) > 0, 1), ShapeError, r"masked_fill_: .*, got \(3, 2\)"),
        (lambda x: x.lerp_(minigrad.ones(3, 2), 0.5), ShapeError, r"lerp_: .* \(2,\) there, got \(3, 2\)"),
        (lambda x: x.lerp_(minigrad.ones(2), x.double()), DtypeError, "lerp: .*got float32 and float64"),
        (lambda x: x.int().lerp_(x.int(), 0.5), DtypeError, "lerp: expected a float tensor, got int32"),
        (lambda x: x.int().__iadd__(x), DtypeError, "add_: expected a value that fits into int32, got float32"),
        (lambda x: x.int().__iadd__(0.5), DtypeError, "add_: expected a value that fits into int32, got float32"),
        (lambda x: x.int().__itruediv__(2), DtypeError, "div_: expected a value that fits into int32, got float32"),
        (lambda x: x.int().__ipow__(x), DtypeError, "pow_: expected a value that fits into int32, got float32"),
        (lambda x: x.int().clamp_(0.5), DtypeError, "clamp_: expected a value that fits into int32, got float32"),
        (lambda x: x.bool().__iadd__(1), DtypeError, "add_: expected a value that fits into bool, got int64"),
        (lambda x: x.__iand__(x), DtypeError, "bitwise_and: expected bools or integers, got float32"),
        (lambda x: x.__iadd__(x.double()), DtypeError, "add: .*got float32 and float64"),
        (lambda x: x.__iadd__("text"), DtypeError, "add: expected a tensor, an array or a number, got str"),
        (lambda x: x.fill_(minigrad.ones(2)), ShapeError, "fill_: expected a number or a tensor of no axes, got"),
        (lambda x: x.scatter_(0, tensor([0]), minigrad.ones(1).int()), DtypeError, "scatter: expected a source of"),
        (lambda x: x.scatter_(0, tensor([0, 1]), minigrad.ones(1)), ShapeError, "scatter: expected src at least"),
        (lambda x: x.scatter_(0, tensor([-1]), 1), IndexRangeError, r"scatter: expected indexes in \[0, 2\)"),
        (lambda x: x.scatter_(0, tensor([[0]]), 1), ShapeError, r"scatter: expected an index that fits into \(2,\)"),
        (lambda x: x.index_add_(0, tensor([0, 1]), minigrad.ones(1)), ShapeError, r"index_add: .* and \(1,\)"),
        (lambda x: x.index_add_(0, tensor([2]), minigrad.ones(1)), IndexRangeError, r"index_add: .* in \[0, 2\)"),
        (lambda x: x.index_add_(0, tensor([0]), tensor([1])), DtypeError, "index_add: expected a source of float32"),
        (lambda x: x.int().normal_(), DtypeError, "normal_: expected a float tensor, got int32"),
        (lambda x: x.normal_(0, -1), ArgumentError, "normal_: expected std"),
        (lambda x: x.uniform_(1, 0), ArgumentError, "uniform_: expected low <= high, got low=1 and high=0"),
        (lambda x: x.uniform_(rng=3), ArgumentError, "uniform_: expected rng to be a numpy.random.Generator"),
        (lambda x: x.add_(minigrad.ones(1, 1)), ShapeError, r"add_: .* fits into \(2,\) there, got \(1, 2\)"),
        (lambda x: x.add_(minigrad.ones(2, 2)), ShapeError, r"add_: expected a value that fits into \(2,\) there, got"),
        (lambda x: x.copy_(x.double()), DtypeError, "copy_: .*got float32 and float64"),
        (lambda x: x.int().copy_(x), DtypeError, "copy_: expected a value that fits into int32, got float32"),
        (lambda x: x.int().copy_(x.long()), DtypeError, "copy_: expected a value that fits into int32, got int64"),
        (lambda x: x.int().fill_(0.5), DtypeError, "fill_: expected a value that fits into int32, got float32"),
        (lambda x: x.bool().fill_(2), DtypeError, "fill_: expected a value that fits into bool, got int64"),
        (lambda x: x.to("uint8").fill_(300), DtypeError, "fill_: expected a number that fits into uint8, got 300"),
        (lambda x: x.copy_("text"), DtypeError, "copy_: expected a tensor, an array or a number, got str"),
        (lambda x: x.__setitem__(2, 0), IndexRangeError, r"setitem: expected an index into shape \(2,\), got"),
        (lambda x: x.__setitem__(0.5, 0), DtypeError, "setitem: expected integers, slices"),
        (lambda x: x.expand(3, 2).fill_(0), AutogradError, r"fill_: expected memory that may be written, .*\(3, 2\)"),
    ],
)
def test_refusals(call, kind, message):
    x = minigrad.ones(2)
    with pytest.raises(kind, match=message):
        call(x)
    assert x.tolist() == [1, 1]


def test_integers_and_bools_fit_into_floats():
    x = minigrad.zeros(2)
    assert x.copy_(tensor([1, 2])).tolist() == [1, 2] and x.copy_(tensor([True, False])).tolist() == [1, 0]
    assert minigrad.zeros(1, dtype="int64").copy_(minigrad.ones(1, dtype="int32")).tolist() == [1]


def test_0_and_1_are_truth_where_they_are_written_into_bools():
    mask = tensor([True, False, False])
    mask[0], mask[1:2] = 0, 1.0
    assert mask.tolist() == [False, True, False]
    assert mask.masked_fill(mask, 0).tolist() == [False] * 3 and mask.clone().fill_(1).tolist() == [True] * 3
    assert mask.scatter(0, tensor([2]), 1).tolist() == [False, True, True]
    assert mask.index_fill(0, tensor([1]), 0).tolist() == [False, False, False]


def test_subtraction_and_division_in_place():
    x = minigrad.full((2,), 6.0)
    assert x.sub_(tensor([1.0, 2.0]), alpha=2).div_(2) is x and x.tolist() == [2, 1]


def test_every_operator_has_a_method_of_its_name():
    x, y = tensor([5.0, -3.0]), tensor([2.0, 2.0])
    assert x.add(y).tolist() == [7, -1] and x.sub(y).tolist() == [3, -5] and x.mul(y).tolist() == [10, -6]
    assert x.div(y).tolist() == [2.5, -1.5] and x.neg().tolist() == [-5, 3]
    assert x.floor_divide(y).tolist() == [2, -2] and x.remainder(y).tolist() == [1, 1]
