"""A run that goes on from its checkpoint ends in the bits of one that nobody stopped, whatever has a state in it."""

import contextvars
import errno
import json
import os
import re
import shutil
import subprocess
import sys
from tempfile import TemporaryDirectory

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.data import SampleLedger
from minigrad.data.ledger import joined
from minigrad.distributed.average import EASGD, Async, Cadence, DiLoCo, EveryK, SlowMo, StreamingDiLoCo, TrendGuard
from minigrad.distributed.balance import CadenceConfig
from minigrad.distributed.simulate import Cluster
from minigrad.errors import ArgumentError, StateDictError
from minigrad.nn.bundle import KEY
from minigrad.nn.serialize import load_metadata
from minigrad.train import Checkpoint
from minigrad.train.keeping import name_of
from tests.distributed.resumed import exact
from tests.examples.test_scripts import run_script
from tests.train.resumable import DATA, Best, left, plain, start, train_fn

pytestmark = pytest.mark.filterwarnings("ignore:.*is left behind:RuntimeWarning")


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
    "DiLoCo": {**PARAMETERS, "policy": EveryK(2), "outer": DiLoCo(0.3, 0.5)},
    "streamed DiLoCo": {**PARAMETERS, "policy": EveryK(4), "outer": StreamingDiLoCo(0.3, 0.5, 2, 1, 0.5)},
    "EASGD": {**PARAMETERS, "outer": EASGD(0.4), "ranks": 3},
    "as ranks have time": {**CLUSTER, "dispatch": "progressive"},
    "parameters of those who live": {**PARAMETERS, "policy": EveryK(2), "on_failure": "shrink"},
}
ASYNC = {**PARAMETERS, **CLUSTER, "policy": Async(bound=2)}  # what ranks are ahead by is made again


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


@pytest.mark.parametrize("case", ["gradients", "a cadence", "streamed DiLoCo", "EASGD", "as ranks have time", "ASYNC"])
def test_on_another_number_of_ranks_each_sample_counts_once_an_epoch(tmp_path, case):
    """Three, then two or one, then four; what ranks had stepped by and not combined is dealt again."""
    options = {"epochs": 3, "batch_size": 2, "model": plain, **{**CASES, "ASYNC": ASYNC}[case]}
    is_simulated = "cluster" in options

    def ranks(number):
        place = {"cluster": Cluster.of_speeds([2, 1, 1, 2][:number])} if is_simulated else {"ranks": number}
        return {**options, **place}

    first = Checkpoint(tmp_path, every=1, keep=None, on="step")
    start(first, **ranks(3), max_steps=3).join()
    start(first, **ranks(1 if case == "gradients" else 2), max_steps=7, resume=True).join()
    run = start(first, **ranks(4), resume=True)
    state, ledger = run.join(), SampleLedger(len(DATA))
    saved = minigrad.load(first.latest(), every_rank=True)
    assert len(saved) == 4
    ledger.load_state_dict(joined([each["ledger"] for each in saved]))
    assert [str(ledger.audit(epoch)) for epoch in range(3)] == [f"epoch {n} of 44 samples: each once" for n in range(3)]
    assert all(np.isfinite(param.numpy()).all() for param in state.params.values())
    assert [sum(part.samples for part in each.per_rank) for each in run.history] == [44.0] * 3


def test_what_ranks_had_stepped_by_and_not_combined_is_dealt_again_to_others(tmp_path):
    """A fragment of streamed DiLoCo has landed, the other one is still to be sent."""
    options = {**CASES["streamed DiLoCo"], "model": plain}
    start(Checkpoint(tmp_path / "whole", keep=None, on="step"), ranks=3, **options).join()
    checkpoint = Checkpoint(only(tmp_path / "whole", 1, tmp_path / "rest"), on="step")
    assert all(each["ledger"]["waiting"][0][0] for each in minigrad.load(checkpoint.latest(), every_rank=True))
    start(checkpoint, ranks=2, resume=True, **options).join()
    ledger = SampleLedger(len(DATA))
    saved = minigrad.load(checkpoint.latest(), every_rank=True)
    ledger.load_state_dict(joined([each["ledger"] for each in saved]))
    assert ledger.audit(0).is_exact and ledger.audit(1).is_exact


def test_on_another_number_of_ranks_noise_goes_on(tmp_path):
    def telling(model, batch):
        told.append(minigrad.get_rng_state())
        return train_fn(model, batch)

    start(Checkpoint(tmp_path, on="step"), max_steps=2).join()
    saved, told = minigrad.load(Checkpoint(tmp_path, on="step").latest()), []
    start(Checkpoint(tmp_path, on="step"), train_fn=telling, ranks=1, max_steps=3, resume=True).join()
    assert exact(told[0]) == exact(saved["run"]["streams"])


