"""Lesson 11: our functions beside the library's layer."""

import numpy as np
import pytest

from minigrad import Tensor
from minigrad.course.lesson11_norm.solution import sync_norm_backward, sync_norm_forward
from minigrad.distributed import SyncBatchNorm, run


@pytest.mark.parametrize("sizes", [(3, 4), (0, 5, 1), (2, 2, 2, 2)])
def test_ours_is_sync_batch_norm(sizes):
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((size, 4)) + rank for rank, size in enumerate(sizes)]
    grads = [rng.standard_normal((size, 4)) for size in sizes]

    def body(comm):
        x, grad = parts[comm.rank], grads[comm.rank]
        y, inverse, count = sync_norm_forward(comm, x)
        ours = sync_norm_backward(comm, grad, y, inverse, count)
        layer = SyncBatchNorm(4, comm, affine=False, dtype="float64", reduce="sum")
        leaf = Tensor(x, requires_grad=True)
        out = layer(leaf)
        (out * Tensor(grad)).sum().backward()
        return [(y, out.data), (ours, leaf.grad.data)]

    for pairs in run(body, len(sizes), timeout_s=5.0):
        for ours, theirs in pairs:
            assert np.allclose(ours, theirs, rtol=1e-12, atol=1e-12)
