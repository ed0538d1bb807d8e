"""What is asked of a division of a batch, and of a balancer."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from fractions import Fraction
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from minigrad import nn
from minigrad.arguments import is_integer
from minigrad.backend.random import manual_seed
from minigrad.course.lesson import Student, expect
from minigrad.distributed import DDP, BalanceConfig, Balancer, Communicator, simulate
from minigrad.distributed.simulate import Cluster
from minigrad.tensor import Tensor
from minigrad.testing import check_balancer

MOST_OVER_BEST = 1.05
_BY_HAND = [
    (60, [3.0, 2.0, 1.0], [30, 20, 10], "these are whole"),
    (7, [5.0, 3.0, 1.0], [4, 2, 1], "exactly it is 3.89, 2.33 and 0.78: the first and the last were cut the most"),
    (10, [1.0, 1.0, 1.0], [4, 3, 3], "one sample is left, and all remainders are equal: the lowest rank has it"),
    (2, [1.0, 3.0], [0, 2], "exactly it is 0.5 and 1.5, equal remainders: the faster rank has the sample"),
    (2, [1.0, 1.0, 1.0, 1.0], [1, 1, 0, 0], "a batch may have fewer samples than there are ranks"),
    (0, [2.0, 1.0], [0, 0], "there is nothing to divide"),
]


def check_divide_batch(student: Student) -> str:
    """Cases by hand, the rules that every balancer should keep, and no part further off than a sample."""
    divide = student.divide_batch
    for batch, speeds, right, why in _BY_HAND:
        sizes = divide(batch, list(speeds))
        expect(list(sizes) == right, f"divide_batch({batch}, {speeds}): expected {right}, got {sizes!r}: {why}")
        whole = all(is_integer(size) for size in sizes)
        expect(whole, f"divide_batch({batch}, {speeds}): expected ints, got {sizes!r}: samples can't be cut")
    drawn = Random(15)
    for _ in range(200):
        speeds = [drawn.choice([1.0, drawn.uniform(0.1, 9.0)]) for _ in range(drawn.randint(1, 9))]
        batch = drawn.randint(0, 500)
        exact = [batch * Fraction(speed) / sum(map(Fraction, speeds)) for speed in speeds]
        sizes = divide(batch, list(speeds))
        off = max(abs(size - float(part)) for size, part in zip(sizes, exact))
        expect(
            off < 1.0 + 1e-9,
            f"divide_batch({batch}, {speeds}): expected each within one sample of its exact part "
            f"{[round(float(part), 2) for part in exact]}, got {sizes!r}: each error goes to the rank that made it, "
            "not all of them to one",
        )
    _check_rules(divide, 1)
    return f"{len(_BY_HAND)} divisions by hand and 200 drawn ones are right, and the rules of a balancer hold"


class UnequalCase(NamedTuple):
    """Ranks that a balancer has to do with.

    Attributes:
        name: What is special about them.
        judged: The steps that count.
        advice: What is likely to be wrong where it fails.
    """

    name: str
    cluster: Cluster
    batch_size: int
    judged: range
    advice: str


def cases() -> list[UnequalCase]:
    """All of them."""
    jitter = Cluster.of_speeds([4, 3, 2, 2, 1], jitter_fraction=0.03, seed=1)
    fixed = Cluster.of_speeds([3, 2, 1], fixed_s=0.1)
    slower = Cluster.of_speeds([3, 2, 1], jitter_fraction=0.02, seed=2).slow_down(0, 30, 2.0)
    hung = Cluster.of_speeds([1, 1, 1, 1]).slow_down(3, 10, 60.0).slow_down(3, 30, 1.0)
    return [
        UnequalCase(
            "speeds 3:2:1",
            Cluster.of_speeds([3, 2, 1]),
            600,
            range(20, 30),
            "a speed is samples over seconds: seconds alone say nothing, once shards differ",
        ),
        UnequalCase(
            "five ranks whose times vary by 3 %",
            jitter,
            600,
            range(20, 40),
            "decide on several steps: one of them may have been odd",
        ),
        UnequalCase(
            "speeds 3:2:1, and 100 ms that each step takes beside its samples",
            fixed,
            600,
            range(20, 40),
            "samples over seconds depend on how many samples there were: look again after each change",
        ),
        UnequalCase(
            "a rank that slows down by half in step 30",
            slower,
            600,
            range(50, 60),
            "what was measured long ago has to be forgotten",
        ),
        UnequalCase(
            "a rank that hangs in steps 10 to 29 and then is as fast as the others",
            hung,
            48,
            range(60, 70),
            "a rank without samples is never measured again: leave it one",
        ),
    ]


def check_choose_shards(student: Student) -> str:
    """Is a pure function with the balancer's rules; near the best on five clusters; and cures the idling of a run."""
    choose = student.choose_shards
    found = [(case, over_best(choose, case)) for case in cases()]
    for case, over in found:
        expect(
            over <= MOST_OVER_BEST,
            f"{case.name}, {case.batch_size} samples: expected steps {case.judged.start} to {case.judged.stop - 1} to "
            f"take at most {MOST_OVER_BEST} times as long as in the best division, got {over:.2f}: {case.advice}",
        )
    _check_rules(choose, 3)
    trace = simulate.run(train, Cluster.of_speeds([3, 2, 1]), choose, timeout_s=5.0)
    before, after = trace.idle_fraction(0, 1), trace.idle_fraction(8)
    expect(
        after <= 0.05,
        f"in a training with Balancer(comm, choose_shards): expected ranks idle for at most 5 % of their time, got "
        f"{after:.1%}",
    )
    worst = max(over for _, over in found)
    return (
        f"at most {worst:.3f} times the best step on {len(found)} clusters; in a training at speeds 3:2:1 idle time "
        f"went from {before:.1%} to {after:.1%}"
    )


