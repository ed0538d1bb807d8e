"""Lesson 6: our orders by hand, where DDP gives those of the check."""

import minigrad
from minigrad.course.lesson06_ready import checks, picture, solution

ORDERS = {
    checks.Straight: ["layers.4", "layers.2", "layers.0"],
    checks.Branches: ["head", "left", "right"],
    checks.Reused: ["last", "between", "cell", "first"],
    checks.Tied: ["decoder.bias", "middle", "encoder"],
}


def test_the_orders_are_those_that_one_reads_from_the_graph():
    for kind, layers in ORDERS.items():
        parts = [(name,) if name.endswith("bias") else (f"{name}.weight", f"{name}.bias") for name in layers]
        expected = [name for part in parts for name in part]
        module = checks.made(kind)
        assert solution.ready_order(module, module(checks.batch()).mean()) == expected == checks.order_of_ddp(kind)


def test_fractions_of_a_model_are_parts_of_its_bytes():
    second, first = 16 * 8 + 8 + 8 + 1, 4 * 16 + 16
    expected = [8, 9, 9 + 16 * 8, second, second + 4 * 16, second + first]
    found = list(checks.fractions_of(checks.Straight).values())
    assert max(abs(a - b / (second + first)) for a, b in zip(found, expected)) < 1e-12


def test_the_input_is_the_same_every_time_and_may_be_a_leaf():
    assert checks.batch().tolist() == checks.batch(requires_grad=True).tolist()
    assert checks.batch(requires_grad=True).requires_grad and isinstance(checks.batch(), minigrad.Tensor)


def test_the_picture_shows_each_gradient_complete_the_last_one_too():
    text = picture()
    assert [f"no. {number}</text>" in text for number in range(1, 9)] == [True] * 8
