"""A run that goes on from its checkpoint ends in the bits of one that nobody stopped, whatever has a state in it."""

import json
import re
import shutil

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.data import ArrayDataset
from minigrad.distributed.average import DiLoCo, EASGD, EveryK, Cadence, SlowMo, StreamingDiLoCo, TrendGuard
from minigrad.distributed.balance import CadenceConfig
from minigrad.distributed.simulate import Cluster
from minigrad.errors import ArgumentError, StateDictError
from minigrad.nn.serialize import load_metadata
from minigrad.nn.bundle import KEY
from minigrad.train import Checkpoint, Trainer, record_scalar
from tests.distributed.resumed import exact

DATA = np.random.default_rng(0).standard_normal((44, 4)).astype(np.float32)


def normed(device):
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 1)).to(device)


def plain(device):
    """Of batches of one sample too."""
    return nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.Linear(6, 1)).to(device)


def train_fn(model, batch):
    x, target = batch
    minigrad.rand(1 + minigrad.get_rng_state()["noise_key"])  # ranks come to different places of their streams
    loss = nn.functional.mse_loss(model(x), target)
    record_scalar("half", 0.5 * loss.detach())
    return loss


class Best:
    """A callback with a state."""

    def __init__(self):
        self.loss, self.begun = 9.0, []

    def before_epoch(self, worker):
        self.begun.append(worker.epoch)

    def after_epoch(self, metrics, worker):
        self.loss = min(self.loss, metrics.loss)

    def state_dict(self):
        return {"loss": self.loss}

    def load_state_dict(self, state):
        self.loss = state["loss"]


def start(checkpoint, callbacks=(), train_fn=train_fn, **options):
    options = {"ranks": 2, "batch_size": 4, "epochs": 2, "seed": 3, "progress": False, **options}
    data = ArrayDataset(DATA, DATA[:, :1].copy())
    make = options.pop("optimizer", lambda params: optim.Adam(params, lr=0.01))
    given = [checkpoint, *(callbacks or [Best()])]
    return Trainer.start(options.pop("model", normed), make, train_fn, data, callbacks=given, **options)


def left(run, checkpoint):
    """All that is left behind by a run, without seconds: what it gives, and its last checkpoint, of each rank."""
    state = run.join()
    told = {f"{n}": each for n, each in enumerate(exact(minigrad.load(checkpoint.latest(), every_rank=True)))}
    seconds = r"""["'](train_s|epoch_s|throughput)["']: [-.e0-9]+"""
    states = {f"{rank} {name}": re.sub(seconds, "", repr(x)) for rank, of in told.items() for name, x in of.items()}
    for name in states:  # what a clock that began later told: the last digit of a difference may be another one
        if name.endswith(("rounds", "averager")):
            states[name] = re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.6f}", states[name])
    return {"given": exact({**state.params, **state.buffers}), **states}


def only(folder, number, target):
    """A folder that has the checkpoints up to this one, as if the run had been killed then."""
    target.mkdir()
    for path in sorted(folder.iterdir()):
        if int(re.findall(r"\d+", path.name)[0]) <= number:
            shutil.copy(path, target)
    return target


