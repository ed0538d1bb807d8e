"""Labels and indexes out of range on a device that is no CPU: found there, raised by name when the host reads next."""

import threading

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, ops
from minigrad.backend.device import to_device
from minigrad.errors import IndexRangeError


def tensor(device, values):
    return Tensor(to_device(np.asarray(values), device))


def table(device):
    return tensor(device, np.ones((4, 3), np.float32))


def assign(x, index):
    x[index] = 1.0
    return x


CALLS = {
    "cross_entropy": lambda x, bad: ops.cross_entropy(x, bad),
    "nll_loss": lambda x, bad: ops.nll_loss(x, bad),
    "embedding": lambda x, bad: ops.embedding(x, bad),
    "index_select": lambda x, bad: ops.index_select(x, 0, bad),
    "gather": lambda x, bad: ops.gather(x, 0, bad.reshape(-1, 1)),
    "take_along_dim": lambda x, bad: ops.take_along_dim(x, bad.reshape(-1, 1), 0),
    "index_add": lambda x, bad: ops.index_add(x, 0, bad, x),
    "index_fill": lambda x, bad: ops.index_fill(x, 0, bad, 1.0),
    "scatter": lambda x, bad: ops.scatter(x, 0, bad.reshape(-1, 1), 1.0),
    "scatter_add": lambda x, bad: ops.scatter_add(x, 0, bad.reshape(-1, 1), x),
    "one_hot": lambda x, bad: ops.one_hot(bad, 3),
    "getitem": lambda x, bad: x[bad],
    "setitem": lambda x, bad: assign(x, bad),
}
LIMIT = {"cross_entropy": 3, "nll_loss": 3, "one_hot": 3}  # the others pick rows, of which there are 4
WHAT = {"cross_entropy": "labels", "nll_loss": "labels", "one_hot": "classes"}
READS = {
    "item": lambda x: x[:1].sum().item(),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "bool": lambda x: bool(x.sum() > 0),
    "end of epoch": lambda x: minigrad.raise_all_found(),
}


def message(name, value, place):
    low = -4 if name in ("getitem", "setitem", "take_along_dim", "index_fill") else 0
    return f"^{name}: expected {WHAT.get(name, 'indexes')} in .{low}, {LIMIT.get(name, 4)}.*, got {value} on {place}"


DTYPES = [(name, dtype) for name in CALLS for dtype in ("int64", "int32", "uint8")
          if (name[3:], dtype) != ("item", "uint8")]  # as an index uint8 is a mask


@pytest.mark.parametrize("name, dtype", DTYPES)
def test_it_is_raised_by_name_at_the_next_read(cuda, unnoticed, name, dtype):
    bad = tensor(cuda, np.array([1, 0, 9, 2]).astype(dtype))
    x = table(cuda)
    with unnoticed():
        CALLS[name](x, bad)
    with pytest.raises(IndexRangeError, match=message(name, 9, cuda)):
        minigrad.ones(1, device=cuda).item()
    assert minigrad.ones(1, device=cuda).item() == 1.0


@pytest.mark.parametrize("name", CALLS)
def test_in_debug_it_is_raised_at_once(cuda, unnoticed, name):
    bad = tensor(cuda, [1, 0, 9, 2])
    with unnoticed(waits=True), minigrad.debug(), pytest.raises(IndexRangeError, match=message(name, 9, cuda)):
        CALLS[name](table(cuda), bad)
    minigrad.raise_all_found()


@pytest.mark.parametrize("read", READS)
def test_every_read_raises(cuda, unnoticed, read):
    x = table(cuda)
    with unnoticed():
        ops.embedding(x, tensor(cuda, [7]))
    with pytest.raises(IndexRangeError, match="embedding"):
        READS[read](x)
    READS[read](x)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_in_range_raises_nothing(cuda, name):
    CALLS[name](table(cuda), tensor(cuda, [1, 0, 2, 2]))
    minigrad.raise_all_found()


def test_ignored_labels_and_negative_indexes_are_in_range(cuda):
    x = table(cuda)
    ops.cross_entropy(x, tensor(cuda, [1, -100, 0, 2]))
    ops.nll_loss(x, tensor(cuda, [7, 0, 0, 7]), ignore_index=7)
    x[tensor(cuda, [-4, 3])]
    minigrad.raise_all_found()


def test_each_axis_of_an_index_has_its_own_length(cuda, unnoticed):
    x = tensor(cuda, np.zeros((2, 5, 3, 7), np.float32))
    x[0, ..., tensor(cuda, [6])]
    x[:, tensor(cuda, [4]), None, tensor(cuda, [2])]
    x[..., 2, tensor(cuda, [-7])]
    minigrad.raise_all_found()
    with unnoticed():
        x[:, tensor(cuda, [0]), tensor(cuda, [3])]
    with pytest.raises(IndexRangeError, match=r"in \[-3, 3\), got 3"):
        x.tolist()


def test_the_first_of_several_is_told_and_none_is_left(cuda, unnoticed):
    x = table(cuda)
    with unnoticed():
        ops.embedding(x, tensor(cuda, [11]))
        ops.embedding(x, tensor(cuda, [12]))
    with pytest.raises(IndexRangeError, match="got 11"):
        x.tolist()
    x.tolist()


def test_nothing_to_look_at(cuda):
    x = table(cuda)
    assert ops.embedding(x, tensor(cuda, np.zeros(0, np.int64))).shape == (0, 3)
    minigrad.raise_all_found()


def test_findings_are_those_of_one_thread(cuda, unnoticed):
    x = table(cuda)
    with unnoticed():
        ops.embedding(x, tensor(cuda, [7]))
    failures = []

    def read():
        try:
            minigrad.ones(1, device=cuda).item()
        except IndexRangeError as error:
            failures.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert failures == []
    with pytest.raises(IndexRangeError):
        x.tolist()


def test_training_goes_on_until_the_loss_is_read(cuda, unnoticed):
    x = table(cuda)
    x.requires_grad_()
    with unnoticed():
        loss = ops.cross_entropy(x, tensor(cuda, [1, 0, 9, 2]))
        loss.backward()
    with pytest.raises(IndexRangeError, match="cross_entropy: expected labels"):
        loss.item()
    assert np.isnan(loss.item())
