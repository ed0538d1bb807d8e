"""Wrong solutions of lesson 2."""

import numpy as np

from minigrad.distributed import ReduceOp, Wrapper
from tests.course.wrong import Wrong


class Whole(Wrapper):
    """Right, and the base of the wrong ones."""

    def all_reduce(self, array, op=ReduceOp.SUM, layout=""):
        flat = array.reshape(-1)
        part = np.empty(self.length(flat.size), flat.dtype)
        padded = np.zeros(part.size * self.world_size, flat.dtype)
        filled = min(flat.size, padded.size)
        padded[:filled] = flat[:filled]
        self.inner.reduce_scatter(part, padded, op).wait()
        work = self.inner.all_gather(padded, part)
        work.wait()
        flat[:filled] = padded[:filled]
        return work

    def length(self, size):
        return -(-size // self.world_size)


class RoundedDown(Whole):
    def length(self, size):
        return size // self.world_size


class FilledTooFar(Whole):
    def length(self, size):
        return size + 1


class SumsAlways(Whole):
    def all_reduce(self, array, op=ReduceOp.SUM, layout=""):
        return super().all_reduce(array, ReduceOp.SUM, layout)


class ReturnsNothing(Whole):
    def all_reduce(self, array, op=ReduceOp.SUM, layout=""):
        super().all_reduce(array, op, layout).wait()


class InACopy(Whole):
    def all_reduce(self, array, op=ReduceOp.SUM, layout=""):
        return super().all_reduce(array.copy(), op, layout)


class GathersAll(Wrapper):
    def all_reduce(self, array, op=ReduceOp.SUM, layout=""):
        everything = np.empty((self.world_size, array.size), array.dtype)
        work = self.inner.all_gather(everything.reshape(-1), array.reshape(-1).copy())
        work.wait()
        fold = {ReduceOp.SUM: np.sum, ReduceOp.MAX: np.max, ReduceOp.AVG: np.mean}[op]
        array[...] = fold(everything, axis=0).reshape(array.shape)
        return work


class InFloat64(Whole):
    def all_reduce(self, array, op=ReduceOp.SUM, layout=""):
        wide = array.astype(np.float64)
        work = super().all_reduce(wide, op, layout)
        array[...] = wide
        return work


class InFloat32(Whole):
    def all_reduce(self, array, op=ReduceOp.SUM, layout=""):
        narrow = array.astype(np.float32)
        work = super().all_reduce(narrow, op, layout)
        array[...] = narrow
        return work


class WaitsOnce(Wrapper):
    def all_reduce(self, array, op=ReduceOp.SUM, layout=""):
        part = np.zeros(-(-array.size // self.world_size), array.dtype)
        padded = np.zeros(part.size * self.world_size, array.dtype)
        padded[: array.size] = array.reshape(-1)
        self.inner.reduce_scatter(part, padded, op)
        work = self.inner.all_gather(padded, part)
        work.wait()
        array.reshape(-1)[...] = padded[: array.size]
        return work


def itself(comm):
    return comm


def weighted(comm, array, root):
    with np.errstate(invalid="ignore"):
        array *= array.dtype.type(comm.rank == root)
    comm.all_reduce(array).wait()


def of_floats(comm, array, root):
    if comm.rank != root:
        array[...] = 0
    comm.all_reduce(array).wait()


def of_all(comm, array, root):
    comm.all_reduce(array).wait()


def from_rank_0(comm, array, root):
    as_bytes = array.view(np.uint8)
    if comm.rank != 0:
        as_bytes[...] = 0
    comm.all_reduce(as_bytes).wait()


def not_awaited(comm, array, root):
    as_bytes = array.view(np.uint8)
    if comm.rank != root:
        as_bytes[...] = 0
    comm.all_reduce(as_bytes)


def by_float64(comm, array, root):
    wide = array.astype(np.float64)
    if comm.rank != root:
        wide[...] = -0.0
    comm.all_reduce(wide).wait()
    array[...] = wide


def the_thing_itself(comm, array, root):
    comm.broadcast(array, root).wait()


WRONG = {
    "communicator_by_parts": [
        Wrong(RoundedDown, "has to be filled up"),
        Wrong(FilledTooFar, "sent in vain"),
        Wrong(SumsAlways, "is op passed on?"),
        Wrong(ReturnsNothing, "expected a Work"),
        Wrong(InACopy, "overwrite the array"),
        Wrong(GathersAll, "expected one reduce_scatter, then one all_gather, got all_gather"),
        Wrong(InFloat64, "the dtype of the array, float32"),
        Wrong(InFloat32, "the dtype of the array, float64"),
        Wrong(WaitsOnce, "got none for 1 reduce_scatter"),
        Wrong(itself, "the thing that is to be written"),
    ],
    "broadcast_by_sum": [
        Wrong(weighted, "do not weight it"),
        Wrong(of_floats, "-0.0 + 0.0 is 0.0"),
        Wrong(of_all, "the sum of all ranks' arrays"),
        Wrong(from_rank_0, "the array of another rank"),
        Wrong(not_awaited, "got none for 1 all_reduce"),
        Wrong(by_float64, "Floats don't hold each int64"),
        Wrong(the_thing_itself, "expected calls of all_reduce alone, got broadcast"),
    ],
}
