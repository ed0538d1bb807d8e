"""What a front makes of `reduce`, `gather`, `scatter` and `all_to_all`, after which ranks hold different things."""

from __future__ import annotations

import numpy as np

from minigrad.arguments import as_integer
from minigrad.backend.dtypes import Array
from minigrad.backend.memory import address_of, duplicate
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.checks import check_parts, check_reduction, check_whole
from minigrad.distributed.comm.protocol import Communicator, Work
from minigrad.distributed.comm.work import DeliveringWork
from minigrad.errors import ArgumentError

What = tuple[str, str]  # a call in words, as in `front`
_NONE = np.empty(0)


class Rooted(Communicator):
    """The part of `Front` that checks these calls; a transport moves their bytes.

    One that says nothing of them moves more than it has to: everything to every rank, by the calls that it has.
    """

    def reduce(self, array: Array, root: int = 0, op: ReduceOp = ReduceOp.SUM) -> Work:
        """Overwrite the root's array by the reduction over the ranks; the others' stay."""
        root = self._root("reduce", root)
        array = self._check("reduce", array, written=self.rank == root)
        check_reduction("reduce", self.rank, array, op)
        return self._reduce_to(("reduce", f"{op.name} root {root}"), array.reshape(-1), root, op)

    def gather(self, output: Array | None, source: Array, root: int = 0) -> Work:
        """Overwrite the root's output by the sources of all ranks, in order of rank."""
        root = self._root("gather", root)
        source = self._check("gather", source, written=False)
        whole = self._at_root("gather", "output", output, root, written=True)
        if whole is not None:
            check_parts("gather", self.rank, whole, source, self.world_size)
            source = self._apart(whole, source)
        return self._gather(("gather", f"root {root}"), whole, source, root)

    def scatter(self, output: Array, source: Array | None, root: int = 0) -> Work:
        """Overwrite output by part `rank` of the root's source."""
        root = self._root("scatter", root)
        output = self._check("scatter", output)
        whole = self._at_root("scatter", "source", source, root, written=False)
        if whole is not None:
            check_parts("scatter", self.rank, whole, output, self.world_size)
            whole = self._apart(output, whole)
        return self._scatter(("scatter", f"root {root}"), output, whole, root)

    def all_to_all(self, output: Array, source: Array) -> Work:
        """Overwrite part r of output by part `rank` of the source of rank r."""
        output, source = self._check("all_to_all", output), self._check("all_to_all", source, written=False)
        check_whole("all_to_all", self.rank, output, source, self.world_size)
        return self._all_to_all(("all_to_all", ""), output, self._apart(output, source))

    # ------------------------------------------------------------------------------- what a transport implements

    def _reduce_to(self, what: What, array: Array, root: int, op: ReduceOp) -> Work:
        """Start to overwrite the root's array by the reduction."""
        total = duplicate(array)
        work = self._reduce(what, total, op)
        return DeliveringWork(work, lambda: self._copy(array, total)) if self.rank == root else work

    def _gather(self, what: What, output: Array | None, source: Array, root: int) -> Work:
        """Start to overwrite the root's output by the sources of all ranks; the output is None elsewhere."""
        return self._all_gather(what, self._room(source) if output is None else output, source)

    def _scatter(self, what: What, output: Array, source: Array | None, root: int) -> Work:
        """Start to overwrite output by this rank's part of the root's source, which is None elsewhere."""
        whole = self._room(output)
        if source is not None:
            self._copy(whole, source)
        work = self._broadcast(what, whole, root)
        return DeliveringWork(work, lambda: self._copy(output, whole.reshape(self.world_size, -1)[self.rank]))

    def _all_to_all(self, what: What, output: Array, source: Array) -> Work:
        """Start to overwrite the parts of output by this rank's parts of all sources; the two do not overlap."""
        everything = self._room(source)
        work = self._all_gather(what, everything, source)
        size = self.world_size
        return DeliveringWork(work, lambda: self._copy(output, everything.reshape(size, size, -1)[:, self.rank]))

    def _reduce(self, what: What, array: Array, op: ReduceOp, weight: Array | None = None) -> Work:
        raise NotImplementedError

    def _broadcast(self, what: What, array: Array, root: int) -> Work:
        raise NotImplementedError

    def _all_gather(self, what: What, output: Array, source: Array) -> Work:
        raise NotImplementedError

    # ---------------------------------------------------------------------------------------------------- arguments

    def _check(self, who: str, array: Array = _NONE, /, *, written: bool = True) -> Array:
        raise NotImplementedError

    def _root(self, who: str, root: int) -> int:
        """The root, as an int; refuses a call where this world has failed, and a root that is no rank."""
        self._check(who)
        return as_integer(f"rank {self.rank}: {who}", "root", root, 0, self.world_size)

    def _at_root(self, who: str, name: str, array: Array | None, root: int, *, written: bool) -> Array | None:
        """What the root alone has: None elsewhere.

        Raises:
            ArgumentError: it is missing on the root, or given elsewhere.
        """
        if self.rank != root:
            if array is not None:
                raise ArgumentError(
                    f"rank {self.rank}: {who}: expected {name} to be None on all ranks but the root, {root}, got "
                    f"{type(array).__name__}"
                )
            return None
        if array is None:
            raise ArgumentError(f"rank {self.rank}: {who}: expected {name} on the root, got None")
        return self._check(who, array, written=written)

    def _apart(self, output: Array, source: Array) -> Array:
        """The source, or a copy of it where it overlaps what is to be overwritten."""
        into, out_of = address_of(output), address_of(source)
        if into + output.nbytes <= out_of or out_of + source.nbytes <= into:
            return source
        return duplicate(source)

    def _room(self, part: Array) -> Array:
        """Room for such a part of every rank."""
        with self.device.current() as xp:
            return xp.empty(self.world_size * part.size, part.dtype)

    def _copy(self, output: Array, values: Array) -> None:
        with self.device.current():
            output[...] = values.reshape(output.shape)
