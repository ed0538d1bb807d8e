"""The table of options: each combination runs, or is refused where the run is made, for the reason in the table."""

import itertools
from dataclasses import dataclass, fields

import pytest

from minigrad import optim
from minigrad.distributed.average import Async, Cadence, DiLoCo, EveryK, Policy, Sync, TrendGuard
from minigrad.distributed.simulate import Cluster
from minigrad.errors import ArgumentError
from minigrad.train import RunConfig
from minigrad.train.options import RULES, Combination, refused
from minigrad.train.run import start as started
from tests.train.runs import MAKERS, make_plain, start


@dataclass(frozen=True)
class Doubling(Policy):
    """One of a user's own, of which nobody knows when it combines."""

    def start(self, world_size):
        return 1

    def decide(self, state, made):
        return (2 * state, True, "") if made.batches >= state else (state, False, "")


POLICIES = {"sync": Sync(), "fixed": EveryK(2), "cadence": Cadence(), "async": Async(1, k=1), "own": Doubling()}
SWITCHES = {
    "outer": {"outer": DiLoCo(0.7)},
    "guard": {"guard": TrendGuard()},
    "shares": {"shares": (0.75, 0.25)},
    "overshoot": {"max_overshoot": 2},
    "batch_diff": {"max_batch_diff": 3},
    "ddp_options": {"ddp_options": {"bucket_cap_mb": 1}},
    "average_options": {"average_options": {"optimizer_state": "average"}},
    "checks_replicas": {"check_replicas_every": 1},
}
CHOICES = {
    "policy": tuple(POLICIES),
    "average": ("gradients", "parameters"),
    "dispatch": ("static", "proportional", "progressive"),
    "on_failure": ("stop", "shrink"),
}
BESIDE = (  # what goes with everything, taken in turns
    {"schedule": optim.schedule.StepDecay(2, gamma=0.5)},
    {"max_grad_norm": 0.5, "lr_scale": 2.0},
    {"scaler": optim.GradScaler(4.0), "autocast": "bfloat16"},
    {"accumulate": 2, "shuffle": False},
)
ALL = [
    Combination(*chosen, "cluster", *switches)
    for chosen in itertools.product(*CHOICES.values())
    for switches in itertools.product((False, True), repeat=len(SWITCHES))
]
RUNNING = [combination for combination in ALL if not refused(combination)]


def options_of(combination):
    chosen = {name: getattr(combination, name) for name in CHOICES}
    given = [SWITCHES[name] for name in SWITCHES if getattr(combination, name)]
    return {**chosen, "policy": POLICIES[combination.policy], **{k: v for each in given for k, v in each.items()}}


def config_of(combination, **more):
    options = {"batch_size": 4, "epochs": 2, "seed": 3, "cluster": Cluster.of_speeds([2, 1])}
    return RunConfig(**MAKERS, **options, **options_of(combination), **more)


def test_the_kinds_are_those_of_the_options():
    """What the table is asked is what was given."""
    assert {field.name for field in fields(Combination)} == {*CHOICES, *SWITCHES, "place"}
    for combination in RUNNING[::7]:
        assert config_of(combination).combination == combination


def test_what_the_table_refuses_is_refused_where_it_is_made():
    for combination in [each for each in ALL if refused(each)][::41]:
        with pytest.raises(ArgumentError) as error:
            config_of(combination)
        assert refused(combination) in str(error.value)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.expected[:40])
def test_each_rule_refuses_what_no_other_one_does(rule):
    others = [other for other in RULES if other is not rule]
    assert any(rule.refuses(each) and not any(other.refuses(each) for other in others) for each in ALL)


@pytest.mark.parametrize("engine", ["in step", "coordinated"])
def test_all_others_run(engine):
    """Three steps of each, in a simulation; and both ranks come to what they should: finite values."""
    chosen = [combination for combination in RUNNING if combination.engine == engine]
    assert len(chosen) > 50
    for number, combination in enumerate(chosen):
        more = BESIDE[number % len(BESIDE)]
        options = {"batch_size": 4, "epochs": 2, "max_steps": 3, "cluster": Cluster.of_speeds([2, 1])}
        try:
            run = start(**{**options, **options_of(combination), **more, "make_model": make_plain})
            state = run.join()
        except Exception as error:
            raise AssertionError(f"{combination} with {more}") from error
        assert all(bool(x.isfinite().all()) for x in state.params.values()), combination
        assert run.history and all(metrics.loss > 0.0 for metrics in run.history), combination


@pytest.mark.parametrize("keeps", [False, True])
def test_memory_is_kept_where_that_is_asked_for(monkeypatch, keeps):
    asked = []
    monkeypatch.setattr(started, "keep_freed_memory", lambda: asked.append(True) or True)
    start(ranks=1, batch_size=4, epochs=1, keep_memory=keeps).join()
    assert asked == [True] * keeps


def test_memory_is_not_kept_in_silence_where_it_can_not_be(monkeypatch):
    monkeypatch.setattr(started, "keep_freed_memory", lambda: False)
    with pytest.raises(ArgumentError, match="expected keep_memory=True where the C library is glibc"):
        start(ranks=1, batch_size=4, epochs=1, keep_memory=True)
    with pytest.raises(ArgumentError, match="expected keep_memory to be True or False, got 1"):
        start(ranks=1, batch_size=4, epochs=1, keep_memory=1)
