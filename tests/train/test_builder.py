"""`Trainer.builder` fills the configuration of `Trainer.start`, with the names and defaults of flodl's builder."""

import numpy as np
import pytest

from minigrad import Trainer, nn, optim
from minigrad.data import ArrayDataset
from minigrad.distributed import CadenceConfig, Ddp, SoloCommunicator
from minigrad.distributed.average import EASGD, Async, Cadence, GrowthGuard, Sync, TrendGuard
from minigrad.distributed.simulate import Cluster
from minigrad.errors import AbsentNameError, ArgumentError
from minigrad.train import DdpBuilder, Run, RunConfig

DATASET, LARGER = (ArrayDataset(np.arange(2.0 * n).reshape(n, 2) / (2 * n)) for n in (6, 200))


def make_model(device):
    return nn.Linear(2, 1).to(device)


def make_optimizer(params):
    return optim.SGD(params, lr=0.125)


def train_fn(model, batch):
    return (model(batch[0].float()) - 1).square().mean()


FUNCTIONS = (make_model, make_optimizer, train_fn)
PLAIN = {"batch_size": 1, "epochs": 2, "seed": 3}


def built(**options):
    return Trainer.builder(*FUNCTIONS).dataset(DATASET).batch_size(1).num_epochs(2).options(seed=3, **options)


def said(**options):
    """What a configuration is by flodl's defaults, and these options."""
    usual = {"policy": Cadence(), "average": "parameters", "dispatch": "proportional", "guard": TrendGuard()}
    return RunConfig(*FUNCTIONS, DATASET, **{**PLAIN, **usual, **options})


