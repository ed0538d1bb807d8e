"""How much Python runs before a fused operation is launched; see tests/benchmarks/overhead.py for what it takes."""

import math
import sys

import pytest

import minigrad
from minigrad.backend.flags import forget_found
from tests.benchmarks.overhead import light_gpu, operations

MOST_CALLS = {
    "layer_norm": 26, "dropout": 28, "cross_entropy": 29, "relu": 19, "linear": 18, "conv2d": 23, "batch_norm": 34,
    "group_norm": 26, "softmax": 27, "gelu": 23, "embedding": 32, "attention": 40, "max_pool2d": 25, "avg_pool2d": 27,
    "SGD.step": 45, "Adam.step": 50,
}


def calls_until_launch(call, clock):
    """How many functions of Python were called before the first launch."""
    counted = 0

    def count(frame, event, argument):
        nonlocal counted
        counted += event == "call" and not clock.at

    call()
    clock.at.clear()
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return counted


@pytest.fixture
def clock():
    with light_gpu() as clock:
        yield clock
    forget_found()


@pytest.mark.parametrize("name", MOST_CALLS)
def test_few_calls_are_made_before_the_launch(clock, name):
    found = calls_until_launch(operations()[name], clock)
    assert clock.at
    assert found <= MOST_CALLS[name]


def test_what_is_kept_is_of_one_kind_of_arrays(request):
    with light_gpu():
        operations()["cross_entropy"]()
    forget_found()
    for fixture, place in (("strict_cupy", "cuda:0"), ("cuda", "cuda:1")):  # which each makes the current one
        request.getfixturevalue(fixture)
        logits, labels = minigrad.zeros(2, 3, device=place), minigrad.tensor([0, 2], device=place)
        loss = minigrad.nn.functional.cross_entropy(logits, labels)
        assert loss.item() == pytest.approx(math.log(3))


def test_it_counts_every_call(clock):
    call = operations()["relu"]
    own = calls_until_launch(call, clock)
    assert calls_until_launch(lambda: (len([repr(i) for i in range(3)]), call()), clock) == own + 2


def test_each_operation_has_its_limit(clock):
    assert set(operations()) == set(MOST_CALLS)
