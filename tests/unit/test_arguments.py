"""Every option that is an integer, a real or a switch is checked alike: NumPy's numbers count, other kinds do not."""

import json

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, data, distributed, nn, ops, optim, testing, train
from minigrad.arguments import as_samples
from minigrad.distributed import simulate
from minigrad.errors import MinigradError
from minigrad.nn import init

X = Tensor(np.ones((2, 4), np.float32))
IMAGES = Tensor(np.ones((2, 4, 3, 3), np.float32))
KERNEL = Tensor(np.ones((4, 2, 3, 3), np.float32))
LABELS = minigrad.tensor([0, 1])
ADAM = {"lr": 0.5, "eps": 0.5, "weight_decay": 0.5, "maximize": True, "master_weights": False}


def fresh():
    return [nn.Parameter(np.ones(2, np.float32))]


def solo(make):
    """A call on a communicator of one."""

    def call(**options):
        comm = distributed.SoloCommunicator()
        try:
            return make(comm, **options)
        finally:
            comm.close()

    return call


def ddp(comm, **options):
    return distributed.DDP(nn.Linear(2, 1), comm, **options)


def pass_of(comm, n):
    with ddp(comm).samples(n):
        pass


def conv(**options):
    layer = nn.Conv2d(**{"in_channels": 4, "out_channels": 4, "kernel_size": 3, **options})
    return layer(IMAGES) if layer.in_channels == 4 else None


def entered(mode):
    with mode:
        pass


def norm(kind, x, **options):
    return kind(**options)(x)