NONE = {"guard": None, "dispatch": "static"}
CHAINS = {
    "defaults": (lambda b: b, said()),
    "sync": (lambda b: b.policy("sync"), said(policy=Sync(), **NONE)),
    "a policy": (lambda b: b.policy(Async(2)), said(policy=Async(2), **NONE)),
    "cpu": (lambda b: b.backend("cpu").policy("cadence"), said()),
    "El Che": (lambda b: b.overhead_target(0.05).anchor(8).min_anchor(4).max_anchor(50).max_batch_diff(3),
               said(policy=Cadence(CadenceConfig(8, 0.05, 4, 50, 3)))),
    "a threshold": (lambda b: b.divergence_threshold(0.2), said(guard=TrendGuard(threshold=0.2))),
    "another guard": (lambda b: b.convergence_guard(GrowthGuard()), said(guard=GrowthGuard())),
    "no guard": (lambda b: b.no_divergence_guard(), said(guard=None)),
    "progressive": (lambda b: b.progressive_dispatch(True).max_overshoot(4).max_batch_diff(2),
                    said(guard=None, dispatch="progressive", max_overshoot=4, max_batch_diff=2)),
    "shares": (lambda b: b.partition_ratios([0.75, 0.25]), said(shares=[0.75, 0.25], dispatch="static")),
    "clipping": (lambda b: b.max_grad_norm(1.0).snapshot_timeout_secs(5), said(max_grad_norm=1.0, timeout_s=5.0)),
    "no factor of rates": (lambda b: b.lr_scale_ratio(0.0), said()),
    "EASGD": (lambda b: b.easgd_alpha(0.5), said(outer=EASGD(0.5))),
    "gradients": (lambda b: b.options(average="gradients"), said(average="gradients", guard=None)),
    "other names": (lambda b: b.options(dispatch="static", ranks=2), said(dispatch="static", ranks=2)),
    "said again": (lambda b: b.policy("sync").policy("cadence"), said()),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_fills_the_configuration(name):
    chain, config = CHAINS[name]
    assert chain(built()).config() == config


def test_a_chain_leaves_what_it_began_with():
    first = built()
    first.policy("sync").options(ranks=2)
    assert first.config() == said()


REFUSED = [
    (lambda b: Trainer.builder(*FUNCTIONS).batch_size(1), "expected .dataset.*, .num_epochs.* before run, got none"),
    (lambda b: b.num_epochs(0), "Trainer.builder: expected num_epochs to be an integer >= 1, got 0"),
    (lambda b: b.options(callbacks=print), "Trainer.builder: expected callbacks as a list"),
    (lambda b: b.backend("cpu").options(devices=2, ranks=None), "expected devices as a list of some, got 2"),
    (lambda b: b.options(has_drawn_seed=True), "expected options among .*, got 'has_drawn_seed'"),
    (lambda b: b.policy(Cadence()).anchor(3), "got Cadence.*: say them in its CadenceConfig"),
    (lambda b: b.policy("often"), "expected policy as one, or one of 'sync', 'cadence', 'async', got 'often'"),
    (lambda b: b.backend("gloo"), "expected backend to be one of 'nccl', 'cpu', got 'gloo'"),
    (lambda b: b.backend("nccl"), "expected ranks on cuda with backend 'nccl', got cpu"),
    (lambda b: b.backend("nccl").options(ranks=2), "expected ranks on cuda with backend 'nccl', got cpu"),
    (lambda b: b.backend("nccl").options(comm=SoloCommunicator()), "expected ranks on cuda with backend 'nccl'"),
    (lambda b: b.policy("sync").anchor(4), "expected policy 'cadence' with anchor, got 'sync': only El Che has them"),
    (lambda b: b.policy(Cadence()).anchor(4), "expected policy 'cadence' with anchor, got Cadence"),
    (lambda b: b.policy("sync").max_batch_diff(2), "expected no max_batch_diff where ranks run in step"),
    (lambda b: b.policy("sync").divergence_threshold(0.1), "expected guard= with policy=Cadence"),
    (lambda b: b.no_divergence_guard().divergence_threshold(0.1), "expected one of .*got divergence_threshold and no_"),
    (lambda b: b.progressive_dispatch(1), "expected progressive_dispatch to be True or False, got 1"),
    (lambda b: b.lr_scale_ratio(-1.0), "expected lr_scale_ratio to be a finite number >= 0, got -1"),
    (lambda b: b.scheduler(0.1), "expected scheduler as a function, got 0.1"),
    (lambda b: b.epoch_fn(1), "expected epoch_fn as a function, got 1"),
    (lambda b: b.checkpoint_every(2), "expected both checkpoint_every and checkpoint_fn, got one"),
    (lambda b: b.checkpoint_fn(print).checkpoint_every(0), "expected checkpoint_every to be an integer >= 1, got 0"),
    (lambda b: b.scheduler(lambda ranks: 3).options(ranks=1), "expected a function from a step to a factor, got 3"),
    (lambda b: b.options(epochs=3), "expected .num_epochs.*, got epochs in options"),
    (lambda b: b.options(policy="sync"), "expected .policy.*, got policy in options"),
    (lambda b: b.options(speed=3), "expected options among accumulate, .*, got 'speed'"),
    (lambda b: b.easgd_alpha(0.5).options(outer=EASGD(0.2)), "expected outer to be said once, got it in options too"),
]


@pytest.mark.parametrize("chain, words", REFUSED)
def test_what_does_not_fit_is_refused(chain, words):
    with pytest.raises(ArgumentError, match=words):
        chain(built()).run().join()


def test_it_trains_as_start_does():
    both = [
        built(ranks=2, average="gradients").policy("sync").run().join(),
        Trainer.start(*FUNCTIONS, DATASET, ranks=2, policy="sync", **PLAIN).join(),
    ]
    assert [state.params["weight"].tolist() for state in both][0] == both[1].params["weight"].tolist()


def test_by_its_defaults_epochs_are_divided_by_speed():
    builder = Trainer.builder(*FUNCTIONS).dataset(LARGER).batch_size(4).num_epochs(3).anchor(3)
    run = builder.options(seed=3, cluster=Cluster.of_speeds([3, 1])).run()
    assert [metrics.shares for metrics in run.metrics()] == [(0.5, 0.5), (0.75, 0.25), (0.75, 0.25)]
    run.join()


@pytest.mark.parametrize("on_failure", ["stop", "shrink"])
def test_functions_are_called_and_rates_follow_the_ranks(on_failure):
    before, after, saved, rates = [], [], [], []

    def epoch_fn(epoch, worker):
        before.append((epoch, worker.rank))
        rates.append(worker.lr)

    run = (
        built(ranks=2, on_failure=on_failure).policy("sync").epoch_fn(epoch_fn)
        .metrics_fn(lambda metrics: after.append(metrics.epoch))
        .checkpoint_every(2).checkpoint_fn(lambda version, model: saved.append((version, type(model).__name__)))
        .lr_scale_ratio(1.0).scheduler(lambda world_size: lambda step: 1 / world_size ** (step + 1)).run()
    )
    run.join()
    assert sorted(before) == [(0, 0), (0, 1), (1, 0), (1, 1)] and after == [0, 1] and saved == [(2, "Linear")]
    assert sorted(rates) == [2 * 0.125 / 2 ** (step + 1) for step in (3, 3, 0, 0)]


@pytest.mark.filterwarnings("ignore:.*is left behind:RuntimeWarning")
def test_the_lowest_rank_that_lives_is_told():
    told = []

    def epoch_fn(epoch, worker):
        if (epoch, worker.rank) == (1, 0):
            raise ZeroDivisionError("on rank 0")

    builder = built(ranks=3, on_failure="shrink", timeout_s=10).num_epochs(3).policy("sync").epoch_fn(epoch_fn)
    builder.metrics_fn(lambda metrics: told.append(metrics.epoch)).run().join()
    assert told == [0, 1, 2]


def test_ddp_has_it_too_and_warns():
    with pytest.warns(DeprecationWarning, match="Ddp.builder is deprecated: use Trainer.builder"):
        builder = Ddp.builder(*FUNCTIONS)
    assert isinstance(builder, DdpBuilder)


def test_what_handles_and_workers_had_elsewhere_says_what_to_write():
    for kind, name, words in [
        (Run, "next_metrics", "write next"), (Run, "poll_metrics", "write run.history"),
        (DdpBuilder, "elche_relax_up", "leave it out"),
    ]:
        with pytest.raises(AbsentNameError, match=f"{kind.__name__}: .* {name!r}: {words}"):
            getattr(kind, name)
