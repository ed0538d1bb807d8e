"""What cases can't say of attention: weights that are dropped at random."""

import numpy as np

from minigrad import Tensor, ops


def test_weights_are_dropped():
    query, key, value = (Tensor(np.random.default_rng(i).standard_normal((2, 3, 4))) for i in range(3))
    whole = ops.scaled_dot_product_attention(query, key, value).numpy()
    halves = [ops.scaled_dot_product_attention(query, key, value, dropout_p=0.5).numpy() for _ in range(400)]
    assert np.ptp(halves, axis=0).all() and abs(np.mean(halves, axis=0) - whole).max() < 0.5
    assert not ops.scaled_dot_product_attention(query, key, value, dropout_p=1.0).numpy().any()
