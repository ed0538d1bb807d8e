"""What a GPU is given to do, counted on the stand-in by hand in small cases."""

import numpy as np
import pytest

import minigrad
from minigrad.ops.image_order import from_nhwc, to_nhwc
from tests.benchmarks.launches import count_step
from tests.benchmarks.workloads import TRAININGS
from tests.strict_cupy import counted


def test_by_hand(cuda):
    x, y = minigrad.ones(2, 3, device=cuda), minigrad.ones(3, 4, device=cuda)
    with counted() as work:
        z = x @ y  # reads 24 and 48 bytes, writes 32
        z.reshape(4, 2)  # a view
        z = z + 1.0  # the 1 is kept there; reads 32 and 4 bytes and writes 32
        z.sum().item()
    assert work.pieces["add"] == work.pieces["sum"] == 1
    assert (work.total, work.waits) == (3, 1), work.pieces
    assert work.nbytes == (24 + 48 + 32) + (32 + 4 + 32) + (32 + 4)


def test_nothing_is_counted_outside_or_for_nothing(cuda):
    x = minigrad.ones(2, 3, device=cuda)
    with counted() as work:
        none = x.data[:0]
        none += 1.0
        x.detach().view(3, 2)
    x + x
    assert work.total == 0 and work.views >= 1


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 5), (2, 3, 4, 5), (2, 3, 4, 2, 2)])
def test_nhwc_and_back(shape):
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    pixels = to_nhwc(x)
    assert pixels.flags.c_contiguous and pixels.shape[-1] == 3 and len(pixels) == 2
    back = from_nhwc(pixels, shape)
    assert np.array_equal(back, x) and to_nhwc(back).ctypes.data == pixels.ctypes.data


MOST_PIECES = {"b": 18, "c": 90, "digits": 60}


@pytest.mark.parametrize("name", sorted(set(TRAININGS) - {"e"}))  # which is b, so wide that it takes a minute here
def test_steps_are_few_pieces_without_waits_and_uploads(cuda, name):
    work = count_step(name, 2)
    assert (work.waits, work.uploads) == (0, 0)
    assert name not in MOST_PIECES or work.total <= MOST_PIECES[name], work.pieces
