"""Outer optimizers and fragments on arrays, without ranks: what the papers say, and what others have recorded."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigrad.distributed import average
from minigrad.distributed.average import EASGD, DiLoCo, Mean, PostLocalSGD, SlowMo, StreamingDiLoCo
from minigrad.distributed.average.fragments import Placed, Span, count_of, cut, due_at
from minigrad.distributed.average.policies import StepsMade
from minigrad.errors import ArgumentError
from tests.average import papers

RECORDED = json.loads((Path(__file__).parent / "diloco_trajectories.json").read_text())
OUTERS = [
    Mean(),
    DiLoCo(),
    DiLoCo(0.5, 0.5, nesterov=False),
    SlowMo(),
    StreamingDiLoCo(fragments=1, alpha=0.5),
    StreamingDiLoCo(fragments=1),
    EASGD(0.25),
]


def rounds_of(outer, problem, rounds):
    """The ranks' values after each round of inner steps: a loop of our own, of one fragment and without delay."""
    state, values = outer.start(problem.start), [problem.start for _ in problem.ranks]
    for _ in range(rounds):
        values = [problem.inner_loop(r, x) for r, x in zip(problem.ranks, values)]
        combined = [outer.combine(state, x, problem.mean(values)) for x in values]
        state, values = combined[0][0], [x for _, x in combined]
        yield values


@pytest.mark.parametrize(
    "outer, paper",
    [
        (DiLoCo(lr=0.7, momentum=0.9), lambda problem: papers.diloco(problem, 20, 0.7, 0.9)),
        (DiLoCo(0.4, 0.9, nesterov=False), lambda problem: papers.diloco(problem, 20, 0.4, 0.9, nesterov=False)),
        (SlowMo(lr=0.8, momentum=0.6), lambda problem: papers.slow_momentum(problem, 20, 0.8, 0.6)),
        (EASGD(alpha=0.3, beta=0.6), lambda problem: papers.elastic(problem, 20, 0.3, 0.6)),
        (DiLoCo(lr=1.0, momentum=0.0), lambda problem: rounds_of(Mean(), problem, 20)),
        (SlowMo(lr=1.0, momentum=0.0), lambda problem: rounds_of(Mean(), problem, 20)),
        (StreamingDiLoCo(lr=0.7, momentum=0.9, fragments=1), lambda problem: rounds_of(DiLoCo(), problem, 20)),
        (SlowMo(lr=0.8, momentum=0.6), lambda problem: rounds_of(DiLoCo(0.8, 0.6, nesterov=False), problem, 20)),
    ],
)
def test_is_what_the_paper_says(outer, paper):
    problem = papers.Problem()
    ours, theirs = list(rounds_of(outer, problem, 20)), list(paper(problem))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
    assert np.abs(theirs[0][0] - problem.start).max() > 0.05  # they do go somewhere


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda case: f"delay {case['delay']}, alpha {case['alpha']}")
def test_streaming_goes_as_was_recorded(case):
    names, setup = list(RECORDED["setup"]["parameters"]), RECORDED["setup"]
    outer = StreamingDiLoCo(2.0, 0.0, (("layers.0",), ("layers.1",)), case["delay"], case["alpha"])
    values = np.ones(2)  # the flat layout has the last one first
    fragments = cut(outer.fragments, [Placed(name, Span(0, 1 - i, 2 - i), 1) for i, name in enumerate(names)])
    places = [slice(span.start, span.stop) for (span,) in fragments]
    states, before = [outer.start(values[place]) for place in places], []
    for step in range(1, case["steps"] + 1):
        before.append(values)
        values = values - 2.0  # the inner step: rate 1, gradient 2
        due = due_at(step, setup["sync_every"], count_of(outer.fragments))
        if due is not None:
            place = places[due]
            sent = [*before, values][step - case["delay"]]  # of all ranks alike
            values = values.copy()
            states[due], values[place] = outer.combine(states[due], values[place], sent[place])
        if str(step) in case["global"]:
            assert [float(state["global"][0]) for state in states] == case["global"][str(step)]
    for name, place in zip(names, places):
        assert [float(each[place][0]) for each in before] == case[name]