def test_a_checkpoint_of_ranks_that_are_ahead_is_of_the_commit_and_changes_no_bit(tmp_path):
    options = {**ASYNC, "optimizer": lambda params: optim.Adam(params, lr=0.01)}
    whole = start(Checkpoint(tmp_path, keep=None, on="step"), **options).join()
    assert exact(whole.params) == exact(start(Checkpoint(tmp_path / "none", every=None), **options).join().params)
    for path in tmp_path.glob("*.safetensors"):
        first, second = minigrad.load(path, every_rank=True)
        assert exact(first["model"]) == exact(second["model"])
        for rank, each in enumerate((first, second)):
            entries = [entry for _, of_epoch in each["ledger"]["entries"] for entry in of_epoch if entry[2] == rank]
            rounds = {step + i for step, steps, *_ in entries for i in range(steps)}
            assert each["optimizer"]["state"][0]["step"] == len(rounds)


def test_on_another_number_of_ranks_all_begin_from_what_the_others_shared(tmp_path):
    """Elastic averaging leaves each rank values of its own, and a center."""

    def kept(device):
        models.append(plain(device))
        return models[-1]

    options, models = {**PARAMETERS, "outer": EASGD(0.4), "model": kept, "max_steps": 3}, []
    center = exact(start(Checkpoint(tmp_path, on="step"), ranks=3, **options).join().params)
    models.clear()
    run = start(Checkpoint(tmp_path, on="step"), ranks=2, resume=True, **options)
    assert exact(run.join().params) == center and [exact(model.state_dict()) for model in models] == [center, center]


@pytest.mark.parametrize("on_failure", ["stop", "shrink"])
def test_figures_on_fewer_ranks_count_what_the_others_gave(tmp_path, on_failure):
    """The loss is that of all samples alike where no step changes it."""

    def mean(model, batch):
        return (model(batch[0]) * 0.0).mean() + batch[1].mean()

    options = {"model": plain, "on_failure": on_failure, "train_fn": mean, "epochs": 1}
    start(Checkpoint(tmp_path, on="step"), ranks=3, max_steps=2, **options).join()
    run = start(Checkpoint(tmp_path, on="step"), ranks=1, resume=True, **options)
    [metrics] = run.metrics()
    assert [part.samples for part in metrics.per_rank] == [44.0]
    assert metrics.loss == pytest.approx(float(DATA[:, 0].mean()), abs=1e-6)


class Broken(Exception):
    """What a rank dies of."""


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("where", ["before the model", "behind it", "in backward"])
def test_where_a_rank_raises_all_end_behind_the_last_step(tmp_path, where, background):
    """A checkpoint of the step before, unless the others wait for gradients that have begun to come."""

    def checkpoint(folder):
        return Checkpoint(tmp_path / folder, every=3, on="step", background=background)

    def failing(model, batch):
        rank = minigrad.get_rng_state()["noise_key"]
        steps.append(rank)
        if rank == 0 or steps.count(1) != 9:
            return train_fn(model, batch)
        loss = None if where == "before the model" else train_fn(model, batch)
        if where == "in backward":
            loss.register_hook(fail)
            return loss
        raise Broken("no")

    def fail(gradient):
        raise Broken("no")

    steps = []
    run = start(checkpoint("run"), train_fn=failing)
    with pytest.raises(Broken):
        run.join()
    assert checkpoint("run").latest().name == f"step-{6 if where == 'in backward' else 8:010}.safetensors"
    whole, again = checkpoint("whole"), checkpoint("run")
    assert left(start(again, resume=True), again) == left(start(whole), whole)


