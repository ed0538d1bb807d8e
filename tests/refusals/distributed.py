"""What communicators, wrappers and the data-parallel machinery refuse on one rank."""

import pickle

import numpy as np

import minigrad
from minigrad import distributed, nn, optim
from minigrad.backend.device import CPU, Device
from minigrad.backend.nccl import load_nccl
from minigrad.backend.stream import HostStreams
from minigrad.backend.timer import CudaTimer
from minigrad.data import ChunkPool, SampleLedger
from minigrad.distributed import (
    DDP,
    Balancer,
    Ddp,
    Dispatcher,
    DivergenceMeter,
    Fault,
    FaultInjecting,
    NcclDevices,
    Replicas,
    ReplicasTwin,
    Rounds,
    SoloCommunicator,
    SyncBatchNorm,
    Timeline,
    Twin,
    collectives,
    convert_sync_batchnorm,
    divergence_hook,
    explain,
    explain_ranks,
    gradient_noise,
    keep_ledger,
    merge_ledger,
    noise_hook,
    page_of,
    read_hang,
    replay,
    rooted,
    save_page,
)
from minigrad.distributed.bootstrap import Seat, _connect, choose_backend, detect, meet
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.rendezvous import Rendezvous, free_port
from minigrad.distributed.ddp.buckets import BucketPlan, plan_buckets
from minigrad.distributed.inspect import steps_of
from minigrad.distributed.record.fingerprint import fingerprint
from minigrad.distributed.simulate import Trace
from minigrad.errors import (
    AbsentNameError,
    ArgumentError,
    CollectiveTimeoutError,
    DeviceError,
    DtypeError,
    MissingPackageError,
    RankFailedError,
    ReplicaMismatchError,
    ShapeError,
)
from minigrad.testing import RingAllReduce
from tests.distributed.fake_nccl import FakeNccl, NcclError
from tests.distributed.models import Mlp, Odd
from tests.distributed.test_buffersync import Counting
from tests.distributed.test_hooks import Slopes
from tests.refusals import each

TWO = np.zeros(2)
THREE = np.zeros(3)


class Wrapping(nn.Module):
    """A wrapper of nobody's."""

    def __init__(self, module):
        super().__init__()
        self.module = module


def pair():
    """Two replicas."""
    return Replicas.wrap([nn.Linear(2, 2), nn.Linear(2, 2)], ["cpu", "cpu"])


def twin(forward=False, **options):
    """A twin of a wrapper on one rank."""
    model = options.pop("model", None) or Wrapping(nn.Linear(2, 2))
    given = {"optimizer": None, "loss_fn": lambda module, x: module(x).mean(), "comm": SoloCommunicator(), **options}
    made = Twin(model, given.pop("optimizer"), given.pop("loss_fn"), given.pop("every", 1), **given)
    if forward:
        model.module(minigrad.ones(2, 2))
    return made


