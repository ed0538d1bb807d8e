"""Flat layouts: parameters and gradients of one dtype in one array, whatever their number and shapes."""

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigrad import Tensor, no_grad
from minigrad.backend.memory import ALIGN_BYTES
from minigrad.errors import ArgumentError, DtypeError, LayoutError
from minigrad.nn import Parameter
from minigrad.nn.flat import FlatBuffer, flatten
from minigrad.testing import assert_close

SHAPES = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=7)
DTYPES = ["float64", "float32", "float16"]
SEEDS = st.integers(0, 2**32 - 1)


def normal(rng, shape, dtype="float64"):
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


def parameters(shapes, seed, dtypes=("float64",)):
    rng = np.random.default_rng(seed)
    return [Parameter(normal(rng, shape, dtypes[i % len(dtypes)])) for i, shape in enumerate(shapes)]


def ranges(buffer):
    return [buffer.span(param) for param in buffer.params]


@given(SHAPES, SEEDS, st.sampled_from([DTYPES[:1], DTYPES[1:2], DTYPES]))
def test_layout(shapes, seed, dtypes):
    """Every parameter keeps its values, in a range of its own that starts on a cache line."""
    params = parameters(shapes, seed, dtypes)
    before = [param.data.copy() for param in params]
    buffers = flatten(params)
    assert sorted(id(p) for b in buffers for p in b.params) == sorted(map(id, params))
    for buffer in buffers:
        order = [param for param in params[::-1] if param.dtype == buffer.dtype]
        assert [id(p) for p in buffer.params] == [id(p) for p in order]
        spans = ranges(buffer)
        assert all(start * buffer.dtype.itemsize % ALIGN_BYTES == 0 for start, _ in spans)
        assert all(stop <= start for (_, stop), (start, _) in zip(spans, spans[1:]))
        assert spans[-1][1] <= buffer.count == buffer.data.size == buffer.grad.size
        for memory in (buffer.data, buffer.grad):
            assert not memory.size or memory.ctypes.data % ALIGN_BYTES == 0
    for param, values in zip(params, before):
        start, stop = param.flat.span(param)
        assert param.flat.dtype == param.dtype
        assert_close(param.flat.data[start:stop].reshape(param.shape), values, tolerance=0)
        assert param.numel() == 0 or np.shares_memory(param.data, param.flat.data)


@given(SHAPES, SEEDS)
def test_padding_stays_zero(shapes, seed):
    params = parameters(shapes, seed)
    [buffer] = flatten(params)
    inside = np.zeros(buffer.count, bool)
    for start, stop in ranges(buffer):
        inside[start:stop] = True
    assert not buffer.data[~inside].any() and not buffer.grad[~inside].any()


@given(SHAPES, SEEDS)
def test_gradients_land_in_the_flat_array(shapes, seed):
    """The first contribution overwrites what lies there, later ones add; None stays None."""
    params = parameters(shapes, seed)
    [buffer] = flatten(params)
    buffer.grad[...] = np.nan
    rng = np.random.default_rng(seed + 1)
    weights = [normal(rng, param.shape) for param in params]
    for times in (1, 2):
        for param, weight in zip(params[1:], weights[1:]):
            (param * weight).backward(Tensor(np.ones(param.shape)))
            start, stop = buffer.span(param)
            assert param.grad.data is param.grad_view
            assert_close(buffer.grad[start:stop].reshape(param.shape), times * weight)
    assert params[0].grad is None
    start, stop = buffer.span(params[0])
    assert np.isnan(buffer.grad[start:stop]).all()


def test_a_gradient_dropped_is_overwritten_by_the_next():
    [param] = parameters([(3,)], 0)
    flatten([param])
    for factor in (2.0, 5.0):
        param.grad = None
        (param * factor).backward(Tensor(np.ones(3)))
        assert_close(param.flat.grad[:3], np.full(3, factor))


@given(SHAPES, SEEDS, st.data())
def test_runs_are_maximal_and_cover(shapes, seed, data):
    params = parameters(shapes, seed)
    [buffer] = flatten(params)
    chosen = data.draw(st.lists(st.sampled_from(range(len(params))), unique=True))
    runs = buffer.runs([params[i] for i in chosen])
    covered = {e for start, stop in runs for e in range(start, stop)}
    wanted = {e for i in chosen for e in range(*buffer.span(params[i]))}
    others = {e for i in range(len(params)) if i not in chosen for e in range(*buffer.span(params[i]))}
    assert wanted <= covered and not covered & others
    assert runs == sorted(runs)
    between = {e for (_, stop), (start, _) in zip(runs, runs[1:]) for e in range(stop, start)}
    gaps = [set(range(stop, start)) for (_, stop), (start, _) in zip(runs, runs[1:])]
    assert all(gap & others for gap in gaps if gap), "two runs could be one"
    assert not between & wanted


def test_all_parameters_are_one_run():
    params = parameters([(3,), (2, 2), (17,)], 0)
    [buffer] = flatten(params)
    assert buffer.runs(params) == [(0, buffer.count)]
    assert buffer.runs([params[0], params[2]]) == [(0, 24), (32, 40)]
    assert buffer.runs([]) == []


def test_a_later_flatten_finds_the_layout_that_is_there():
    """A subset first, then all: the others get a buffer of their own, and nothing moves."""
    params = parameters([(3,), (2, 2), (5,), (1,)], 0)
    [first] = flatten(params[1:3])
    memory = [param.data for param in params[1:3]]
    buffers = flatten(params)
    assert len(buffers) == 2 and first in buffers
    assert [param.data is data for param, data in zip(params[1:3], memory)] == [True, True]
    assert [id(p) for p in params[0].flat.params] == [id(params[3]), id(params[0])]
    assert flatten(params) == buffers
    assert flatten(params[1:2]) == [first]