CLUSTER = {"ranks": None, "cluster": Cluster.of_speeds([2, 1]), "epochs": 3, "model": plain}  # with seconds by formula
PARAMETERS = {"average": "parameters", "optimizer": lambda params: optim.SGD(params, lr=0.05, momentum=0.9)}
CASES = {
    "gradients": {},
    "a schedule, a scaler, clipping and micro-batches": {
        "schedule": optim.StepDecay(3, gamma=0.5),
        "scaler": optim.GradScaler(2.0**4, growth_interval=3),
        "autocast": "float16",
        "max_grad_norm": 0.5,
        "accumulate": 2,
        "model": plain,
    },
    "every second batch, by shares": {
        "policy": EveryK(2), "shares": (0.75, 0.25), "batch_size": 2, "model": plain
    },
    "a cadence": {**CLUSTER, "policy": Cadence(CadenceConfig(anchor=1, max_anchor=3))},
    "parts by speed": {**CLUSTER, "policy": Cadence(CadenceConfig(anchor=1)), "dispatch": "proportional"},
    "parameters": {**PARAMETERS, "policy": EveryK(2)},
    "a cadence of parameters under a guard": {
        **PARAMETERS, **CLUSTER, "policy": Cadence(CadenceConfig(anchor=1)), "guard": TrendGuard(0.01)
    },
    "SlowMo": {**PARAMETERS, "policy": EveryK(2), "outer": SlowMo(1.0, 0.5)},
    "DiLoCo": {**PARAMETERS, "policy": EveryK(2), "outer": DiLoCo(0.7)},
    "streamed DiLoCo": {**PARAMETERS, "policy": EveryK(4), "outer": StreamingDiLoCo(0.7, 0.9, 2, 1, 0.5)},
    "EASGD": {**PARAMETERS, "outer": EASGD(0.4), "ranks": 3},
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(tmp_path, case):
    options = CASES[case]
    whole = Checkpoint(tmp_path / "whole", every=1, keep=None, on="step")
    run = start(whole, **options)
    expected = left(run, whole)
    numbers = [int(re.findall(r"\d+", path.name)[0]) for path in sorted((tmp_path / "whole").iterdir())]
    inside = [n for n in numbers if minigrad.load(tmp_path / "whole" / f"step-{n:010}.safetensors")["run"]["inside"]]
    assert inside[0] <= 3 and len(inside) >= 2
    for number in {inside[0], inside[-1], numbers[len(numbers) // 2]}:
        rest = Checkpoint(only(tmp_path / "whole", number, tmp_path / f"{number}"), every=1, keep=None, on="step")
        again = start(rest, resume=True, **options)
        found = left(again, rest)
        assert [name for name in expected if found[name] != expected[name]] == []
        assert [each.loss for each in again.history] == [each.loss for each in run.history]
        assert len([*again.metrics()]) < len(run.history) or number < inside[1]


class Broken(Exception):
    """What a rank dies of."""


@pytest.mark.parametrize("background", [False, True])
def test_a_run_that_failed_goes_on_behind_its_last_checkpoint(tmp_path, background):
    def checkpoint(folder, every=2):
        return Checkpoint(tmp_path / folder, every=every, on="step", background=background)

    def failing(model, batch):
        steps.append(minigrad.get_rng_state()["noise_key"])
        if steps.count(1) == 9:
            raise Broken
        return train_fn(model, batch)

    steps = []
    with pytest.raises(Broken):
        start(checkpoint("run"), train_fn=failing).join()
    assert checkpoint("run").latest().name == "step-0000000008.safetensors"
    whole, again = checkpoint("whole"), checkpoint("run")
    assert left(start(again, resume=True), again) == left(start(whole), whole)


def test_a_folder_with_checkpoints_is_gone_on_with_or_refused(tmp_path):
    first = start(Checkpoint(tmp_path), epochs=1)
    first.join()
    with pytest.raises(ArgumentError, match=r"folder without checkpoints, got .*epoch-0000000001.*: write resume=True"):
        start(Checkpoint(tmp_path)).join()
    run = start(Checkpoint(tmp_path), resume=True, epochs=3)  # more than there were to be
    assert [metrics.epoch for metrics in run.metrics()] == [1, 2] and len(run.history) == 3
    over = start(Checkpoint(tmp_path), resume=True, epochs=3)
    assert exact(over.join().params) == exact(run.join().params) and not [*over.metrics()]


def test_a_checkpoint_of_a_newer_format_is_refused_with_both_versions(tmp_path):
    start(Checkpoint(tmp_path), epochs=1).join()
    [path] = tmp_path.iterdir()
    texts = load_metadata(path)
    texts[KEY] = json.dumps({**json.loads(texts[KEY]), "version": 7})
    nn.save_file(nn.load_file(path), path, texts)
    with pytest.raises(StateDictError, match="a file of version 1 or older, got .* of version 7"):
        start(Checkpoint(tmp_path), resume=True).join()


def test_what_can_not_be_resumed_is_refused():
    with pytest.raises(ArgumentError, match="expected a Checkpoint among callbacks with resume=True, got none"):
        start(Best(), resume=True)
    with pytest.raises(ArgumentError, match="expected at most one Checkpoint among callbacks, got 2"):
        start(Checkpoint("a"), callbacks=[Checkpoint("b")])


def test_a_callback_sees_each_epoch_begin_once(tmp_path):
    best, again = Best(), Best()
    start(Checkpoint(tmp_path, every=3, on="step"), callbacks=[best], max_steps=8).join()
    start(Checkpoint(tmp_path, every=3, on="step"), callbacks=[again], resume=True).join()
    assert best.begun == [0, 0, 1, 1] and again.begun == [] and again.loss <= best.loss