@given(
    outer=st.sampled_from(OUTERS),
    samples=st.lists(st.integers(0, 50), min_size=1, max_size=4).filter(any),
    length=st.integers(1, 20),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_ranks_and_weights(outer, samples, length, seed):
    """Nothing is written into an argument; states are alike; float32 is float64 but for its rounding."""
    rng, found = np.random.default_rng(seed), {}
    drawn = rng.standard_normal((2, 1 + len(samples), length))
    for dtype in (np.float32, np.float64):
        start, *rest = drawn[0].astype(dtype)
        state = outer.start(start)
        for locals_ in (rest, drawn[1, 1:].astype(dtype)):
            average = np.average(np.asarray(locals_, np.float64), axis=0, weights=samples).astype(dtype)
            for array in (*locals_, average, start, *state.values()):
                array.flags.writeable = False
            combined = [outer.combine(state, local, average) for local in locals_]
            state, first = combined[0]
            for other, values in combined:
                assert not any(np.shares_memory(a, b) for a in other.values() for b in (*locals_, average))
                assert all(np.array_equal(other[name], state[name]) for name in state)
                assert not outer.makes_alike or np.array_equal(values, first)
                assert values.dtype == dtype and all(each.dtype == dtype for each in other.values())
        found[dtype] = [values for _, values in combined]
    np.testing.assert_allclose(found[np.float32], found[np.float64], rtol=0, atol=2e-5)


def test_post_local_is_the_policy_of_the_paper():
    problem, policy = papers.Problem(), PostLocalSGD(switch=7, k=4)
    state, since, values = policy.start(2), 0, [problem.start for _ in problem.ranks]
    for theirs in papers.post_local(problem, 40, 7, 4):
        values, since = [problem.inner_loop(r, x, steps=1) for r, x in zip(problem.ranks, values)], since + 1
        state, combines, reason = policy.decide(state, StepsMade(0, 2, since))
        if combines:
            average = problem.mean(values)
            values, since = [Mean().combine({}, x, average)[1] for x in values], 0
        assert bool(reason) == combines
        np.testing.assert_array_equal(values, theirs)


def test_every_outer_optimizer_is_tried_here():
    kinds = vars(average.outer).items()
    found = {name for name, kind in kinds if hasattr(kind, "combine") and name != "OuterOptimizer"}
    assert found == {type(each).__name__ for each in OUTERS} <= set(average.__all__)


def test_a_state_is_apart_from_the_values_that_it_began_with():
    for outer in OUTERS:
        values = np.ones(3)
        state = outer.start(values)
        values += 1
        assert all(float(each.max()) <= 1.0 for each in state.values())


def test_a_weight_of_zero_takes_nothing_over():
    """A rank whose own values are no numbers goes on from what the others have come to."""
    outer = StreamingDiLoCo(1.0, 0.0, fragments=1, alpha=0.0)
    _, values = outer.combine(outer.start(np.zeros(2)), np.full(2, np.nan), np.ones(2))
    assert values.tolist() == [1.0, 1.0]


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 60))
def test_each_fragment_has_its_step_of_a_period(fragments, each, periods):
    every = fragments * each
    due = [due_at(step, every, fragments) for step in range(periods * every, (periods + 1) * every + 1)]
    for i in range(fragments):
        assert due[every * (i + 1) // fragments] == i
    assert sum(found is not None for found in due[1:]) == fragments


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(1, 6), st.data())
def test_equal_cuts_hold_each_element_once(lengths, count, data):
    params, ends = [], [0, 0]
    for i, length in enumerate(lengths):
        buffer, padding = data.draw(st.integers(0, 1)) if i else 0, data.draw(st.integers(0, 3))
        params.append(Placed(f"p{i}", Span(buffer, ends[buffer], ends[buffer] + length + padding), length))
        ends[buffer] += length + padding
    if sum(lengths) < count:
        with pytest.raises(ArgumentError, match="at most one for each of"):
            cut(count, params)
        return
    found = cut(count, params)
    held = [{(s.buffer, i) for s in spans for i in range(s.start, s.stop)} for spans in found]
    assert sum(map(len, held)) == len(set().union(*held)) == sum(ends)
    real = {(s.buffer, i) for _, s, n in params for i in range(s.start, s.start + n)}
    sizes = [len(each & real) for each in held]
    assert max(sizes) - min(sizes) <= 1 <= min(sizes) and len(found) == count


def test_names_of_modules_hold_their_parameters():
    spans = {"head.b": Span(0, 0, 2), "head.w": Span(0, 2, 8), "body.10.w": Span(0, 8, 9)}
    spans["body.1.w"] = Span(1, 0, 4)
    params = [Placed(name, span, 1) for name, span in spans.items()]
    assert cut((("body.1", "head"), ("body.10",)), params) == [[Span(0, 0, 8), Span(1, 0, 4)], [Span(0, 8, 9)]]