def test_a_shared_parameter_has_one_place():
    params = parameters([(3,), (2,)], 0)
    [buffer] = flatten([params[0], params[1], params[0]])
    assert [id(p) for p in buffer.params] == [id(params[1]), id(params[0])]


def test_frozen_parameters_have_a_place_too():
    params = parameters([(3,), (2,)], 0)
    params[0].requires_grad_(False)
    [buffer] = flatten(params)
    assert len(buffer.params) == 2


@given(SHAPES, SEEDS, st.booleans())
def test_rebind_keeps_present_gradients(shapes, seed, before):
    """Present from before the layout, or from after; those that are None stay None."""
    params = parameters(shapes, seed)
    rng = np.random.default_rng(seed)
    grads = [normal(rng, param.shape) if i % 2 else None for i, param in enumerate(params)]

    def give():
        for param, grad in zip(params, grads):
            if grad is not None:
                param.grad = Tensor(grad)

    if before:
        give()
    [buffer] = flatten(params)
    if not before:
        give()
    memory = np.full(buffer.count, np.nan)
    buffer.rebind_grad(memory)
    assert buffer.grad is memory and not np.isnan(memory).any()
    for param, grad in zip(params, grads):
        if grad is None:
            assert param.grad is None
        else:
            start, stop = buffer.span(param)
            assert_close(param.grad, grad, tolerance=0)
            assert_close(memory[start:stop].reshape(param.shape), grad, tolerance=0)
    buffer.rebind_grad(memory)
    assert all(param.grad is None or not np.isnan(param.grad.data).any() for param in params)


def test_backward_writes_where_it_was_bound_last():
    [param] = parameters([(3,)], 0)
    [buffer] = flatten([param])
    memory = np.zeros(buffer.count)
    buffer.rebind_grad(memory)
    (param * 2.0).backward(Tensor(np.ones(3)))
    assert_close(memory[:3], np.full(3, 2.0))


@pytest.mark.parametrize("grad", [np.zeros(9), np.zeros((2, 4)), np.zeros(8, np.float32)], ids=["long", "2-d", "dtype"])
def test_rebind_refuses_other_memory(grad):
    [buffer] = flatten(parameters([(3,)], 0))
    with pytest.raises(LayoutError, match=r"rebind_grad: expected float64 \(8,\) on cpu, got"):
        buffer.rebind_grad(grad)


def test_replaced_data_is_noticed():
    params = parameters([(3,), (2,)], 0)
    [buffer] = flatten(params)
    buffer.check()
    with no_grad():
        params[0].copy_(np.ones(3))
    buffer.check()
    params[0].name = "fc.bias"
    params[0].data = np.ones(3)
    with pytest.raises(LayoutError, match=r"parameter fc.bias of float64 \(3,\) to stay in its place.*use copy_"):
        buffer.check()


def test_only_parameters_have_a_layout():
    with pytest.raises(DtypeError, match="flatten: expected parameters, got Tensor"):
        flatten([Tensor(np.ones(3))])
    with pytest.raises(ArgumentError, match="flatten: expected at least one parameter, got none"):
        flatten([])
    [buffer] = flatten(parameters([(3,)], 0))
    stranger = parameters([(3,)], 1)[0]
    for ask in (buffer.span, lambda param: buffer.runs([param])):
        with pytest.raises(LayoutError, match=r"flat layout: expected one of its parameters, got .* shape \(3,\)"):
            ask(stranger)


def test_a_graph_recorded_before_goes_backward_after():
    x, [weight] = Tensor(np.ones((2, 3)), requires_grad=True), parameters([(3, 4)], 0)
    y = x @ weight
    [buffer] = flatten([weight])
    y.backward(Tensor(np.ones((2, 4))))
    assert_close(buffer.grad[:12].reshape(3, 4), np.full((3, 4), 2.0))
    assert_close(x.grad, np.ones((2, 4)) @ weight.data.T)


def test_the_old_memory_is_free_of_the_new():
    """What viewed the data before the layout was made sees no later change, and its graph is not disturbed."""
    [weight] = parameters([(3, 4)], 0)
    old, values = weight.detach(), weight.data.copy()
    x = Tensor(np.ones((2, 3)), requires_grad=True)
    y = x @ old
    flatten([weight])
    with no_grad():
        weight.fill_(7.0)
    assert_close(old, values, tolerance=0)
    y.backward(Tensor(np.ones((2, 4))))
    assert_close(x.grad, np.ones((2, 4)) @ values.T)


def test_a_copy_has_no_layout():
    [param] = parameters([(3,)], 0)
    flatten([param])
    param.grad = Tensor(np.ones(3))
    twin = copy.deepcopy(param)
    assert twin.flat is None and twin.grad is None and twin.grad_view is None
    assert not np.shares_memory(twin.data, param.data)
    assert_close(twin, param, tolerance=0)


def test_one_buffer_for_each_dtype():
    params = parameters([(3,), (2,), (4,)], 0, ["float32", "float64"])
    buffers = flatten(params)
    assert [(b.dtype.name, len(b.params)) for b in buffers] == [("float32", 2), ("float64", 1)]
    assert all(isinstance(buffer, FlatBuffer) for buffer in buffers)
