"""What training refuses."""

import copy

from minigrad import FlowBuilder, Trainer, nn
from minigrad.distributed import DdpConfig
from minigrad.errors import ArgumentError
from minigrad.train import DistributedTrainConfig
from tests.refusals import each
from tests.train.graphs import OPTIMIZERS, graph_on, make_graph, replica

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