@pytest.mark.parametrize("on_failure", ["stop", "shrink"])
def test_ranks_that_are_not_in_step_write_the_last_commit(tmp_path, on_failure):
    """Rank 0, which writes, dies: all end behind a checkpoint, or the next one writes on; a resume has all again."""

    def failing(model, batch):
        rank = minigrad.get_rng_state()["noise_key"]
        steps.append(rank)
        if rank == 0 and steps.count(0) == 9:
            raise Broken("no")
        return train_fn(model, batch)

    def checkpoint(every):
        return Checkpoint(tmp_path, every=every, on="step")

    options, steps = {"dispatch": "progressive", "on_failure": on_failure, "model": plain, "batch_size": 2}, []
    run = start(checkpoint(3), train_fn=failing, **options)
    if on_failure == "stop":
        with pytest.raises(Broken):
            run.join()
    else:
        run.join()
    path = checkpoint(3).latest()
    told = [each["run"]["committed"] for each in minigrad.load(path, every_rank=True)]
    assert len({*told}) == 1 and path.name == f"step-{told[0]:010}.safetensors"
    assert len(told) == 1 and (told[0] >= 8 if on_failure == "stop" else told[0] > 12)
    start(checkpoint(1), resume=True, **{**options, "epochs": 3}).join()
    ledger = SampleLedger(len(DATA))
    ledger.load_state_dict(joined([each["ledger"] for each in minigrad.load(checkpoint(1).latest(), every_rank=True)]))
    assert all(ledger.audit(epoch).is_exact for epoch in range(3))


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("on_failure", ["stop", "shrink"])
@pytest.mark.parametrize("failing", [2, 6])
def test_a_disk_that_fails_ends_a_run_or_is_warned_of_and_costs_no_rank(
    tmp_path, monkeypatch, failing, on_failure, background
):
    """At the second checkpoint of six, and at the last, whose error in the background comes at the very end."""

    def replace(source, target):
        if target.endswith(name_of("step", failing)):
            raise OSError(errno.EIO, "no")
        true(source, target)

    true = os.replace
    monkeypatch.setattr(os, "replace", replace)
    checkpoint = Checkpoint(tmp_path, on="step", background=background)
    options = {"dispatch": "progressive", "on_failure": on_failure, "model": plain, "epochs": 1}
    run = start(checkpoint, cluster=Cluster.of_speeds([1, 1]), **{**options, "ranks": None})
    if on_failure == "stop" or (background and failing == 6):
        with pytest.raises(OSError, match="no"):
            run.join()
    else:
        with pytest.warns(RuntimeWarning, match="Trainer.start: expected to write a checkpoint, got .*no"):
            run.join()
        assert run.history[0].shares == (0.5, 0.5)
        assert checkpoint.latest().name == name_of("step", {2: 6, 6: 5}[failing])


def test_a_disk_that_fails_behind_an_error_is_its_context(tmp_path, monkeypatch):
    def replace(source, target):
        raise OSError(errno.EIO, "no")

    def failing(model, batch):
        steps.append(minigrad.get_rng_state()["noise_key"])
        if steps.count(0) == 3:
            raise Broken("first")
        return train_fn(model, batch)

    steps = []
    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(Broken, match="first") as raised:
        start(Checkpoint(tmp_path, every=9, on="step"), train_fn=failing).join()
    assert isinstance(raised.value.__context__, OSError)


def test_a_folder_with_checkpoints_is_gone_on_with_or_refused(tmp_path):
    first = start(Checkpoint(tmp_path), epochs=1)
    first.join()
    with pytest.raises(ArgumentError, match="folder without checkpoints, got .* some: write resume=True"):
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


def test_a_run_that_stops_where_an_epoch_ends_is_gone_on_with_from_there(tmp_path):
    start(Checkpoint(tmp_path, every=4, on="step"), max_steps=6).join()
    assert Checkpoint(tmp_path, on="step").latest().name == name_of("step", 6)
    run = start(Checkpoint(tmp_path, every=4, on="step"), max_steps=6, resume=True)
    run.join()
    assert len(run.history) == 1


def test_what_can_not_be_resumed_is_refused():
    with pytest.raises(ArgumentError, match="expected a Checkpoint among callbacks with resume=True, got none"):
        start(Best(), resume=True)
    with pytest.raises(ArgumentError, match="expected at most one Checkpoint among callbacks, got 2"):
        start(Checkpoint("a"), callbacks=[Checkpoint("b")])


@pytest.mark.parametrize("on_failure", ["stop", "shrink"])
def test_a_callback_sees_each_epoch_begin_once(tmp_path, on_failure):
    best, again, options = Best(), Best(), {"on_failure": on_failure}
    start(Checkpoint(tmp_path, every=3, on="step"), callbacks=[best], max_steps=8, **options).join()
    start(Checkpoint(tmp_path, every=3, on="step"), callbacks=[again], resume=True, **options).join()
    assert best.begun == [0, 0, 1, 1] and again.begun == [] and again.loss <= best.loss


