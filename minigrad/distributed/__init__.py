"""Data-parallel training: ranks and their collectives, buckets, the reducer, replicas."""

import importlib as _importlib
import os as _os
import typing

from minigrad.absent import absent as _absent, tell_lacking as _tell_lacking
from minigrad.absent_seeds import SEEDS as _SEEDS
from minigrad.distributed import nn as nn
from minigrad.distributed.balance.allocation import allocate
from minigrad.distributed.balance.balancer import Balancer
from minigrad.distributed.balance.cadence import CadenceConfig, ElChe
from minigrad.distributed.balance.cost import CostModel, Reading
from minigrad.distributed.balance.dispatcher import Dispatcher
from minigrad.distributed.balance.division import Balance, BalanceConfig
from minigrad.distributed.balance.rounds import Rounds
from minigrad.distributed.balance.shares import compute_shard_sizes, rebalance
from minigrad.distributed.bootstrap import init
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.faults import Fault, FaultInjecting
from minigrad.distributed.comm.front import Front
from minigrad.distributed.comm.hangs import HangReport
from minigrad.distributed.comm.mpi.communicator import MpiCommunicator
from minigrad.distributed.comm.nccl.communicator import NcclCommunicator
from minigrad.distributed.comm.protocol import Communicator, Work
from minigrad.distributed.comm.shm.communicator import ShmCommunicator
from minigrad.distributed.comm.solo import SoloCommunicator
from minigrad.distributed.comm.threads import ThreadCommunicator, ThreadWorld
from minigrad.distributed.comm.wrappers import Recording, Wrapper
from minigrad.distributed.config import DdpConfig
from minigrad.distributed.ddp.apart import DivergenceMeter, divergence_hook
from minigrad.distributed.ddp.buckets import BucketPlan, plan_buckets
from minigrad.distributed.ddp.combine import average_gradients
from minigrad.distributed.ddp.hooks import (
    CompressionState,
    GradBucket,
    allreduce_hook,
    bf16_compress_hook,
    fp16_compress_hook,
    fp16_predivide_hook,
)
from minigrad.distributed.ddp.noise import GradientNoise, NoiseMeter, gradient_noise, noise_hook
from minigrad.distributed.ddp.parallel import DistributedDataParallel
from minigrad.distributed.ddp.samples import keep_ledger, merge_ledger
from minigrad.distributed.ddp.stats import NonFinite
from minigrad.distributed.ddp.syncbn import SyncBatchNorm, convert_sync_batchnorm
from minigrad.distributed.process_group import (
    all_gather,
    all_gather_into_tensor,
    all_gather_object,
    all_reduce,
    barrier,
    broadcast,
    broadcast_object_list,
    destroy_process_group,
    get_backend,
    get_rank,
    get_world_size,
    group,
    init_process_group,
    is_available,
    is_initialized,
    reduce_scatter,
    reduce_scatter_tensor,
)
from minigrad.distributed.process_group_members import (
    GroupMember,
    get_global_rank,
    get_group_rank,
    get_process_group_ranks,
    new_group,
)
from minigrad.distributed.process_group_messages import P2POp, batch_isend_irecv, irecv, isend, recv, send
from minigrad.distributed.process_group_parts import (
    all_to_all,
    all_to_all_single,
    gather,
    gather_object,
    reduce,
    scatter,
    scatter_object_list,
)
from minigrad.distributed.record.fingerprint import replicas_agree
from minigrad.distributed.record.timeline import Timeline
from minigrad.distributed.replicas.devices import DeviceGroup, ListCollectives, LocalDevices
from minigrad.distributed.replicas.nccl_devices import NcclDevices
from minigrad.distributed.replicas.replicas import Replicas
from minigrad.distributed.replicas.seeds import Ddp
from minigrad.distributed.run import run
from minigrad.distributed.sharded.optimizer import ShardedOptimizer
from minigrad.foreign import offer_classes as _offer_classes

DDP = DistributedDataParallel