# A right value for each option; its type says what the option takes.
OPTIONS = {
    "conv2d": (
        lambda **o: ops.conv2d(IMAGES, KERNEL, **{"groups": 2, **o}),
        {"stride": 1, "padding": 1, "dilation": 1, "groups": 2},
    ),
    "Conv2d": (
        conv,
        {"in_channels": 4, "out_channels": 4, "kernel_size": 3, "stride": 2, "dilation": 1, "groups": 2, "bias": True},
    ),
    "Linear": (
        lambda **o: nn.Linear(**{"in_features": 2, "out_features": 2, **o}),
        {"in_features": 2, "out_features": 3, "bias": False},
    ),
    "Embedding": (
        lambda **o: nn.Embedding(**{"num_embeddings": 3, "embedding_dim": 2, **o})(LABELS),
        {"num_embeddings": 3, "embedding_dim": 2, "padding_idx": 1},
    ),
    "embedding": (lambda **o: ops.embedding(X, LABELS, **o), {"padding_idx": 1}),
    "BatchNorm2d": (
        lambda **o: norm(nn.BatchNorm2d, IMAGES, **{"num_features": 4, **o}),
        {"num_features": 4, "eps": 0.5, "momentum": 0.5, "affine": True, "track_running_stats": True},
    ),
    "SyncBatchNorm": (
        solo(lambda comm, **o: distributed.SyncBatchNorm(**{"num_features": 4, "comm": comm, **o})),
        {"num_features": 4, "eps": 0.5, "momentum": 0.5, "affine": True, "track_running_stats": True},
    ),
    "GroupNorm": (
        lambda **o: norm(nn.GroupNorm, IMAGES, **{"num_groups": 2, "num_channels": 4, **o}),
        {"num_groups": 2, "num_channels": 4, "eps": 0.5, "affine": False},
    ),
    "LayerNorm": (
        lambda **o: norm(nn.LayerNorm, X, **{"normalized_shape": 4, **o}),
        {"normalized_shape": 4, "eps": 0.5, "elementwise_affine": True, "bias": True},
    ),
    "batch_norm": (
        lambda **o: ops.batch_norm(IMAGES, None, None, **{"training": True, **o}),
        {"training": True, "momentum": 0.5, "eps": 0.5},
    ),
    "group_norm": (lambda **o: ops.group_norm(IMAGES, **{"num_groups": 2, **o}), {"num_groups": 2, "eps": 0.5}),
    "layer_norm": (lambda **o: ops.layer_norm(X, **{"normalized_shape": 4, **o}), {"normalized_shape": 4, "eps": 0.5}),
    "max_pool2d": (
        lambda **o: ops.max_pool2d(IMAGES, **{"kernel_size": 2, **o}),
        {"kernel_size": 2, "stride": 1, "padding": 1, "dilation": 1, "ceil_mode": True},
    ),
    "MaxPool2d": (
        lambda **o: nn.MaxPool2d(**{"kernel_size": 2, **o})(IMAGES),
        {"kernel_size": 2, "stride": 1, "padding": 1, "dilation": 1, "ceil_mode": True},
    ),
    "AvgPool2d": (
        lambda **o: nn.AvgPool2d(**{"kernel_size": 2, **o})(IMAGES),
        {"kernel_size": 2, "stride": 1, "padding": 1, "ceil_mode": True, "count_include_pad": False},
    ),
    "AdaptiveAvgPool2d": (lambda **o: nn.AdaptiveAvgPool2d(**o)(IMAGES), {"output_size": 1}),
    "Dropout": (lambda **o: nn.Dropout(**o)(X), {"p": 0.5}),
    "dropout": (lambda **o: ops.dropout(X, **o), {"p": 0.5, "training": True}),
    "Softmax": (lambda **o: nn.Softmax(**o)(X), {"dim": 1}),
    "Flatten": (lambda **o: nn.Flatten(**o)(IMAGES), {"start_dim": 1, "end_dim": 2}),
    "Unflatten": (lambda **o: nn.Unflatten(**{"dim": 1, "unflattened_size": (2, 2), **o})(X), {"dim": 1}),
    "ELU": (lambda **o: nn.ELU(**o)(X), {"alpha": 0.5}),
    "LeakyReLU": (lambda **o: nn.LeakyReLU(**o)(X), {"negative_slope": 0.5}),
    "Softplus": (lambda **o: nn.Softplus(**o)(X), {"beta": 0.5, "threshold": 4.0}),
    "CrossEntropyLoss": (
        lambda **o: nn.CrossEntropyLoss(**o)(X, LABELS),
        {"ignore_index": 1, "label_smoothing": 0.5},
    ),
    "NLLLoss": (lambda **o: nn.NLLLoss(**o)(X, LABELS), {"ignore_index": 1}),
    "huber_loss": (lambda **o: ops.huber_loss(X, X, **o), {"delta": 0.5}),
    "Parameter": (lambda **o: nn.Parameter(np.ones(2), **o), {"requires_grad": True}),
    "Buffer": (lambda **o: nn.Buffer(np.ones(2), **o), {"persistent": True}),
    "Module": (lambda **o: nn.Linear(2, 2).requires_grad_(**o), {"requires_grad": True}),
    "Module.zero_grad": (lambda **o: nn.Linear(2, 2).zero_grad(**o), {"set_to_none": True}),
    "Module.load_state_dict": (
        lambda **o: nn.Linear(2, 2).load_state_dict(nn.Linear(2, 2).state_dict(), **o),
        {"strict": True},
    ),
    "normal_": (lambda **o: init.normal_(Tensor(np.ones(2)), **o), {"mean": 0.5, "std": 0.5}),
    "kaiming_normal_": (lambda **o: init.kaiming_normal_(Tensor(np.ones((2, 2))), **o), {"a": 0.5}),
    "trunc_normal_": (
        lambda **o: init.trunc_normal_(Tensor(np.ones(2)), **o),
        {"mean": 0.5, "std": 0.5, "a": -1.0, "b": 1.0},
    ),
    "backward": (
        lambda **o: minigrad.tensor(1.0, requires_grad=True).square().backward(**o),
        {"retain_graph": True, "create_graph": False},
    ),
    "all": (lambda **o: X.all(**{"dim": 1, **o}), {"dim": 1, "keepdim": True}),
    "argmax": (lambda **o: X.argmax(**{"dim": 1, **o}), {"dim": 1, "keepdim": True}),
    "var": (lambda **o: X.var(**{"dim": 1, **o}), {"keepdim": True, "correction": 0.5}),  # dim=True is unbiased=True
    "chunk": (lambda **o: X.chunk(**{"chunks": 2, **o}), {"chunks": 2, "dim": 1}),
    "narrow": (lambda **o: X.narrow(**{"dim": 1, "start": 0, "length": 2, **o}), {"dim": 1, "start": 1, "length": 2}),
    "roll": (lambda **o: X.roll(**{"shifts": 1, "dims": 0, **o}), {"shifts": 1, "dims": 1}),
    "tril": (lambda **o: X.tril(**o), {"diagonal": 1}),
    "one_hot": (lambda **o: ops.one_hot(LABELS, **o), {"num_classes": 3}),
    "eye": (lambda **o: minigrad.eye(**{"n": 2, **o}), {"n": 2, "m": 3, "requires_grad": False}),
    "linspace": (lambda **o: minigrad.linspace(0.0, 1.0, **{"steps": 3, **o}), {"steps": 3}),
    "randperm": (lambda **o: minigrad.randperm(**o), {"n": 3}),
    "randint": (lambda **o: minigrad.randint(**{"low": 0, "high": 3, "size": (2,), **o}), {"low": 1, "high": 5}),
    "manual_seed": (lambda **o: minigrad.manual_seed(**o), {"seed": 3}),
    "allow_tf32": (lambda **o: entered(minigrad.allow_tf32(**o)), {"allowed": False}),
    "autocast": (lambda **o: entered(minigrad.autocast(**o)), {"enabled": False}),
    "SGD": (
        lambda **o: optim.SGD(fresh(), **{"lr": 0.5, **({"momentum": 0.5} if o.get("nesterov") else {}), **o}),
        {"lr": 0.5, "momentum": 0.5, "dampening": 0.5, "weight_decay": 0.5, "nesterov": True, "maximize": True},
    ),
    "Adam": (lambda **o: optim.Adam(fresh(), **o), ADAM),
    "AdamW": (lambda **o: optim.AdamW(fresh(), **o), ADAM),
    "Optimizer.zero_grad": (lambda **o: optim.SGD(fresh(), lr=0.5).zero_grad(**o), {"set_to_none": True}),
    "GradScaler": (
        lambda **o: optim.GradScaler(**o),
        {"init_scale": 4.0, "growth_factor": 4.0, "backoff_factor": 0.5, "growth_interval": 3, "enabled": True},
    ),
    "CosineAnnealing": (
        lambda **o: optim.CosineAnnealing(**{"total_steps": 3, **o}).factor(1),
        {"total_steps": 3, "min_factor": 0.5},
    ),
    "StepDecay": (lambda **o: optim.StepDecay(**{"step_size": 3, "gamma": 0.5, **o}), {"step_size": 3, "gamma": 0.5}),
    "MultiStepDecay": (lambda n: optim.MultiStepDecay([n], 0.5), {"n": 3}),
    "Schedule": (lambda **o: optim.StepDecay(3, 0.5)(**o), {"step": 3}),
    "warmup": (
        lambda **o: optim.warmup(**{"steps": 3, "schedule": optim.Constant(), **o}),
        {"steps": 3, "start_factor": 0.5},
    ),
    "clip_grad_norm_": (
        lambda **o: optim.clip_grad_norm_(fresh(), **{"max_norm": 0.5, **o}),
        {"max_norm": 0.5, "norm_type": 1.5, "error_if_nonfinite": True},
    ),
    "clip_grad_value_": (lambda **o: optim.clip_grad_value_(fresh(), **o), {"clip_value": 0.5}),
    "DataLoader": (
        lambda **o: data.DataLoader(range(8), **{"shuffle": True, **o}),
        {"batch_size": 2, "shuffle": True, "drop_last": True, "prefetch": 2, "seed": 3},
    ),
    "BatchSampler": (
        lambda **o: data.BatchSampler(data.SequentialSampler(8), **{"batch_size": 2, **o}),
        {"batch_size": 2, "drop_last": True},
    ),
    "DistributedSampler": (
        lambda **o: data.DistributedSampler(**{"source": 8, "rank": 0, "world_size": 2, **o}),
        {"rank": 1, "world_size": 3, "shuffle": True, "seed": 4},
    ),
    "RandomSampler": (lambda **o: data.RandomSampler(**{"source": 8, **o}), {"seed": 3}),
    "random_split": (lambda **o: data.random_split(range(4), [2, 2], **o), {"seed": 3}),
    "set_epoch": (lambda **o: data.SequentialSampler(3).set_epoch(**o), {"epoch": 3}),
    "DDP": (
        solo(ddp),
        {
            "batch_dim": 0,
            "bucket_cap_mb": 0.5,
            "first_bucket_mb": 0.5,
            "bucket_cap_bytes": 64,
            "find_unused_parameters": True,
            "buffer_cadence": 2,
            "init_sync": True,
            "check_replicas_every": 2,
            "track_nonfinite": True,
        },
    ),
    "DDP.samples": (solo(pass_of), {"n": 2.5}),
    "Ddp.wrap": (
        lambda **o: distributed.Ddp.wrap([nn.Linear(2, 1)], ["cpu"], **o),
        {"bucket_cap_bytes": 64, "first_bucket_bytes": 64},
    ),
    "plan_buckets": (lambda **o: distributed.plan_buckets([], **o), {"cap_bytes": 64, "first_cap_bytes": 64}),
    "average_gradients": (
        solo(lambda comm, **o: distributed.average_gradients(fresh(), comm=comm, **{"n": 2.5, **o})),
        {"n": 2.5},
    ),
    "replicas_agree": (
        solo(lambda comm, **o: distributed.replicas_agree(nn.Linear(2, 1), comm, **o)),
        {"buffers": True},
    ),
    "broadcast": (solo(lambda comm, **o: comm.broadcast(np.ones(2), **o)), {"root": 0}),
    "empty": (solo(lambda comm, **o: comm.empty(dtype="float32", **o)), {"count": 3}),
    "ThreadWorld": (
        lambda **o: distributed.ThreadWorld(**{"world_size": 2, **o}),
        {"world_size": 2, "timeout_s": 2.5},
    ),
    "run": (
        lambda **o: distributed.run(lambda comm: comm.rank, **{"world_size": 2, **o}),
        {"world_size": 2, "timeout_s": 2.5, "blas_threads": 1},
    ),
    "init": (
        lambda **o: distributed.init(**{"rank": 0, "world_size": 1, **o}).close(),
        {"rank": 0, "world_size": 1, "timeout_s": 2.5},
    ),
    "allocate": (
        lambda **o: distributed.allocate(**{"costs": [distributed.CostModel(1.0, 1.0)] * 2, "batch_size": 8, **o}),
        {"batch_size": 8, "granularity": 2},
    ),
    "compute_shard_sizes": (
        lambda **o: distributed.compute_shard_sizes(**{"ratios": (0.5, 0.5), "batch_size": 8, **o}),
        {"batch_size": 8, "granularity": 2},
    ),
    "rebalance": (lambda **o: distributed.rebalance([1.0, 2.0], **o), {"min_ratio": 0.25}),
    "BalanceConfig": (
        lambda **o: distributed.BalanceConfig(**o),
        {"calibration_steps": 3, "interval_steps": 3, "window_steps": 3, "hysteresis": 0.5, "granularity": 2},
    ),
    "CadenceConfig": (
        lambda **o: distributed.CadenceConfig(**o),
        {"anchor": 3, "overhead_target": 0.25, "min_anchor": 2, "max_anchor": 30, "max_batch_diff": 4},
    ),
    "ElChe": (lambda **o: distributed.ElChe.start(**o), {"world_size": 2}),
    "CostModel": (
        lambda **o: distributed.CostModel(**{"fixed_s": 0.5, "per_sample_s": 0.5, **o}),
        {"fixed_s": 0.5, "per_sample_s": 0.5},
    ),
    "Reading": (
        lambda **o: distributed.Reading(**{"samples": 2.0, "seconds": 0.5, **o}),
        {"samples": 2.5, "seconds": 0.5},
    ),
    "CostModel.time_s": (lambda **o: distributed.CostModel(1.0, 1.0).time_s(**o), {"samples": 2.5}),
    "CostModel.scaled": (lambda **o: distributed.CostModel(1.0, 1.0).scaled(**o), {"factor": 2.5}),
    "BalanceConfig.is_due": (lambda **o: distributed.BalanceConfig().is_due(**o), {"step": 3}),
    "DdpConfig": (
        lambda **o: distributed.DdpConfig(**o),
        {
            "overhead_target": 0.25,
            "max_anchor": 3,
            "max_grad_norm": 0.5,
            "min_ratio": 0.25,
            "calibration_steps": 3,
            "rebalance_interval": 3,
        },
    ),
    "Fault": (
        lambda **o: distributed.Fault(**{"rank": 0, "action": "raise", "call": 1, **o}),
        {"rank": 1, "call": 3},
    ),
    "Link": (
        lambda **o: simulate.Link(topology="hierarchical", inner=simulate.Link(), **o),
        {
            **{"latency_s": 0.5, "bandwidth_bytes_s": 8.0, "ranks_per_node": 2},
            **{"efficiency": 0.5, "ramp_s": 0.5, "skew_s_per_step": 0.5},
        },
    ),
    "SyncReading": (
        lambda **o: simulate.SyncReading(
            **{"seconds": 2.5, "nbytes": 8.0, "bandwidth_bytes_s": 2.0, "world_size": 2, **o}
        ),
        {"seconds": 2.5, "nbytes": 8.0, "bandwidth_bytes_s": 2.0, "world_size": 2, "local_steps": 3.0},
    ),
    "Cluster.of_speeds": (
        lambda **o: simulate.Cluster.of_speeds([1.0, 2.0], **o),
        {"per_sample_s": 0.5, "fixed_s": 0.5, "jitter_fraction": 0.25, "seed": 3},
    ),
    "assert_close": (lambda **o: testing.assert_close(1.0, 1.0, **o), {"tolerance": 0.5}),
    "gradcheck": (
        lambda **o: testing.gradcheck(lambda x: x.square(), [np.ones(2)], **o),
        {"step": 0.5, "tolerance": 0.5},
    ),
    "DistributedTrainConfig": (
        lambda **o: train.DistributedTrainConfig(**{"world_size": 2, **o}),
        {
            "world_size": 2,
            "rank": 1,
            "accumulation_steps": 2,
            "max_steps": 2,
            "max_grad_norm": 0.5,
            "find_unused_parameters": True,
        },
    ),
}
CASES = [
    pytest.param(call, name, value, id=f"{who}-{name}")
    for who, (call, options) in OPTIONS.items()
    for name, value in options.items()
]
NUMPYS = {int: np.int64, float: np.float32}
WRONG = {int: (True, "3", 2.5), float: (True, "0.5", 1j, float("nan")), bool: (1, "yes", 0.0)}


