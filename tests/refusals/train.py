"""What training refuses."""

import copy

from minigrad import FlowBuilder, Trainer, nn, record_scalar, tensor
from minigrad.distributed import DdpConfig, SoloCommunicator
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.train import Accuracy, Checkpoint, DistributedTrainConfig, EpochMeter, EpochMetrics, Mean
from minigrad.train import MetricCollection, RunConfig, Scalars, Sum
from minigrad.train.run.places import place_of
from tests.refusals import each
from tests.train.graphs import OPTIMIZERS, graph_on, make_graph, replica
from tests.train.runs import MAKERS as RUN


def run_config(**options):
    return place_of(RunConfig(**{**RUN, "batch_size": 4, "epochs": 1, **options}))


def recorded(*args):
    with Scalars().batch(2):
        record_scalar(*args)


def nested(meter):
    with meter.step(4), meter.batch(4):
        pass


ROWS = [
    # flow
    *each(
        (lambda into: FlowBuilder("x", into), ArgumentError),
        (3, "FlowBuilder: expected into as GraphModule or a class made from it, got 3"),
        (nn.Linear, "a class made from it, got <class"),
        (None, "a class made from it, got None"),
    ),
    # calls
    (lambda: copy.deepcopy(graph_on(2)).step(), ArgumentError, "set_optimizer"),
    # distribute
    (lambda: make_graph().distribute(replica, ["cuda:0", "cpu"]), ArgumentError, "GPUs alone, or the CPU alone"),
    # loop
    *each(
        (lambda options: DistributedTrainConfig(**options), ArgumentError),
        ({"world_size": 0}, "world_size"),
        ({"world_size": 2, "rank": 2}, r"rank to be an integer in \[0, 2\), got 2"),
        ({"world_size": 2, "rank": 1, "role": "coordinator"}, "expected role 'worker' on rank 1, got 'coordinator'"),
        ({"world_size": 2, "role": "boss"}, "expected role 'coordinator' on rank 0, got 'boss'"),
        ({"world_size": 1, "accumulation_steps": 0}, "accumulation_steps"),
        ({"world_size": 1, "max_steps": 0}, "max_steps"),
        ({"world_size": 1, "max_grad_norm": -1.0}, "max_grad_norm"),
        ({"world_size": 1, "find_unused_parameters": 1}, "find_unused_parameters"),
    ),
    *each(
        (lambda options: DistributedTrainConfig(1, ddp_options=options), ArgumentError),
        ({"bucket_cap": 3}, "expected ddp_options of DistributedDataParallel, .*bucket_cap_mb.*, got 'bucket_cap'"),
        ({"batch_dim": 1}, "expected no batch_dim in ddp_options, got 1: give samples_of"),
        ({"sync": "manual"}, "no sync in ddp_options, got 'manual'"),
        ({"reduce": "sum"}, "no reduce in ddp_options"),
        ({"comm": None}, "no comm in ddp_options"),
        ({"timeline": None}, "no timeline in ddp_options, got None: give it to DistributedTrainer"),
        ({"find_unused_parameters": True}, "write find_unused_parameters= beside ddp_options"),
        ([("bucket_cap_mb", 1)], "expected ddp_options by name"),
    ),
    (lambda: DistributedTrainConfig(1, hook_state=3), ArgumentError, "expected no hook_state without a comm_hook, got"),
    (lambda: DistributedTrainConfig(1, comm_hook=3), ArgumentError, "comm_hook to be a function, got 3"),
    # runs
    *each(
        (lambda options: run_config(**options), ArgumentError),
        ({"make_model": 3}, "Trainer.start: expected make_model as a function, got 3"),
        ({"dataset": 3}, "expected a dataset with __len__ and __getitem__, got 3"),
        ({"batch_size": 0}, "expected batch_size to be an integer >= 1, got 0"),
        ({"epochs": 1.5}, "expected epochs to be an integer >= 1, got 1.5"),
        ({"ranks": 0}, "expected ranks to be an integer >= 1, got 0"),
        ({"ranks": 2, "devices": ["cpu"]}, "expected one of ranks, devices, comm, cluster, got ranks and devices"),
        ({"devices": "cpu"}, "expected devices as a list of some, got 'cpu'"),
        ({"devices": []}, r"expected devices as a list of some, got \[\]"),
        ({"comm": 3}, "expected a communicator, got int"),
        ({"cluster": 3}, "expected a Cluster, got 3"),
        ({"policy": "often"}, "expected policy as one, or one of 'sync', 'cadence', 'async', got 'often'"),
        ({"average": "losses"}, "expected average to be one of 'gradients', 'parameters', got 'losses'"),
        ({"average": "parameters", "outer": 3}, "expected an outer optimizer, such as"),
        ({"dispatch": "equal"}, "expected dispatch to be one of 'static', 'proportional', 'progressive', got 'equal'"),
        ({"on_failure": "go on"}, "expected on_failure to be one of 'stop', 'shrink', got 'go on'"),
        ({"seed": -1}, "expected seed to be an integer in"),
        ({"shares": (0.5, 0.6)}, "expected shares as finite numbers >= 0 of sum 1"),
        ({"ranks": 3, "shares": (0.5, 0.5)}, "expected a share for each of 3 ranks, got 2"),
        ({"schedule": 3}, "expected a function from a step to a factor, got 3"),
        ({"lr_scale": 0.0}, "expected lr_scale to be"),
        ({"max_grad_norm": 0.0}, "expected max_grad_norm to be"),
        ({"autocast": "int8"}, "expected autocast to be one of"),
        ({"scaler": True}, "expected scaler as a GradScaler, got True"),
        ({"accumulate": 5}, "expected accumulate of at most batch_size=4, into which a batch can be cut, got 5"),
        ({"ddp_options": {"batch_dim": 1}}, "no batch_dim in ddp_options, got 1: return .loss, n. from train_fn"),
        ({"average_options": {"policy": 1}}, "expected average_options among optimizer_state, .*, got 'policy'"),
        ({"average_options": {"buffers": "x"}, "average": "parameters"}, "expected buffers to be one of"),
        ({"callbacks": print}, "expected callbacks as a list, got <built-in"),
        ({"callbacks": [3]}, r"expected callbacks as functions of \(metrics, worker\), or objects with before_epoch"),
        ({"resume": True}, "expected a Checkpoint among callbacks with resume=True, got none"),
        ({"timeline": 3}, "expected a timeline with event"),
        ({"progress": 1}, "expected progress to be True or False, got 1"),
        ({"batchsize": 4}, "batchsize"),
    ),
    # metrics
    (lambda: Mean().update("1", 2), ArgumentError, "Mean.update: expected value to be a number, got str"),
    (lambda: Mean().update(True, 2), ArgumentError, "expected value to be a number"),
    (lambda: Mean().update(1.0), ArgumentError, "expected n, the samples that the value is a mean over, got none"),
    (lambda: Mean().update(1.0, -1), ArgumentError, "a finite number of samples >= 0, got -1"),
    (lambda: Mean().update(tensor([1.0, 2.0]), 2), ShapeError, r"one number, got shape \(2,\): write value.mean"),
    (lambda: Accuracy().update(17, 20), ArgumentError, r"to be a number in \[0, 1\], got 17"),
    (lambda: Accuracy().update(tensor([[0.0, 1.0]])), ArgumentError, "expected labels with predictions"),
    (lambda: Accuracy().update(tensor([[0.0, 1.0]]), 1), ArgumentError, r"shape \(1, 2\), got 1: or give a fraction"),
    (lambda: Accuracy().update(0.5, tensor([1, 0])), ShapeError, "expected logits"),
    (lambda: Accuracy().update(tensor([[0.0, 1.0]]), tensor([1, 0])), ShapeError, r"got \(2,\) of \(1, 2\)"),
    (lambda: Accuracy().update(tensor([[0.0, 1.0]]), tensor([1.0])), DtypeError, "labels of integers, got float32"),
    (lambda: Accuracy().update(tensor([0.3]), tensor([1])), DtypeError, "write x > 0 for logits of one class"),
    (lambda: Accuracy().update(tensor([[0.3], [2.0]]), tensor([0, 1])), ShapeError, r"classes, got \(2, 1\): write x"),
    (lambda: Accuracy(ignore_index=1.5), ArgumentError, "ignore_index to be an integer"),
    (lambda: MetricCollection([Mean()]), ArgumentError, "expected metrics by name"),
    (lambda: MetricCollection(dict.fromkeys("ab", Mean())), ArgumentError, "each metric once"),
    (lambda: MetricCollection({"a": Mean()})["b"], ArgumentError, "expected one of a, got 'b'"),
    (lambda: Sum().update("1"), ArgumentError, "Sum.update: expected value to be a number, got str"),
    (lambda: Sum().update(tensor([1.0, 2.0])), ShapeError, r"one number, got shape \(2,\): write value.sum"),
    (lambda: Sum().update(10**400), ArgumentError, "Sum.update: expected value to be a number"),
    (lambda: record_scalar("loss", 1.0), ArgumentError, "batch that is being counted in this context, got none"),
    (lambda: recorded("", 1.0), ArgumentError, "record_scalar: expected a name, got ''"),
    (lambda: recorded("loss", "1"), ArgumentError, "record_scalar: expected loss to be a number, got str"),
    (lambda: recorded("loss", tensor([1.0, 2.0])), ShapeError, "expected loss to be one number, .*: write loss.mean"),
    (lambda: recorded("loss", 1.0, -1), ArgumentError, "record_scalar: expected a finite number of samples >= 0"),
    (lambda: Scalars().batch(-1).__enter__(), ArgumentError, "Scalars.batch: expected a finite number of samples"),
    # epoch
    (lambda: EpochMeter(SoloCommunicator()).add_loss(1.0), ArgumentError, "got neither: write meter.step.n"),
    (lambda: EpochMeter(SoloCommunicator(), Mean()), ArgumentError, "expected a MetricCollection, got Mean"),
    (lambda: EpochMeter(SoloCommunicator()).add_loss("1", 2), ArgumentError, "add_loss: expected loss to be a number"),
    (lambda: nested(EpochMeter(SoloCommunicator())), ArgumentError, "expected no batch around it, got one of 4"),
    (lambda: EpochMetrics.from_json("{}"), ArgumentError, "EpochMetrics: expected the text of to_json"),
    (lambda: EpochMeter(SoloCommunicator()).start(-1), ArgumentError, "epoch to be an integer >= 0"),
    # checkpoint
    *each(
        (lambda dir, options: Checkpoint(dir, **options), ArgumentError),
        (3, {}, "Checkpoint: expected dir to be the path of a folder, got 3"),
        ("", {}, "to be the path of a folder, got ''"),
        (b"run", {}, "to be the path of a folder, got b'run'"),
        ("run", {"every": 0}, "Checkpoint: expected every to be an integer >= 1, or None for never, got 0"),
        ("run", {"every": True}, "every to be an integer >= 1, or None for never, got True"),
        ("run", {"keep": 0}, "Checkpoint: expected keep to be an integer >= 1, or None for all, got 0"),
        ("run", {"keep": 2.0}, "keep to be an integer >= 1, or None for all, got 2.0"),
        ("run", {"on": "batch"}, "Checkpoint: expected on to be one of 'step', 'epoch', got 'batch'"),
        ("run", {"background": 1}, "Checkpoint: expected background to be True or False, got 1"),
    ),
    *each(
        (lambda obj, number: Checkpoint("run").save(obj, number), ArgumentError),
        ({"epoch": 3}, 1, "Checkpoint.save: expected objects with state_dict.. by name, got dict without"),
        (nn.Linear(1, 1), 1, "objects with state_dict.. by name, got Linear without"),
        ({}, -1, r"Checkpoint.save: expected number to be an integer in \[0, 10000000000\), got -1"),
        ({}, 10**10, "got 10000000000"),
    ),
    (lambda: Checkpoint("run").is_due(1.5), ArgumentError, "Checkpoint.is_due: expected number to be an integer"),
    (lambda: Checkpoint("run").load_latest(nn.Linear(1, 1)), ArgumentError, "into to hold objects .*, got Linear"),
    (lambda: Checkpoint(__file__).load_latest(), ArgumentError, "expected dir to be a folder, got the file"),
    # trainer
    *each(
        (
            lambda options, el_che: Trainer.setup_with(
                make_graph(), replica, OPTIMIZERS["momentum"], DdpConfig(**options), devices=["cpu"] * 2, el_che=el_che
            ),
            ArgumentError,
        ),
        ({"max_anchor": 0}, True, "0, which turns it off"),
        ({"min_ratio": 0.1}, True, "no min_ratio with el_che=True"),
        ({"overhead_target": 0.1}, False, "no overhead_target and no max_anchor without El Che"),
        ({}, 1.5, "None, True or False"),
        ({}, 0, "None, True or False, got 0"),
    ),
    *each(
        (lambda options: DdpConfig(**options), ArgumentError),
        ({"speed_hint": (0, 0.4)}, "ratio, .* >= 1"),
        ({"speed_hint": (-1, 2.0)}, "a rank to be an integer >= 0, got -1"),
        ({"speed_hint": 3}, "speed_hint: expected"),
        ({"speed_hint": {0: 0.0}}, "speed of rank 0 to be a finite number > 0"),
        ({"speed_hint": {"a": 1.0}}, "a rank to be an integer"),
        ({"overhead_target": 0.0}, "overhead_target"),
        ({"max_anchor": -1}, "max_anchor to be an integer >= 0"),
        ({"max_grad_norm": 0.0}, "max_grad_norm to be a finite number > 0"),
        ({"timeline": print}, "timeline with event"),
        ({"min_ratio": -0.1}, "min_ratio"),
        ({"min_ratio": 1.5}, "min_ratio"),
        ({"calibration_steps": 0}, "calibration_steps"),
        ({"rebalance_interval": 0}, "rebalance_interval"),
        ({"strategy": 3}, r"DdpConfig: expected a strategy \(state, batch_size, readings\)"),
        ({"strategy": pow, "granularity": 2, "min_ratio": 0}, "DdpConfig: expected no min_ratio, granularity for a s"),
    ),
]