ROWS = [
    # bootstrap
    *each(
        (detect, ArgumentError),
        ({"RANK": "1"}, "RANK and WORLD_SIZE both set, got only RANK: set WORLD_SIZE too"),
        ({"MINIGRAD_WORLD_SIZE": "2"}, "set MINIGRAD_RANK too"),
        ({"PMI_RANK": "0"}, "set PMI_SIZE too"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "0 <= rank < world_size, got rank 2 of 2"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "an integer in RANK, got 'x'"),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}, "set SLURM_PROCID too"),
        (
            {
                "SLURM_STEP_ID": "0",
                "SLURM_STEP_NUM_TASKS": "2",
                "SLURM_PROCID": "0",
                "SLURM_STEP_TASKS_PER_NODE": "two",
            },
            "SLURM_STEP_TASKS_PER_NODE like",
        ),
    ),
    (lambda: choose_backend(Seat(0, 8, 0, 4, "torchrun"), CPU, None), ArgumentError, "all ranks on one host"),
    (lambda: choose_backend(Seat(), CPU, "gloo"), ArgumentError, "backend to be one of 'solo', 'shm', 'mpi', 'nccl'"),
    (lambda: choose_backend(Seat(0, 2), CPU, "solo"), ArgumentError, "a world of one for backend 'solo', got 2"),
    (lambda: meet(Seat(0, 2, 0, 2, "torchrun"), {"MASTER_ADDR": "localhost"}, 1.0), ArgumentError, "2 ranks, got no"),
    # dispatcher, ledger
    *each(
        (lambda *args, **options: Dispatcher(SoloCommunicator(), *args, **options), ArgumentError),
        ([1], r"Dispatch: expected a ChunkPool, got \[1\]"),
        (ChunkPool(4, 2), "fair", "mode to be one of 'progressive', 'static', 'proportional', got 'fair'"),
    ),
    *each(
        (keep_ledger, ArgumentError),
        (None, SampleLedger(4), "keep_ledger: expected a DistributedDataParallel or a ParameterAverager, got None"),
        (None, None, "keep_ledger: expected a SampleLedger, got None"),
    ),
    *each(
        (merge_ledger, ArgumentError),
        (SoloCommunicator(), None, "merge_ledger: expected a SampleLedger, got None"),
        (SoloCommunicator(), SampleLedger(4, rank=1, world_size=2), "of rank 0 of 1, got that of rank 1 of 2"),
    ),
    # buckets
    *each(
        (lambda cap: plan_buckets([], cap), ArgumentError, "cap_bytes to be an integer >= 1"),
        *[0, -1, 1.5, True, None],
    ),
    (lambda: BucketPlan.from_json("{}"), ArgumentError, "text of a plan"),
    # buffersync
    (lambda: DDP(Counting(), SoloCommunicator(), broadcast_buffers="max"), ArgumentError, "one of 'broadcast', 'mean'"),
    *each(
        (
            lambda cadence: DDP(Counting(), SoloCommunicator(), buffer_cadence=cadence),
            ArgumentError,
            "expected buffer_cadence to be an integer >= 1",
        ),
        *[0, -1, 1.5, True],
    ),
    # collectives
    (lambda: collectives.all_reduce([]), ArgumentError, "at least one array"),
    (lambda: collectives.all_reduce([np.ones(2, np.int64)], ReduceOp.AVG), DtypeError, "AVG, got int64"),
    (lambda: collectives.all_reduce([TWO, THREE]), ShapeError, r"one shape, got \(2,\) and \(3,\)"),
    (lambda: collectives.all_reduce([TWO, np.zeros(2, int)]), DtypeError, "one dtype, got float64 and int64"),
    (lambda: collectives.all_reduce(["abc"]), DtypeError, "expected an array of NumPy or CuPy, got str"),
    (lambda: collectives.broadcast([TWO, TWO.copy()], 2), ArgumentError, r"root .* in \[0, 2\), got 2"),
    (lambda: collectives.broadcast([TWO, THREE], 0), ShapeError, "broadcast: expected arrays of one shape"),
    (lambda: collectives.reduce_scatter([TWO], [THREE]), ShapeError, r"1 times the elements of \(2,\), got 1 of"),
    (lambda: collectives.all_gather([THREE] * 2, [TWO] * 2), ShapeError, r"2 times the elements of \(2,\)"),
    (lambda: collectives.all_gather([TWO], [TWO.astype(int)]), DtypeError, "got float64 and int64"),
    (lambda: collectives.all_gather([], []), ArgumentError, "all_gather: expected at least one array, got none"),
    (lambda: rooted.reduce([], 0), ArgumentError, "reduce: expected at least one array, got none"),
    (lambda: rooted.reduce([TWO], 1), ArgumentError, r"reduce: expected root to be an integer in \[0, 1\), got 1"),
    (lambda: rooted.reduce([np.ones(2, int)], 0, ReduceOp.AVG), DtypeError, "AVG, got int64"),
    (lambda: rooted.gather(TWO, []), ArgumentError, "gather: expected at least one array, got none"),
    (lambda: rooted.gather(THREE, [TWO]), ShapeError, "gather: expected 1 x 2 elements in all, got 3"),
    (lambda: rooted.scatter([TWO, THREE], TWO), ShapeError, r"scatter: expected arrays of one shape"),
    (lambda: rooted.scatter([TWO], TWO.astype(int)), DtypeError, "got int64 and float64"),
    (lambda: rooted.all_to_all([TWO] * 2, [TWO]), ShapeError, "2 sources of 2 equal parts each, got 1"),
    (lambda: rooted.all_to_all([], []), ArgumentError, "all_to_all: expected at least one array, got none"),
    # ddp
    (lambda: DDP(Mlp(0), SoloCommunicator(), bucket_plan=plan_buckets([])), ReplicaMismatchError, "parameters of this"),
    (lambda: DDP(Mlp(0), SoloCommunicator()).broadcast_parameters(1), ArgumentError, r"root to be an integer in \[0"),
    # fake nccl
    (lambda: FakeNccl().NcclCommunicator(1, b"abc", 0), ValueError, "commId length 3"),
    (lambda: FakeNccl().NcclCommunicator(1, FakeNccl().get_unique_id(), 1), NcclError, "rank 1 of 1"),
    # faults
    (lambda: pickle.dumps(DDP(Mlp(0), SoloCommunicator())), ArgumentError, "got a DistributedDataParallel"),
    # fingerprint
    (lambda: fingerprint(np.zeros(2, np.complex128)), DtypeError, "1, 2, 4 or 8 bytes, got complex128"),
    *each(
        (
            lambda every: DDP(nn.Linear(3, 2), SoloCommunicator(), check_replicas_every=every),
            ArgumentError,
            "check_replicas_every, where it is not None, to be an integer >= 1",
        ),
        *[0, -1, 1.5, True],
    ),
    (lambda: Dispatcher(3, ChunkPool(5, 2)), ArgumentError, "Dispatcher: expected a communicator, got int"),
    (lambda: distributed.merge_ledger(3, SampleLedger(5)), ArgumentError, "merge_ledger: expected a communicator"),
    *each(
        (lambda options: Dispatcher(SoloCommunicator(), ChunkPool(5, 2), **options), ArgumentError),
        ({"ledger": 3}, "expected ledger as a SampleLedger, got 3"),
        ({"shares": 1.0}, "expected shares"),
    ),
    (
        lambda: Dispatcher(SoloCommunicator(), ChunkPool(5, 2)).rounds((1,)),
        ArgumentError,
        r"Dispatcher.rounds: expected counts as a function, got \(1,\)",
    ),
    # manual sync
    (lambda: DDP(Mlp(0), SoloCommunicator(), sync="never"), ArgumentError, "one of 'auto', 'manual', got 'never'"),
    # messages
    *each(
        (lambda call: call(TWO, 0, group=SoloCommunicator()), ArgumentError, "another rank than 0, and there is none"),
        *[distributed.send, distributed.recv, distributed.isend, distributed.irecv],
    ),
    *each(
        (lambda call: call(TWO, group=SoloCommunicator()), ArgumentError, "expected either ... or group_..."),
        *[distributed.send, distributed.recv, distributed.isend, distributed.irecv],
    ),
    (lambda: distributed.isend(TWO, 1, group=SoloCommunicator()), ArgumentError, r"the global ranks \[0\], got 1"),
    (lambda: distributed.P2POp(print, TWO, 1), ArgumentError, "expected op to be isend or irecv, got <built-in"),
    (lambda: distributed.P2POp(distributed.isend, 3.0, 1), ArgumentError, "P2POp: expected a tensor or an array"),
    (lambda: distributed.P2POp(distributed.isend, TWO), ArgumentError, "either peer or group_peer, got None and None"),
    (lambda: distributed.batch_isend_irecv([]), ArgumentError, r"a list of P2POps, got \[\]"),
    (lambda: distributed.batch_isend_irecv([TWO]), ArgumentError, r"a list of P2POps, got \[array"),
    (lambda: distributed.batch_isend_irecv(TWO), ArgumentError, "expected p2p_op_list to be"),
    (lambda: RingAllReduce(SoloCommunicator()).all_reduce(np.ones(2, int), ReduceOp.AVG), DtypeError, "AVG, got int64"),
    *each(
        (lambda make: make(device="cuda:99"), DeviceError, r"expected one of the devices present \(.*cpu.*\)"),
        *[distributed.init, distributed.SoloCommunicator],
    ),
    # mpi
    (lambda: _connect("mpi", Seat(0, 2, 0, 2, "mpi"), Device("cuda"), 1.0), ArgumentError, "the device cpu"),
    # nccl
    (load_nccl, MissingPackageError, "pip install"),
    *each(
        (lambda listed: NcclDevices(listed, nccl=FakeNccl()), ArgumentError, "NcclDevices: expected"),
        *[[], ["cpu"], ["cuda:0", "cpu"], ["cuda:1", "cuda:1"]],
    ),
    # nonfinite
    (lambda: DDP(Slopes(), SoloCommunicator()).nonfinite_gradients(), ArgumentError, "nonfinite_gradients"),
    (lambda: DDP(Slopes(), SoloCommunicator(), track_nonfinite=1), ArgumentError, "track_nonfinite"),
    # noise
    *each(
        (lambda squares, samples, combined: gradient_noise(squares, samples, combined), ArgumentError),
        ([1.0], [1, 1], 1.0, "a square for each rank, .* got 1 squares"),
        ([1.0, 1.0], [1, 0], 1.0, "at least two ranks with samples"),
        ([1.0, -1.0], [1, 1], 1.0, "squares >= 0 of ranks with samples, got -1.0"),
        ([1.0, np.nan], [1, 1], 1.0, "squares >= 0 of ranks with samples, got nan"),
        ([1.0, 1.0], [1, -1], 1.0, "a finite number of samples >= 0, got -1"),
        ([1.0, 1.0], [1, 1], np.inf, "gradient_noise: expected combined to be a finite"),
        (1.0, [1, 1], 1.0, "gradient_noise: expected squares as a sequence"),
    ),
    (lambda: divergence_hook(3, None, None), ArgumentError, "divergence_hook: expected a DivergenceMeter as state"),
    (lambda: DivergenceMeter().report(), ArgumentError, "DivergenceMeter: expected a pass before report"),
    (lambda: noise_hook(None, None, None), ArgumentError, "noise_hook: expected a NoiseMeter as state, got NoneType"),
    # rendezvous
    (lambda: Rendezvous(0, 2, "no such host.invalid", 1, b"key", 1.0), RankFailedError, "to listen at no such"),
    (lambda: Rendezvous(1, 2, "127.0.0.1", free_port(), b"key", 0.2), CollectiveTimeoutError, "rank 1: rendezvous"),
    (lambda: Rendezvous(0, 2, "127.0.0.1", 0, b"", 1.0), ArgumentError, "a key, got an empty one"),
    (lambda: Rendezvous(2, 2, "127.0.0.1", 0, b"key", 1.0), ArgumentError, "0 <= rank < world_size"),
    # replicas
    *each(
        (lambda how: Ddp.wrap([Odd(0, how), Odd(1, how)], ["cpu", "cpu"]), ReplicaMismatchError),
        ("shape", r"'w2' float64 \(2, 5\) on rank 0 and parameter 'w2' float64 \(4, 5\) on rank 1"),
        ("dtype", r"'w2' float64 \(2, 5\) on rank 0 and parameter 'w2' float32"),
        ("frozen", r"'w2' float64 \(2, 5\), frozen on rank 1"),
        ("extra", "missing on rank 0 and parameter 'w3'"),
        ("buffer", "missing on rank 0 and buffer 'running'"),
    ),
    # timelines
    # the twin, on one rank
    (lambda: twin(model=nn.Linear(2, 2)), ArgumentError, "Twin: expected a wrapper whose module is a"),
    (lambda: twin(model=Wrapping(SyncBatchNorm(2, SoloCommunicator()))), ArgumentError, "got a SyncBatchNorm"),
    (lambda: twin(optimizer="adam"), ArgumentError, "Twin: expected an Optimizer or None, got str"),
    (lambda: twin(optimizer=optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)), ArgumentError, "got SGD of others too"),
    (lambda: twin(loss_fn=None), ArgumentError, "Twin: expected loss_fn as a function, got None"),
    (lambda: twin(before_step=3), ArgumentError, "Twin: expected before_step as a function, got 3"),
    (lambda: twin(scaler=2.0), ArgumentError, "Twin: expected scaler as a GradScaler, got 2.0"),
    (lambda: twin(every=0), ArgumentError, "Twin: expected every"),
    (lambda: twin(batch_dim=0.5), ArgumentError, "Twin: expected batch_dim"),
    (lambda: twin(reduce="max"), ArgumentError, "Twin: expected reduce to be one of 'mean', 'sum'"),
    (lambda: twin(ulps=-1), ArgumentError, "Twin: expected ulps"),
    (lambda: twin(raises=1), ArgumentError, "Twin: expected raises to be True or False"),
    (lambda: twin(comm=3), ArgumentError, "Twin: expected a communicator"),
    (lambda: twin().step([1]), ArgumentError, "whose first tensor has axis 0, .* got none: give"),
    (lambda: twin().step(None, 3), ArgumentError, "Twin: expected 0 samples without a batch, got 3"),
    (lambda: twin().accumulate([], -1), ArgumentError, "Twin: expected a finite number of samples"),
    (lambda: twin().step(minigrad.ones(2, 2)), ArgumentError, "expected a forward of the wrapped module"),
    (lambda: twin(forward=True).step({1: object()}, 1), DtypeError, "a batch of tensors, .* got object in it"),
    (lambda: ReplicasTwin(nn.Linear(2, 2), None, max), ArgumentError, "ReplicasTwin: expected Replicas, got Linear"),
    (lambda: ReplicasTwin(pair(), [1], max), ArgumentError, "an optimizer for each of 2 replicas, got 1"),
    (lambda: ReplicasTwin(pair(), None, max).step([None]), ArgumentError, "for each of 2 replicas, got 1, and 2"),
    (lambda: ReplicasTwin(pair(), None, max).accumulate(3), ArgumentError, "expected batches as a sequence"),
    (lambda: Timeline(last_steps=0), ArgumentError, "Timeline: expected last_steps"),
    (lambda: Timeline(depth=-1), ArgumentError, "Timeline: expected depth"),
    (lambda: Timeline().at(3), ArgumentError, "Timeline.at: expected a communicator"),
    (lambda: Timeline().at(rank=-1), ArgumentError, "Timeline.at: expected rank"),
    (lambda: Timeline().span(3), ArgumentError, "Timeline.span: expected kind as text, got 3"),
    (lambda: Timeline().span("data", 4), ArgumentError, "Timeline.span: expected name as text, got 4"),
    (lambda: Timeline().event(3), ArgumentError, "Timeline.event: expected kind as text, got 3"),
    (lambda: Timeline().event("loss", value=minigrad.ones(1)), ArgumentError, "value as Tensor: write value=x.item"),
    (lambda: Timeline().span("data", size=np.ones(2)), ArgumentError, "Timeline.span: expected fields as numbers"),
    (lambda: Timeline().export_chrome_trace, AbsentNameError, "write timeline.to_perfetto"),
    (lambda: Timeline.merged(Timeline()), ArgumentError, "Timeline.merged: expected timelines in a list"),
    (lambda: Timeline.merged([3]), ArgumentError, "Timeline.merged: expected timelines, got 3"),
    (lambda: Timeline().gather(), ArgumentError, "Timeline.gather: expected a communicator in this context, got none"),
    (lambda: Timeline().idle_gaps(0), ArgumentError, "idle_gaps: expected a rank of .., got 0"),
    (lambda: page_of(Timeline(), 3), ArgumentError, "page_of: expected title as text, got 3"),
    (lambda: Trace([]).table("a"), ArgumentError, "Trace.table: expected first to be an integer, got 'a'"),
    (lambda: page_of(3), ArgumentError, "page_of: expected a Timeline, or the Trace of a simulation, got 3"),
    (lambda: save_page(3, "run.html"), ArgumentError, "save_page: expected a Timeline, or the Trace"),
    (lambda: Timeline().save("run.png"), ArgumentError, "Timeline.save: expected a path that ends on "),
    (lambda: Timeline().to_chakra("gone"), ArgumentError, "to_chakra: expected spans or events of a rank, got none"),
    (lambda: Timeline.from_json("{}"), ArgumentError, "Timeline.from_json: expected the text of to_json"),
    (lambda: replay(Timeline(), link=3), ArgumentError, "replay: expected a Link, got 3"),
    (lambda: explain(3), ArgumentError, "explain: expected a Timeline"),
    (lambda: explain(Timeline()), ArgumentError, "explain: expected a record with a step"),
    (lambda: replay(3), ArgumentError, "replay: expected a Timeline"),
    (lambda: Trace([]).plot(width=0), ArgumentError, "Trace.plot: expected width"),
    (lambda: Trace.from_json("{}"), ArgumentError, "Trace.from_json: expected the text of to_json"),
    (lambda: Ddp.wrap([nn.Linear(2, 1)], ["cpu"], timeline=3), ArgumentError, "Replicas: expected timeline as a Tim"),
    (lambda: DDP(nn.Linear(2, 1), SoloCommunicator(), timeline=3), ArgumentError, "timeline as a Timeline, got 3"),
    # reading records
    (lambda: read_hang(3), ArgumentError, "read_hang: expected the path of a folder, got 3"),
    (lambda: read_hang("/nothing"), ArgumentError, "read_hang: expected files .* of a run in /nothing, got none"),
    (lambda: explain_ranks(3), ArgumentError, "explain_ranks: expected a Timeline, or the Trace of a simulation"),
    (lambda: explain_ranks(Timeline()), ArgumentError, "expected a record with a step that two ranks made, got 0"),
    (lambda: explain_ranks(Timeline(), least_fraction=2), ArgumentError, "expected least_fraction"),
    (lambda: explain_ranks(Timeline(), least_s=-1), ArgumentError, "expected least_s"),
    (lambda: steps_of(3), ArgumentError, "steps_of: expected a Timeline, or the Trace of a simulation, got 3"),
    # rounds
    (lambda: next(Rounds(SoloCommunicator()).deal(iter([1]))), ArgumentError, "Rounds.deal: expected a list"),
    (lambda: Rounds(SoloCommunicator(), timeline=print), ArgumentError, "Rounds: expected a timeline"),
    (lambda: Rounds(SoloCommunicator(), guard=0.5), ArgumentError, "Rounds: expected a guard .state, divergence. -> "),
    # simulated balance
    *each(
        (lambda batch: next(Balancer(SoloCommunicator()).deal([batch])), ArgumentError, "expected the indices"),
        *[np.zeros((2, 2), int), [0.5, 1.5], [[1], [2]]],
    ),
    # streams
    (lambda: CudaTimer(Device("cpu"), slots=0, streams=HostStreams), ArgumentError, "slots to be an integer >= 1"),
    # syncbn
    (lambda: SyncBatchNorm(3, SoloCommunicator(), reduce="max"), ArgumentError, "'mean', 'sum', got 'max'"),
    (lambda: convert_sync_batchnorm([], SoloCommunicator()), ArgumentError, "a Module, got list"),
    (lambda: SyncBatchNorm(3, SoloCommunicator())(minigrad.randn(2, 4)), ShapeError, r"\(N, 3, ...\), got \(2, 4\)"),
    (lambda: SyncBatchNorm(3, SoloCommunicator())(minigrad.randn(3)), ShapeError, r"got \(3,\)"),
    (lambda: SyncBatchNorm(3, SoloCommunicator())(minigrad.Tensor(np.ones((2, 3)))), DtypeError, "float32 on cpu"),
    (
        lambda: SyncBatchNorm(3, SoloCommunicator())(minigrad.Tensor(np.ones((2, 3), np.int64))),
        DtypeError,
        "float tensor, got int64",
    ),
    (lambda: SyncBatchNorm(3, SoloCommunicator())(np.ones((2, 3))), DtypeError, "a tensor, got ndarray"),
    # wrappers
    *each(
        (
            lambda fault, array: FaultInjecting(SoloCommunicator(), [fault]).all_reduce(array),
            (ArgumentError, DtypeError),
        ),
        (Fault("nan", rank=0), np.zeros(2, np.int64), "a float dtype for nan on rank 0, got int64"),
        (Fault("nan", rank=0, element=2), np.zeros(2), "an element of 2 for nan on rank 0, got 2"),
        (Fault("corrupt", rank=0, bit=8), np.zeros(2, np.int8), "a bit of int8 for corrupt on rank 0, got 8"),
        (Fault("corrupt", rank=0), np.zeros(0), "a call with an array to spoil"),
    ),
]