def over_best(choose: Callable[..., Any], case: UnequalCase) -> float:
    """How many times as long as the best the judged steps take on average, chance aside.

    Raises:
        WrongError: what was chosen is no decision.
    """
    cluster, batch = case.cluster, case.batch_size
    state: Any = None
    sizes = [batch // cluster.world_size] * cluster.world_size
    taken = []
    for step in range(case.judged.stop):
        if step in case.judged:
            costs = [cost.at(step).time_s(n) for cost, n in zip(cluster.ranks, sizes) if n]
            taken.append(max(costs) / cluster.best_step_s(batch, step))
        seconds = [cluster.compute_s(rank, n, step) if n else 0.0 for rank, n in enumerate(sizes)]
        state, sizes = _decided(choose, case, step, state, list(zip(sizes, seconds)))
    return fmean(taken)


def _decided(
    choose: Callable[..., Any], case: UnequalCase, step: int, state: Any, readings: Sequence[tuple[int, float]]
) -> tuple[Any, list[int]]:
    told, again = (choose(copy.deepcopy(state), case.batch_size, list(readings)) for _ in range(2))
    where = f"choose_shards, {case.name}, after step {step}"
    expect(
        all(isinstance(each, (tuple, list)) and len(each) == 3 and isinstance(each[2], str) for each in (told, again)),
        f"{where}: expected (state, sizes, reason), with the reason as a text, got {told!r:.200}",
    )
    expect(
        all(isinstance(each[1], (tuple, list, np.ndarray)) for each in (told, again)),
        f"{where}: expected the samples of each rank in a list, got {told[1]!r:.200}",
    )
    expect(
        _survives_json(told[0]),
        f"{where}: expected a state that JSON gives back as it is, got {told[0]!r:.200}: ranks compare it as text, and "
        "a resumed run reads it from a file: use lists for tuples and texts as keys",
    )
    expect(
        (told[0], list(told[1]), told[2]) == (again[0], list(again[1]), again[2]),
        f"{where}: expected one decision on the same arguments, got {told!r:.200} and then {again!r:.200}: what is "
        "remembered belongs into the state, for every rank decides by itself",
    )
    sizes = list(told[1])
    expect(
        len(sizes) == len(readings) and all(is_integer(n) and n >= 0 for n in sizes) and sum(sizes) == case.batch_size,
        f"{where}: expected {len(readings)} whole numbers >= 0 of sum {case.batch_size}, got {told[1]!r:.200}: else "
        "samples are lost, or seen twice",
    )
    return json.loads(json.dumps(told[0])), [int(n) for n in sizes]


def _survives_json(state: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(state, allow_nan=False)) == state)
    except (TypeError, ValueError):
        return False


def _check_rules(balancer: Callable[..., Any], steps: int) -> None:
    try:
        check_balancer(balancer, steps=steps, min_ratio=0.0, max_ranks=6, max_batch=500, max_examples=15)
    except AssertionError as error:
        expect(False, str(error))


def train(comm: Communicator, choose: Callable[..., Any], steps: int = 12, first: int = 1) -> None:
    """A training of a small network whose batches a balancer divides.

    Args:
        first: After how many steps it decides for the first time; then after each.
    """
    manual_seed(0)
    model = nn.Linear(4, 1)
    balancer = Balancer(comm, choose, BalanceConfig(calibration_steps=first, interval_steps=1))
    ddp = DDP(model, balancer.comm)
    batch = Tensor(np.random.default_rng(15).standard_normal((60, 4)).astype(np.float32))
    for _ in range(steps):
        with balancer.step(len(batch)) as rows:
            ddp(batch[rows]).square().mean().backward()
