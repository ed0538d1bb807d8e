"""What losses, embeddings and attention give a GPU to do, counted on the stand-in; and the gradient they start from."""

import numpy as np
import pytest

import minigrad
from minigrad import nn, ops, optim
from minigrad.backend.fused import embedding
from minigrad.errors import IndexRangeError
from tests.benchmarks.launches import count_step
from tests.strict_cupy import counted


def on(device, array, **options):
    return minigrad.tensor(array, device=device, **options)


def pieces(step):
    """What a step gives the device to do, after one that made what is kept."""
    step()
    with counted() as work:
        step()
    assert (work.uploads, work.waits) == (0, 0)
    return work.pieces


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("rows", [3, 5000])
def test_cross_entropy_is_one_kernel_each_way(cuda, reduction, rows):
    x = on(cuda, np.zeros((rows, 7), np.float32), requires_grad=True)
    labels = on(cuda, np.arange(rows) % 7)

    def step():
        x.grad = None
        ops.cross_entropy(x, labels, reduction=reduction).backward()

    assert pieces(step) == {"cross_entropy_forward_f32": 1, "cross_entropy_backward_f32": 1}


def test_a_label_that_is_no_class_raises_at_the_next_read(cuda):
    x = on(cuda, np.zeros((2, 7), np.float32))
    loss = ops.cross_entropy(x, on(cuda, np.array([0, 7])))
    with pytest.raises(IndexRangeError, match=r"cross_entropy: expected labels in \[0, 7\), got 7 on cuda:1"):
        loss.item()
    with minigrad.debug(), pytest.raises(IndexRangeError, match=r"embedding: expected indexes in \[0, 2\), got -1"):
        ops.embedding(x, on(cuda, np.array([1, -1])))


@pytest.mark.parametrize("few", [True, False])
def test_an_embedding_is_one_kernel_each_way_with_few_kinds(cuda, few, monkeypatch):
    monkeypatch.setattr(embedding, "_MOST_LOOKS", 10**4 if few else 500)
    layer = nn.Embedding(6, 3).to(cuda)
    optim.SGD(layer.parameters(), lr=0.1)  # which gives gradients their place
    index = on(cuda, np.arange(100) % 5)

    def step():
        layer.weight.grad = None
        layer(index).backward(ones)

    ones = on(cuda, np.ones((100, 3), np.float32))
    by_order = {} if few else {"remainder": 1, "argsort": 1, "setitem": 1}
    assert pieces(step) == {"embedding_pick_f32": 1, "embedding_sum_f32": 1, **by_order}
    assert layer.weight.grad.tolist() == [[20.0] * 3] * 5 + [[0.0] * 3]


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_is_one_kernel_each_way(cuda, name):
    x, g = (on(cuda, np.zeros((3, 4, 7), np.float32), requires_grad=wants) for wants in (True, False))

    def step():
        x.grad = None
        getattr(ops, name)(x, -1).backward(g)

    assert pieces(step) == {"softmax_forward_f32": 1, "softmax_backward_f32": 1}


@pytest.mark.parametrize("place", ["cpu", "cuda:1"])
@pytest.mark.parametrize("others", [0, 1, 2])
def test_layer_norm_adds_to_what_a_residual_connection_brought(place, others, cuda):
    """What was lent is not written to; where the norm comes first, or others lie otherwise, it adds as before."""
    rng = np.random.default_rng(0)
    x, g = (rng.standard_normal((4, 6)).astype(np.float32) for _ in range(2))
    leaf, gain = (minigrad.tensor(a, device=place, requires_grad=True) for a in (x, x[0]))
    inner = leaf * 1.0
    alone = ops.layer_norm(inner, (6,), gain)
    total = alone
    for _ in range(others):
        total = total + inner
    if others:
        total = inner.T.T * 1.0 + total
    upstream = minigrad.tensor(g, device=place)
    total.backward(upstream, retain_graph=True)
    first = leaf.grad.cpu().numpy()
    leaf.grad = None
    alone.backward(upstream)
    count = others + (others > 0)
    np.testing.assert_allclose(first, leaf.grad.cpu().numpy() + count * g, rtol=1e-5, atol=1e-5)
    assert np.array_equal(upstream.cpu().numpy(), g)


def test_a_residual_connection_around_a_norm_takes_no_piece_of_its_own(cuda):
    leaf = on(cuda, np.ones((4, 6), np.float32), requires_grad=True)
    g = on(cuda, np.ones((4, 6), np.float32))

    def step():
        leaf.grad = None
        x = leaf * 1.0
        (x + ops.layer_norm(x, (6,))).backward(g)

    norm = {"layer_norm_forward_f32": 1, "layer_norm_backward_f32": 1}
    assert pieces(step) == {"multiply": 2, "add": 1, **norm}


@pytest.mark.parametrize("workload, most", [("b", 18), ("d", 90)])
def test_a_step_is_at_most_so_many_pieces(cuda, workload, most):
    assert count_step(workload, 2).total <= most


def heads_of(joint):
    """Queries, keys and values as a joint projection has them: (samples, length, 3, heads, width)."""
    return joint.permute(2, 0, 3, 1, 4).unbind(0)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_six_products_and_two_kernels(cuda, masked):
    """And one list of addresses each way; neither heads nor gradients are copied."""
    joint = on(cuda, np.zeros((3, 5, 3, 2, 8), np.float32), requires_grad=True)
    mask = on(cuda, np.ones((5, 5), bool)) if masked else None
    g = on(cuda, np.ones((3, 5, 16), np.float32))

    def step():
        joint.grad = None
        seen = ops.scaled_dot_product_attention(*heads_of(joint * 1.0), mask, is_causal=True)
        seen.transpose(1, 2).reshape(3, 5, 16).backward(g)

    kernels = {"addresses_of_matrices": 2, "attention_weigh_f32": 1, "attention_gradient_f32": 1}
    assert pieces(step) == {"gemm": 6, **kernels, "multiply": 2}


@pytest.mark.parametrize("place", ["cpu", "cuda:1"])
def test_the_gradient_that_backward_starts_from_is_nobodys_to_change(place, cuda):
    for _ in range(2):
        x = minigrad.tensor([3.0], device=place, requires_grad=True)
        loss = (x * 1.0).reshape(()) if place == "cpu" else x.sum()
        loss.retain_grad()
        loss.register_hook(lambda grad: grad.mul_(2.0))
        loss.backward()
        loss.grad.mul_(5.0)
        x.grad.mul_(7.0)
        assert (loss.grad.item(), x.grad.item()) == (10.0, 14.0)
        leaf = minigrad.tensor(1.0, device=place, requires_grad=True)
        leaf.backward()
        leaf.grad.mul_(3.0)
        assert leaf.grad.item() == 3.0
