"""PyTorch's names of the collectives after which ranks hold different things; see `process_group`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigrad.arguments import as_integer, as_sequence
from minigrad.backend.dtypes import Array
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.checks import check_array
from minigrad.distributed.comm.context import MaybeGroup, communicator_for, rank_within
from minigrad.distributed.comm.differences import gather_alike
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.process_group import PendingWork, arrays_like, check_length, end
from minigrad.errors import ArgumentError, DtypeError, ShapeError


def reduce(
    tensor: Any,
    dst: int | None = None,
    op: ReduceOp = ReduceOp.SUM,
    group: MaybeGroup = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> PendingWork | None:
    """Overwrite the tensor of global rank dst by the reduction over the ranks; those of the others stay as they are.

    Args:
        group_dst: In place of dst, a rank of the group.
    """
    comm = communicator_for("reduce", group)
    return end(comm.reduce(tensor, rank_within("reduce", comm, "dst", dst, group_dst), op), async_op)


def gather(
    tensor: Any,
    gather_list: Sequence[Any] | None = None,
    dst: int | None = None,
    group: MaybeGroup = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> PendingWork | None:
    """Overwrite gather_list[r] of rank dst by the tensor of rank r; all have one shape.

    Args:
        gather_list: On rank dst a tensor for each rank; elsewhere None.
        dst, group_dst: The global rank, or the rank in the group; global rank 0 where neither is given.
    """
    comm = communicator_for("gather", group)
    outputs, root = _at_root("gather", comm, "gather_list", gather_list, dst=(dst, group_dst))
    if outputs is None:
        return end(comm.gather(None, tensor, root), async_op)
    outputs = arrays_like("gather", comm, "gather_list", outputs, tensor)
    source = check_array("gather", comm.rank, tensor, False, comm.device)
    with comm.device.current() as xp:
        gathered = xp.empty((comm.world_size, *source.shape), source.dtype)

    def deliver() -> None:
        with comm.device.current():
            for output, row in zip(outputs, gathered):
                output[...] = row

    return end(comm.gather(gathered, source, root), async_op, deliver)


def scatter(
    tensor: Any,
    scatter_list: Sequence[Any] | None = None,
    src: int | None = None,
    group: MaybeGroup = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> PendingWork | None:
    """Overwrite tensor by scatter_list[rank] of rank src; all have one shape.

    Args:
        scatter_list: On rank src a tensor for each rank; elsewhere None.
        src, group_src: The global rank, or the rank in the group; global rank 0 where neither is given.
    """
    comm = communicator_for("scatter", group)
    sources, root = _at_root("scatter", comm, "scatter_list", scatter_list, src=(src, group_src))
    if sources is None:
        return end(comm.scatter(tensor, None, root), async_op)
    arrays = arrays_like("scatter", comm, "scatter_list", sources, tensor, written=False)
    with comm.device.current() as xp:
        source = xp.stack(arrays)
    return end(comm.scatter(tensor, source, root), async_op)


def all_to_all(
    output_tensor_list: Sequence[Any],
    input_tensor_list: Sequence[Any],
    group: MaybeGroup = None,
    async_op: bool = False,
) -> PendingWork | None:
    """Overwrite output_tensor_list[r] by input_tensor_list[rank] of rank r; their sizes may differ from rank to rank.

    Ranks tell each other these sizes first, for which their hosts wait. `all_to_all_single` of equal parts needs none.

    Raises:
        ShapeError: two ranks mean different sizes; on all ranks.
    """
    who = "all_to_all"
    comm = communicator_for(who, group)
    lists = []
    for name, tensors in {"output_tensor_list": output_tensor_list, "input_tensor_list": input_tensor_list}.items():
        check_length(who, comm, name, tensors)
        written = name == "output_tensor_list"
        lists.append([check_array(who, comm.rank, tensor, written, comm.device) for tensor in tensors])
    return _uneven(who, comm, *lists, async_op=async_op)


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: MaybeGroup = None,
    async_op: bool = False,
) -> PendingWork | None:
    """Overwrite the rows of output that are for rank r by those rows of its input that are for this rank.

    Where ranks give sizes, they tell each other first, for which their hosts wait; they then travel padded.

    Args:
        output_split_sizes, input_split_sizes: How many rows (dim 0) come from, and go to, each rank; where both are
            None on all ranks, and on none else, all parts are equal.

    Raises:
        ShapeError: rows that can't be divided so; or two ranks mean different sizes, on all ranks.
    """
    who = "all_to_all_single"
    comm = communicator_for(who, group)
    into = check_array(who, comm.rank, output, True, comm.device)
    out_of = check_array(who, comm.rank, input, False, comm.device)
    outputs = _rows(who, comm, "output", into, output_split_sizes)
    sources = _rows(who, comm, "input", out_of, input_split_sizes)
    if output_split_sizes is None and input_split_sizes is None:
        return end(comm.all_to_all(into, out_of), async_op)
    return _uneven(who, comm, outputs, sources, async_op=async_op)


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: MaybeGroup = None,
    group_dst: int | None = None,
) -> None:
    """Overwrite object_gather_list[r] of rank dst by the object of rank r: JSON data, for small things; blocks.

    Args:
        object_gather_list: On rank dst a list with a place for each rank; elsewhere None.
        dst, group_dst: The global rank, or the rank in the group; global rank 0 where neither is given.

    Raises:
        DtypeError: obj is no JSON data, such as a tuple or a tensor.
        ReplicaMismatchError: ranks name different roots; on all of them.
    """
    comm = communicator_for("gather_object", group)
    places, root = _at_root("gather_object", comm, "object_gather_list", object_gather_list, dst=(dst, group_dst))
    if places is not None:
        check_length("gather_object", comm, "object_gather_list", places)
    objects = gather_alike("gather_object", "roots", comm, {"dst": comm.global_ranks[root]}, obj)
    if object_gather_list is not None and places is not None:
        object_gather_list[:] = objects


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: Sequence[Any] | None = None,
    src: int | None = None,
    group: MaybeGroup = None,
    group_src: int | None = None,
) -> None:
    """Overwrite scatter_object_output_list[0] by scatter_object_input_list[rank] of rank src: JSON data; blocks.

    Args:
        scatter_object_output_list: A list with one place, at least.
        scatter_object_input_list: On rank src an object for each rank; not looked at elsewhere.
        src, group_src: The global rank, or the rank in the group; global rank 0 where neither is given.

    Raises:
        DtypeError: an object is no JSON data, such as a tuple or a tensor.
        ReplicaMismatchError: ranks name different roots; on all of them.
    """
    who = "scatter_object_list"
    comm = communicator_for(who, group)
    root = rank_within(f"rank {comm.rank}: {who}", comm, "src", src, group_src, default=0)
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        raise ArgumentError(
            f"rank {comm.rank}: {who}: expected scatter_object_output_list to be a list with a place for an object, "
            f"got {scatter_object_output_list!r:.100}"
        )
    objects = None
    if comm.rank == root:
        objects, _ = _at_root(who, comm, "scatter_object_input_list", scatter_object_input_list, src=(src, group_src))
        check_length(who, comm, "scatter_object_input_list", objects)
    lists = gather_alike(who, "roots", comm, {"src": comm.global_ranks[root]}, objects)
    scatter_object_output_list[0] = lists[root][comm.rank]


# --------------------------------------------------------------------------------------------------------- parts


def _at_root(
    who: str, comm: Communicator, name: str, values: Any, **named: tuple[int | None, int | None]
) -> tuple[Any, int]:
    """What the root alone has, None elsewhere, where an empty list counts as None; and its rank in the group.

    Args:
        name, values: What it is called, and what this rank has of it.
        named: The root's global rank, or that in the group, by the name of the first argument.

    Raises:
        ArgumentError: it is missing on the root, or given elsewhere; or the root is no rank.
    """
    who, [(word, ranks)] = f"rank {comm.rank}: {who}", named.items()
    at = rank_within(who, comm, word, *ranks, default=0)
    root = comm.global_ranks[at]
    is_root = comm.rank == at
    if is_root and values is None:
        raise ArgumentError(f"{who}: expected {name} on rank {root}, got None")
    if not is_root and values is not None and len(as_sequence(who, name, values)):
        raise ArgumentError(f"{who}: expected {name} on rank {root} alone, got one of {len(values)} on this rank")
    return (values if is_root else None), at


def _rows(who: str, comm: Communicator, name: str, array: Array, sizes: Sequence[int] | None) -> list[Array]:
    """The parts of an array for each rank, by rows."""
    said, rows = f"rank {comm.rank}: {who}", array.shape[0] if array.ndim else -1
    if sizes is None:
        if rows < 0 or rows % comm.world_size:
            raise ShapeError(
                f"{said}: expected {name} with rows that {comm.world_size} ranks can share, got shape {array.shape}: "
                f"give {name}_split_sizes on all ranks"
            )
        sizes = [rows // comm.world_size] * comm.world_size
    check_length(who, comm, f"{name}_split_sizes", sizes)
    sizes = [as_integer(said, f"{name}_split_sizes[{r}]", size, 0) for r, size in enumerate(sizes)]
    if sum(sizes) != rows:
        raise ShapeError(f"{said}: expected {name}_split_sizes that add up to its {rows} rows, got {sizes}")
    stops = [sum(sizes[: r + 1]) for r in range(len(sizes))]
    return [array[stop - size : stop] for stop, size in zip(stops, sizes)]


def _uneven(
    who: str, comm: Communicator, outputs: list[Array], sources: list[Array], *, async_op: bool
) -> PendingWork | None:
    """Move parts of any sizes, which travel as long as the longest of all ranks."""
    dtypes = list(dict.fromkeys([array.dtype.name for array in [*outputs, *sources]]))
    if len(dtypes) > 1:
        raise DtypeError(f"rank {comm.rank}: {who}: expected tensors of one dtype, got {' and '.join(dtypes)}")
    told = comm.all_gather_object([[part.size for part in sources], [part.size for part in outputs]])
    for giver, (given, _) in enumerate(told):
        for taker, (_, taken) in enumerate(told):
            if given[taker] != taken[giver]:
                raise ShapeError(
                    f"rank {comm.rank}: {who}: expected sizes that fit, got {given[taker]} elements that rank {giver} "
                    f"has for rank {taker} and room for {taken[giver]} there"
                )
    most = max(size for given, _ in told for size in given)
    with comm.device.current() as xp:
        sent = xp.zeros((comm.world_size, most), sources[0].dtype)
        received = xp.empty_like(sent)
        for row, source in zip(sent, sources):
            row[: source.size] = source.reshape(-1)

    def deliver() -> None:
        with comm.device.current():
            for output, row in zip(outputs, received):
                output[...] = row[: output.size].reshape(output.shape)

    return end(comm.all_to_all(received, sent), async_op, deliver)