def test_a_writer_that_is_killed_for_good_leaves_a_run_to_go_on_with():
    """By SIGKILL at five moments of writing the third checkpoint of a run, each of which is resumed."""
    with TemporaryDirectory() as folder:
        script = [sys.executable, "-m", "tests.train.killed_runs", folder]
        done = subprocess.run(script, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    whole, moments = json.loads(done.stdout)
    assert len(moments) == 5
    for moment, (first, bits) in moments.items():
        assert first == (6 if moment in ("the name not on the disk", "one too many") else 4) and bits == whole, moment


def test_a_process_that_is_killed_takes_no_step_with_it(tmp_path):
    """Under the launcher: the run goes on with the bits of threads that nobody has killed."""

    def script(*options):
        command = [sys.executable, "-m", "minigrad.distributed.launch", "-n", "2", "examples/11_resume.py"]
        command += ["--train", str(tmp_path), *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=50)

    told = script("--kill-at", "17").stderr
    assert "rank 1 failed first: it was ended by SIGKILL" in told
    names = [path.name for path in sorted(tmp_path.iterdir())]
    assert names == [f"step-{number:010}.safetensors" for number in (10, 15)]
    bits, other = re.findall(r"\b[0-9a-f]{16}\b", script().stdout)
    assert bits == other and f"ends in {bits}" in run_script("11_resume.py", "--smoke").splitlines()[0]


@pytest.mark.parametrize("options", [{}, {"on_failure": "shrink"}, {"dispatch": "progressive"}])
def test_a_resumed_run_has_the_seed_that_it_had(tmp_path, options):
    """Where none is said each process draws another one; by another, other samples are at the places left."""

    def counting(model, batch):
        seen.extend(map(float, batch[0].numpy()[:, 0]))
        return train_fn(model, batch)

    seen = []
    for more in ({"max_steps": 3}, {"resume": True}):
        given = {"seed": None, "epochs": 1, "model": plain, **options, **more}
        run = contextvars.Context().run(start, Checkpoint(tmp_path, on="step"), train_fn=counting, **given)
        run.join()
    assert {*seen} == {*map(float, DATA[:, 0])} and len(seen) <= 44 + 8  # a round may be begun where a run stops


SCALED = {"scaler": optim.GradScaler(4.0), "schedule": optim.StepDecay(3, gamma=0.5)}
OTHERS = {
    "seed": ({"seed": 4}, ArgumentError, "expected seed=3, which the run has that is resumed, .* got 4"),
    "scale": ({"scaler": optim.GradScaler(8.0)}, ArgumentError, "expected scaler={'scale': 4.0.* got {'scale': 8.0"),
    "decay": (
        {"optimizer": lambda params: optim.Adam(params, weight_decay=0.1)}, ArgumentError, "expected optimizer=Adam "
    ),
    "no schedule": ({"schedule": None}, StateDictError, "schedule.*: resume with the options that the run had"),
    "another callback": ({"callbacks": [Best(), Best()]}, StateDictError, "Best 2"),
    "engine": ({"on_failure": "shrink"}, (ArgumentError, StateDictError), "resume with the "),
    "batch": ({"batch_size": 2}, StateDictError, "expected a state with batch_size 2, got 4"),
}


@pytest.mark.parametrize("on_failure", ["stop", "shrink"])
@pytest.mark.parametrize("ranks", [2, 1])
def test_options_that_would_do_nothing_are_refused(tmp_path, ranks, on_failure):
    options = {**SCALED, "model": plain, "on_failure": on_failure}
    start(Checkpoint(tmp_path, on="step"), max_steps=2, **options).join()
    for other, error, words in OTHERS.values():
        if other.get("on_failure") == on_failure:
            other = {"on_failure": "stop"}
        with pytest.raises(error, match=words):
            start(Checkpoint(tmp_path, on="step"), **{**options, "ranks": ranks, **other}, resume=True).join()


@pytest.mark.parametrize("on_failure", ["stop", "shrink"])
@pytest.mark.parametrize("schedule", [None, optim.StepDecay(100, gamma=0.5)])
def test_rates_follow_the_ranks_and_what_makes_them(tmp_path, schedule, on_failure):
    """0.01 of each of two ranks, halved by a callback; then 0.03 of each of three: nine halves of what it was."""
    options = {"schedule": schedule, "model": plain, "on_failure": on_failure, "lr_scale": float}
    rates = []

    def halve(metrics, worker):
        worker.scale_lr(0.5)
        rates.append(worker.optimizer.param_groups[0]["lr"])

    start(Checkpoint(tmp_path), callbacks=[halve], epochs=1, **options).join()
    more = {**options, "ranks": 3, "optimizer": lambda params: optim.Adam(params, lr=0.03)}
    start(Checkpoint(tmp_path), callbacks=[halve], epochs=2, resume=True, **more).join()
    assert rates == pytest.approx([0.01] * 2 + [0.0225] * 3)


def test_a_checkpoint_that_no_run_has_written_is_refused(tmp_path):
    Checkpoint(tmp_path).save({"model": plain("cpu")}, 1)
    for options in ({}, {"ranks": 1}, {"on_failure": "shrink"}):
        with pytest.raises(StateDictError):
            start(Checkpoint(tmp_path), resume=True, **options).join()
