"""Collectives by PyTorch's names, on the communicator of this context; `group` is another one in its place.

That communicator is the thread's inside `distributed.run`, or the one that `init` made; where there are two, as after
an `init` inside `run`, the last of them. Each function is a line or two on its methods: names and order of arguments
are PyTorch's, arrays are as good as tensors. All ranks make the same calls in the same order, and a call that another
rank does not make is an error on all of them, or of the one that waits.

All raise ArgumentError where this context has no communicator, or an argument is out of range; collectives also
AutogradError for a tensor that requires grad, outside `no_grad`, and ShapeError, DtypeError and DeviceError for what
does not fit: arrays are C-contiguous, of one shape and dtype on all ranks, on the device of their rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from minigrad.arguments import as_sequence, check_choice
from minigrad.backend.device import Device
from minigrad.backend.dtypes import Array
from minigrad.backend.ranks import ranks_here, set_ranks_here
from minigrad.distributed.bootstrap import BACKENDS, init
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.checks import check_array
from minigrad.distributed.comm.context import MaybeGroup, NonMember, communicator_for, rank_within
from minigrad.distributed.comm.protocol import Communicator, Work
from minigrad.distributed.comm.work import OVER, DeliveringWork
from minigrad.distributed.comm.wrappers import innermost
from minigrad.distributed.run import thread_rank
from minigrad.errors import ArgumentError, ShapeError
from minigrad.foreign import spoken

group = SimpleNamespace(WORLD=None)  # PyTorch's name of all ranks: group=dist.group.WORLD
_KINDS = {
    "SoloCommunicator": "solo",
    "ThreadCommunicator": "threads",
    "ShmCommunicator": "shm",
    "MpiCommunicator": "mpi",
    "NcclCommunicator": "nccl",
}


class PendingWork(DeliveringWork):
    """What a call with async_op=True returns."""

    @spoken
    def wait(self, host: bool = False) -> None:
        """Order or block as `Work.wait` does; the result is there then."""
        super().wait(host)

    def is_completed(self) -> bool:
        """Whether the result is there, without waiting for other ranks."""
        if self.done():
            self.wait(host=True)
            return True
        return False


# ------------------------------------------------------------------------------------------------- begin and end


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: None = None,
    group_name: str = "",
    pg_options: None = None,
    device_id: Device | str | int | None = None,
) -> Communicator:
    """`init`, by PyTorch's name; what is given here wins over the environment.

    Inside `distributed.run` it is the thread's communicator, and what is given has to fit that.

    Args:
        backend: "nccl", "mpi", or a name of `init`'s. "gloo" is PyTorch's for CPUs: shared memory, MPI, threads or one
            rank alone, as the script was started. None is what `init` does by default.
        init_method: None or "env://": the environment says where the others are, see `init`.
        timeout: How long a collective waits.
        world_size, rank: Both or none; -1 is none.
        device_id: The GPU, for "nccl".

    Returns:
        The communicator; all functions of PyTorch's names use it from now on.

    Raises:
        ArgumentError: an argument that asks for what is not there; the message says what to write. Or as `init`.

    Example:
        >>> from minigrad.distributed import run
        >>> def body(comm):
        ...     init_process_group("gloo")
        ...     return get_rank(), get_world_size()
        >>> run(body, 2)
        [(0, 2), (1, 2)]
    """
    who = "init_process_group"
    for name, value in {"store": store, "pg_options": pg_options, "group_name": group_name or None}.items():
        if value is not None:
            raise ArgumentError(f"{who}: expected no {name}, got {value!r:.100}: leave it out")
    if init_method not in (None, "env://"):
        raise ArgumentError(
            f"{who}: expected init_method to be None or 'env://', got {init_method!r}: set MASTER_ADDR, MASTER_PORT "
            "and MINIGRAD_AUTHKEY, or start with python -m minigrad.distributed.launch"
        )
    if backend is not None:
        check_choice(who, ("gloo", "threads", *BACKENDS), backend=backend)
    if timeout is not None and not isinstance(timeout, timedelta):
        raise ArgumentError(
            f"{who}: expected timeout to be a datetime.timedelta, got {timeout!r:.100}: or write init(timeout_s=)"
        )
    timeout_s = None if timeout is None else timeout.total_seconds()
    here = thread_rank.get()
    if here is not None:
        _check_fits(here, backend=backend, rank=rank, world_size=world_size, timeout=timeout_s, device_id=device_id)
        return init()
    if backend == "gloo" and device_id is not None:
        raise ArgumentError(f"{who}: expected no device_id for backend 'gloo', got {device_id!r}: write backend='nccl'")
    return init(
        backend=None if backend == "gloo" else backend,
        rank=None if rank == -1 else rank,
        world_size=None if world_size == -1 else world_size,
        device="cpu" if backend == "gloo" else f"cuda:{device_id}" if isinstance(device_id, int) else device_id,
        timeout_s=timeout_s,
    )


def _check_fits(comm: Communicator, **wanted: Any) -> None:
    """Refuse what a thread rank is not."""
    known: dict[str, tuple[Any, ...]] = {
        "backend": (None, "gloo", "threads"),
        "rank": (-1, comm.rank),
        "world_size": (-1, comm.world_size),
        "timeout": (None, comm.timeout_s),
        "device_id": (None, comm.device, str(comm.device), comm.device.index if comm.device.type == "cuda" else None),
    }
    for name, value in wanted.items():
        if value not in known[name]:
            raise ArgumentError(
                f"init_process_group: expected {name} to be that of this thread rank, {known[name][1]!r}, got "
                f"{value!r}: leave it out inside distributed.run"
            )


def destroy_process_group(group: MaybeGroup = None) -> None:
    """Close the communicator, and with it its groups; then this context has none. Other ranks are not waited for.

    Args:
        group: A group alone; nothing is to be done where this rank is not in it.
    """
    if isinstance(group, NonMember):
        return
    comm = communicator_for("destroy_process_group", group)
    comm.close()
    if comm is ranks_here():
        set_ranks_here(None)


def is_available() -> bool:
    """Always."""
    return True


def is_initialized() -> bool:
    """Whether this context has a communicator."""
    return ranks_here() is not None


def get_rank(group: MaybeGroup = None) -> int:
    """This rank, 0 <= rank < world_size; -1 where it is not in the group."""
    if isinstance(group, NonMember):
        return -1
    return communicator_for("get_rank", group).rank


def get_world_size(group: MaybeGroup = None) -> int:
    """How many ranks there are; -1 where this one is not in the group."""
    if isinstance(group, NonMember):
        return -1
    return communicator_for("get_world_size", group).world_size


def get_backend(group: MaybeGroup = None) -> str:
    """What moves the bytes: "solo", "threads", "shm", "mpi" or "nccl"; never "gloo". The class of one of your own."""
    kind = type(innermost(communicator_for("get_backend", group))).__name__
    return _KINDS.get(kind, kind)


# --------------------------------------------------------------------------------------------------- collectives


def all_reduce(
    tensor: Any, op: ReduceOp = ReduceOp.SUM, group: MaybeGroup = None, async_op: bool = False
) -> PendingWork | None:
    """Overwrite tensor by its reduction over the ranks; the same bits on all of them.

    It is a plain sum, or mean: where ranks have different numbers of samples, the mean of their gradients is not that
    of all samples. See `average_gradients`.
    """
    return end(communicator_for("all_reduce", group).all_reduce(tensor, op), async_op)


def broadcast(
    tensor: Any,
    src: int | None = None,
    group: MaybeGroup = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> PendingWork | None:
    """Overwrite tensor by that of global rank src, or of rank group_src of the group."""
    comm = communicator_for("broadcast", group)
    return end(comm.broadcast(tensor, rank_within("broadcast", comm, "src", src, group_src)), async_op)


def all_gather(
    tensor_list: Sequence[Any], tensor: Any, group: MaybeGroup = None, async_op: bool = False
) -> PendingWork | None:
    """Overwrite tensor_list[r] by the tensor of rank r; all have one shape. Nothing flows back through it.

    For tensors with different numbers of rows, or gradients, see `distributed.nn.all_gather`.
    """
    comm = communicator_for("all_gather", group)
    outputs = arrays_like("all_gather", comm, "tensor_list", tensor_list, tensor)
    source = check_array("all_gather", comm.rank, tensor, False, comm.device)
    with comm.device.current() as xp:
        gathered = xp.empty((comm.world_size, *source.shape), source.dtype)

    def deliver() -> None:
        with comm.device.current():
            for output, row in zip(outputs, gathered):
                output[...] = row

    return end(comm.all_gather(gathered, source), async_op, deliver)


def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: MaybeGroup = None, async_op: bool = False
) -> PendingWork | None:
    """Overwrite output_tensor (world_size * n, ...) by the input_tensor (n, ...) of all ranks, in order of rank."""
    return end(communicator_for("all_gather_into_tensor", group).all_gather(output_tensor, input_tensor), async_op)


def reduce_scatter(
    output: Any,
    input_list: Sequence[Any],
    op: ReduceOp = ReduceOp.SUM,
    group: MaybeGroup = None,
    async_op: bool = False,
) -> PendingWork | None:
    """Overwrite output by the reduction over the ranks of their input_list[rank]; all have one shape."""
    comm = communicator_for("reduce_scatter", group)
    sources = arrays_like("reduce_scatter", comm, "input_list", input_list, output, written=False)
    with comm.device.current() as xp:
        source = xp.stack(sources)
    return end(comm.reduce_scatter(output, source, op), async_op)


def reduce_scatter_tensor(
    output: Any,
    input: Any,
    op: ReduceOp = ReduceOp.SUM,
    group: MaybeGroup = None,
    async_op: bool = False,
) -> PendingWork | None:
    """Overwrite output (n, ...) by part `rank` of the reduction of input (world_size * n, ...), which stays."""
    comm = communicator_for("reduce_scatter_tensor", group)
    source = check_array("reduce_scatter_tensor", comm.rank, input, False, comm.device)
    with comm.device.current():
        source = source.copy()
    return end(comm.reduce_scatter(output, source, op), async_op)


def all_gather_object(object_list: list[Any], obj: Any, group: MaybeGroup = None) -> None:
    """Overwrite object_list[r] by the object of rank r: JSON data, for small things; blocks.

    Raises:
        DtypeError: obj is no JSON data, such as a tuple or a tensor.
    """
    comm = communicator_for("all_gather_object", group)
    check_length("all_gather_object", comm, "object_list", object_list)
    object_list[:] = comm.all_gather_object(obj)


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: MaybeGroup = None,
    device: Device | str | None = None,
    group_src: int | None = None,
) -> None:
    """Overwrite object_list by that of global rank src: JSON data, for small things; blocks.

    Args:
        src, group_src: One of the two, see `broadcast`; global rank 0 where neither is given.
        device: None, or that of this rank: such data travels between the hosts.

    Raises:
        ArgumentError: another device; or a list of another length than that of src, on that rank.
        DtypeError: the list of src holds no JSON data.
    """
    comm = communicator_for("broadcast_object_list", group)
    who = f"rank {comm.rank}: broadcast_object_list"
    root = rank_within(who, comm, "src", src, group_src, default=0)
    if device is not None and Device(device) != comm.device:
        raise ArgumentError(f"{who}: expected no device but {comm.device}, got {device!r}: leave it out")
    as_sequence(who, "object_list", object_list)
    objects = comm.all_gather_object(object_list if comm.rank == root else None)[root]
    if len(objects) != len(object_list):
        src = comm.global_ranks[root]
        raise ArgumentError(f"{who}: expected object_list of {len(objects)}, as on rank {src}, got {len(object_list)}")
    object_list[:] = objects


def barrier(
    group: MaybeGroup = None, async_op: bool = False, device_ids: Sequence[int] | None = None
) -> PendingWork | None:
    """Return when all ranks have called it, with async_op too.

    Args:
        device_ids: None, or the one of this rank: ranks meet on their hosts.
    """
    comm = communicator_for("barrier", group)
    if device_ids is not None and (comm.device.type != "cuda" or list(device_ids) != [comm.device.index]):
        raise ArgumentError(f"barrier: expected no device_ids but that of {comm.device}, got {device_ids!r}")
    comm.barrier()
    return end(OVER, async_op)


def end(work: Work, async_op: bool, deliver: Callable[[], None] | None = None) -> PendingWork | None:
    """The work of a collective, or nothing where it is waited for here."""
    pending = PendingWork(work, deliver)
    if async_op:
        return pending
    pending.wait()
    return None


def check_length(who: str, comm: Communicator, name: str, values: Any) -> None:
    """Refuse anything but a list or tuple with a value for each rank."""
    as_sequence(f"rank {comm.rank}: {who}", name, values)
    if len(values) != comm.world_size:
        raise ArgumentError(
            f"rank {comm.rank}: {who}: expected {name} of {comm.world_size}, one for each rank, got {len(values)}"
        )


def arrays_like(who: str, comm: Communicator, name: str, tensors: Any, like: Any, written: bool = True) -> list[Array]:
    """The arrays of a list with a tensor for each rank, each of the shape of another one."""
    check_length(who, comm, name, tensors)
    arrays = [check_array(who, comm.rank, tensor, written, comm.device) for tensor in tensors]
    wanted = check_array(who, comm.rank, like, False, comm.device)
    for r, array in enumerate(arrays):
        if (array.shape, array.dtype) != (wanted.shape, wanted.dtype):
            raise ShapeError(
                f"rank {comm.rank}: {who}: expected {name}[{r}] to be {wanted.dtype.name} {wanted.shape}, got "
                f"{array.dtype.name} {array.shape}"
            )
    return arrays