@pytest.mark.parametrize("call, name, value", CASES)
def test_an_option_takes_its_kind_and_no_other(call, name, value):
    random = minigrad.get_rng_state()
    call(**{name: NUMPYS.get(type(value), bool)(value)})
    for wrong in WRONG[type(value)]:
        with pytest.raises(MinigradError, match="expected"):
            call(**{name: wrong})
    minigrad.set_rng_state(random)


def test_numbers_of_numpy_do_not_reach_a_file():
    hint, caps = {np.int64(0): np.float32(2.0), 1: 1.0}, (np.int64(5), None)
    balance = distributed.BalanceConfig(calibration_steps=np.int64(3), caps=caps, speed_hint=hint)
    cadence = distributed.CadenceConfig(anchor=np.int64(3), speed_hint=(np.int64(0), np.float32(2.0)))
    place = {"rank": np.int64(0), "world_size": np.int64(2), "seed": np.int64(3)}
    shares = data.DistributedSampler(np.int64(8), **place, mode="exact", shares=np.array([0.5, 0.5]))
    adam = optim.Adam(fresh(), lr=np.float32(0.5), betas=[np.float32(0.5), 0.9])
    states = [
        distributed.Balance.start(2, balance).state_dict(),
        distributed.ElChe.start(2, cadence).state_dict(),
        data.DataLoader(range(8), np.int64(2), sampler=shares).state_dict(),
        adam.state_dict()["param_groups"],
    ]
    assert json.loads(json.dumps(states))[2]["sampler"]["sampler"]["shares"] == [0.5, 0.5]
    assert distributed.compute_shard_sizes(8, np.array([1, 0])) == (8, 0)  # NumPy's integers as shares


def test_a_number_of_samples():
    assert as_samples("who", minigrad.tensor(3)) == as_samples("who", np.float32(3)) == as_samples("who", 3) == 3.0
    for wrong in ("3", True, np.True_, None, float("nan"), float("inf"), -1, [3], X, np.ones(2), 10**400):
        with pytest.raises(MinigradError, match=r"^who: expected a finite number of samples >= 0, got"):
            as_samples("who", wrong)
