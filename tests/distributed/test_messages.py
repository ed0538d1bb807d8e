"""What is refused though it is meant well says what to do instead."""

import contextvars
import copy
import errno
import os
import pickle

import numpy as np
import pytest

import minigrad
from minigrad import data, distributed, nn, optim
from minigrad.backend.device import CPU, Device
from minigrad.distributed.comm.shm.segment import Segment
from minigrad.errors import ArgumentError, CallError, DistributedError, ShapeError
from minigrad.foreign import KEYWORDS
from minigrad.train import fleet

MAKES = {
    "DistributedDataParallel": lambda **o: distributed.DDP(nn.Linear(2, 1), distributed.SoloCommunicator(), **o),
    "DataLoader": lambda **o: data.DataLoader(range(4), **o),
    "DistributedSampler": lambda **o: data.DistributedSampler(range(4), rank=0, world_size=2, **o),
}
TAKEN = {  # what PyTorch has by default, and what asks for what we do
    "device_ids": [None, ["cpu"], [CPU]],
    "output_device": [None, "cpu"],
    "dim": [0, np.int64(0)],
    "gradient_as_bucket_view": [False, True],
    "num_workers": [0, np.int64(0)],
    "timeout": [0],
    "pin_memory_device": [""],
    "in_order": [True],
    **dict.fromkeys(["process_group", "delay_all_reduce_named_params", "param_to_hook_all_reduce"], [None]),
    **dict.fromkeys(["mixed_precision", "device_mesh", "prefetch_factor", "worker_init_fn"], [None]),
    **dict.fromkeys(["multiprocessing_context", "generator"], [None]),
    "check_reduction": [False, True],
    **dict.fromkeys(["static_graph", "skip_all_reduce_unused_params"], [False]),
    **dict.fromkeys(["persistent_workers", "pin_memory", "drop_last"], [False]),
}


@pytest.mark.parametrize("who, name", [entry for entry in KEYWORDS if entry[0] in MAKES], ids=lambda text: text)
def test_a_keyword_of_pytorch_says_what_to_write(who, name):
    for value in TAKEN[name]:
        MAKES[who](**{name: value})
    with pytest.raises(ArgumentError, match=f"^{who}: expected no {name}, got 'other': ") as caught:
        MAKES[who](**{name: "other"})
    assert KEYWORDS[who, name][0] in str(caught.value)


def test_other_keywords_show_the_signature():
    for who, make in MAKES.items():
        with pytest.raises(CallError, match=rf"^{who}: expected {who}\(.*, got .* an unexpected keyword .* 'nonsense'"):
            make(nonsense=1)
    sampler = data.DistributedSampler(dataset=range(4), num_replicas=2, rank=1)
    assert (sampler.world_size, sampler.rank) == (2, 1)
    sampler = MAKES["DistributedSampler"](mode="drop", drop_last=True)
    assert sampler.mode == "drop"
    with pytest.raises(ArgumentError, match='drop_last, got True: write mode="drop" for True'):
        MAKES["DistributedSampler"](drop_last=True)


FORMS = {
    r"speed_hint: expected \(slow_rank, ratio\) or a mapping of rank to speed, got 0": lambda: distributed.DdpConfig(0),
    r"DistributedDataParallel\(module, comm\), .*, got no module": lambda: distributed.DDP(),
    "DistributedDataParallel: expected a communicator in this context": lambda: distributed.DDP(nn.Linear(2, 1)),
    r"DistributedSampler\(dataset\), .* rank= and .*, got no world_size": lambda: data.DistributedSampler(4, rank=0),
    r"ElChe.start\(world_size, .*, got no batch_counts": lambda: distributed.ElChe(2, 10),
    r"DdpConfig\(speed_hint=\(1, 2.3\)\), got a call": lambda: distributed.DdpConfig().speed_hint(1, 2.3),
    "run: expected world_size to be an integer >= 1, got 0": lambda: distributed.run(lambda comm: 1, 0),
    "init: expected world_size to be an integer >= 1, got 0": lambda: distributed.init(rank=0, world_size=0),
}


@pytest.mark.parametrize("message", FORMS)
def test_an_earlier_form_says_how_it_is_written(message):
    with pytest.raises(ArgumentError, match=message):
        contextvars.Context().run(FORMS[message])  # of no rank, whatever other tests have made
    assert hash(distributed.DdpConfig()) == hash(distributed.DdpConfig())
    assert not distributed.DdpConfig().speed_hint and not distributed.DdpConfig(speed_hint=None).speed_hint


def test_a_communicator_is_not_pickled():
    def refused(comm):
        for use in (pickle.dumps, copy.deepcopy):
            with pytest.raises(ArgumentError, match=f"Communicator, which belongs to rank {comm.rank} of this process"):
                use(comm)

    refused(distributed.SoloCommunicator())
    distributed.run(refused, 2)
    for kind in ("ShmCommunicator", "MpiCommunicator", "NcclCommunicator"):
        with pytest.raises(ArgumentError, match=f"{kind}, which belongs to .*: call distributed.init"):
            pickle.dumps(object.__new__(getattr(distributed, kind)))
    with pytest.raises(ArgumentError, match="which belongs to rank 0"):
        pickle.dumps(distributed.Recording(distributed.SoloCommunicator()))


def test_a_shard_of_one_sample_names_granularity():
    layer = nn.BatchNorm1d(3)
    with pytest.raises(ShapeError, match=r"got x \(1, 3\): .* granularity=2"):
        layer(minigrad.randn(1, 3))
    config = distributed.DdpConfig(granularity=2)
    assert config.balance_config().granularity == 2
    graph = minigrad.FlowBuilder.from_(nn.Linear(2, 3)).through(nn.BatchNorm1d(3)).build()
    minigrad.Trainer.setup_with(
        graph, graph.replicate, lambda params: optim.SGD(params, lr=0.1), config, devices=["cpu", "cpu", "cpu"]
    )
    for _ in range(3):
        graph(minigrad.randn(6, 2)).sum().backward()
        graph.step()


def test_a_graph_on_the_cpu_says_that_gpus_stay_unused(monkeypatch):
    gpus = [Device("cuda:0"), Device("cuda:1")]
    monkeypatch.setattr(fleet, "available_devices", lambda: [CPU, *gpus])
    config = distributed.DdpConfig()
    told = fleet.summary(fleet.group_of(None, CPU), config, None)
    assert told.endswith("not used: cuda:0, cuda:1 (build the graph on cuda:0, or pass devices)")
    monkeypatch.setattr(fleet, "available_devices", lambda: [CPU])
    assert "not used" not in fleet.summary(fleet.group_of(None, CPU), config, None)


def test_too_little_shared_memory_says_how_much_and_how(monkeypatch):
    def full(descriptor, start, nbytes):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    words = r"expected 8,192 bytes for 2 ranks in /dev/shm, got [\d,]+ free .*--shm-size=1g.* or use the backend mpi"
    with pytest.raises(DistributedError, match=words):
        Segment(0, 2, 100, lambda data: [data, data])


def test_two_ranks_need_little_shared_memory(monkeypatch):
    asked, allocate = [], os.posix_fallocate
    monkeypatch.setattr(os, "posix_fallocate", lambda *args: asked.append(args[2]) or allocate(*args))
    comm = distributed.ShmCommunicator(0, 1, lambda data: [data])
    distributed.DDP(nn.Linear(3, 1), comm)
    comm.close()
    assert 2 * sum(asked) < 1.2e6  # bytes
