"""What the idioms leave in PyTorch. Only the recorder and the tests under the marker `torch` import this."""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.utils.data as data
from torch import nn, optim

from tests.parity.idioms.play import alone, names_of, play, together


def play_theirs(group):
    """What each idiom of a group leaves in PyTorch."""
    if group.ranks == 1:
        names = _theirs()
        with alone(torch):
            return {idiom.name: play(idiom, names) for idiom in group.idioms}
    context = mp.get_context("spawn")
    answers = context.Queue()
    ports = _free_ports(len(group.idioms))
    ranks = [
        context.Process(target=_rank, args=(rank, group, ports, answers), daemon=True) for rank in range(group.ranks)
    ]
    for process in ranks:
        process.start()
    by_rank = dict(answers.get(timeout=120) for _ in ranks)
    for process in ranks:
        process.join()
    return {idiom.name: together([by_rank[r][idiom.name] for r in sorted(by_rank)]) for idiom in group.idioms}


def _theirs():
    return names_of(torch, nn, nn.functional, optim, data, dist, nn.parallel.DistributedDataParallel)


def _rank(rank, group, ports, answers):
    """A process with the environment that torchrun gives; each idiom meets at a port of its own."""
    names, found = _theirs(), {}
    for idiom, port in zip(group.idioms, ports):
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(group.ranks))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        with alone(torch):
            found[idiom.name] = play(idiom, names)
        if dist.is_initialized():
            dist.destroy_process_group()
    answers.put((rank, found))


def _free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