__all__ = [
    "Balance",
    "BalanceConfig",
    "Balancer",
    "BucketPlan",
    "CadenceConfig",
    "Communicator",
    "CompressionState",
    "CostModel",
    "DDP",
    "Ddp",
    "DdpConfig",
    "DeviceGroup",
    "Dispatcher",
    "DistributedDataParallel",
    "DivergenceMeter",
    "ElChe",
    "Fault",
    "FaultInjecting",
    "Front",
    "GradBucket",
    "GradientNoise",
    "GroupMember",
    "HangReport",
    "ListCollectives",
    "LocalDevices",
    "MpiCommunicator",
    "NcclCommunicator",
    "NcclDevices",
    "NoiseMeter",
    "NonFinite",
    "P2POp",
    "ParameterAverager",
    "Reading",
    "Recording",
    "ReduceOp",
    "Replicas",
    "ReplicasTwin",
    "Rounds",
    "ShardedOptimizer",
    "ShmCommunicator",
    "SoloCommunicator",
    "SyncBatchNorm",
    "ThreadCommunicator",
    "ThreadWorld",
    "Timeline",
    "Twin",
    "TwinReport",
    "Work",
    "Wrapper",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "allocate",
    "allreduce_hook",
    "average_gradients",
    "average_parameters",
    "barrier",
    "batch_isend_irecv",
    "bf16_compress_hook",
    "broadcast",
    "broadcast_object_list",
    "compute_shard_sizes",
    "convert_sync_batchnorm",
    "destroy_process_group",
    "divergence_hook",
    "explain",
    "explain_ranks",
    "fp16_compress_hook",
    "fp16_predivide_hook",
    "gather",
    "gather_object",
    "get_backend",
    "get_global_rank",
    "get_group_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "gradient_noise",
    "group",
    "init",
    "init_process_group",
    "irecv",
    "is_available",
    "is_initialized",
    "isend",
    "keep_ledger",
    "merge_ledger",
    "new_group",
    "nn",
    "noise_hook",
    "page_of",
    "plan_buckets",
    "read_hang",
    "rebalance",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "replay",
    "replicas_agree",
    "run",
    "save_page",
    "scatter",
    "scatter_object_list",
    "send",
]


def _save_page(timeline: Timeline, path: str | _os.PathLike[str]) -> None:
    _importlib.import_module("minigrad.distributed.inspect.page").save_page(timeline, path)


Timeline.writers[".html"] = _save_page
_offer_classes(globals())
_tell_lacking("Timeline", Timeline)
_tell_lacking("DistributedDataParallel", DistributedDataParallel, _SEEDS["DistributedDataParallel"])

if typing.TYPE_CHECKING:
    from minigrad.distributed.average.averager import ParameterAverager
    from minigrad.distributed.average.mean import average_parameters
    from minigrad.distributed.inspect.explain import explain
    from minigrad.distributed.inspect.hangs import read_hang
    from minigrad.distributed.inspect.late import explain_ranks
    from minigrad.distributed.inspect.page import page_of, save_page
    from minigrad.distributed.inspect.replay import replay
    from minigrad.distributed.inspect.twin.compare import TwinReport
    from minigrad.distributed.inspect.twin.of_replicas import ReplicasTwin
    from minigrad.distributed.inspect.twin.twin import Twin
else:
    _LATER = {  # rooms that are loaded at their first use, by what is asked for
        "ParameterAverager": "average",
        "ReplicasTwin": "inspect.twin.of_replicas",
        "Twin": "inspect.twin.twin",
        "TwinReport": "inspect.twin.compare",
        "average": "average",
        "average_parameters": "average",
        "explain": "inspect",
        "explain_ranks": "inspect",
        "inspect": "inspect",
        "page_of": "inspect.page",
        "read_hang": "inspect",
        "save_page": "inspect.page",
        "replay": "inspect",
    }

    def __getattr__(name: str) -> typing.Any:
        """What combines parameters, and what reads a record: loaded at its first use."""
        if name not in _LATER:
            raise _absent(__name__, name)
        room = _importlib.import_module(f"minigrad.distributed.{_LATER[name]}")
        return room if name == _LATER[name] else getattr(room, name)
