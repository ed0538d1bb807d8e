"""A data-parallel wrapper of a hundred lines of NumPy, and the faults that such wrappers have: what the checks see."""

import itertools
import os
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np

from minigrad.distributed import ReduceOp, run
from minigrad.errors import DistributedError, UnreducedGradientError
from minigrad.optim.muon import muon_update
from minigrad.testing.conformance import Processes

TIMEOUT_S = 3.0
COUNT = itertools.count()  # of replicas; by run, it stands for the order in which ranks happen to come
RELEASED = threading.Event()  # ends the ranks that wait for ever, once the test is over


class NaiveReplica:
    """A replica of the linear model whose gradients are combined after backward, one collective a bucket.

    Args:
        faults: What it does wrong; the names are those in `FAULTS`. Right without any.
    """

    def __init__(self, comm, setup, faults):
        self.comm, self.setup, self.faults = comm, setup, faults
        self._values = {name: value.copy() for name, value in setup.params.items()}
        self._buffers = {name: value.copy() for name, value in setup.buffers.items()}
        self._held = dict(self._values)  # what the optimizer has
        self._local = {}  # gradients since the last synchronisation
        self._combined, self._last, self._sent = {}, {}, {}
        self._state = None  # of sharded steps
        self._failed = False
        self._chance = next(COUNT) // comm.world_size if "order_by_chance" in faults else 0
        self._samples, self._active = 0.0, True
        self._others = np.ones(comm.world_size)  # which ranks have data
        self._compare()
        for value in self._values.values():
            if "no_broadcast" not in faults:
                comm.broadcast(value).wait()
        if "new_parameters" in faults:
            self._values = {name: value.copy() for name, value in self._values.items()}
            self._held = self._held if setup.optimizer_first else dict(self._values)

    def _compare(self):
        mine = [[n, list(v.shape), v.dtype.name, n in self.setup.frozen] for n, v in self._values.items()]
        if "no_comparison" in self.faults:
            return
        if "compares_sizes" in self.faults:
            mine = sum(v.size for v in self._values.values())
        everybody = self.comm.all_gather_object([mine, self.setup.bucket_bytes])
        if any(other != everybody[0] for other in everybody):
            raise DistributedError(f"replicas differ: {everybody}")

    # ------------------------------------------------------------------------------------------- backward

    def backward(self, batch, *, samples=None, scale=1.0, sync=True):
        count = len(next(iter(batch.values()))) if batch else 0
        if "no_empty" in self.faults and batch and not count:
            raise ZeroDivisionError("a mean of nothing")
        weight = samples if samples is not None and "no_tokens" not in self.faults else count
        if "last_samples_only" in self.faults:
            self._samples = 0.0
        self._samples += weight
        for name, array in batch.items():
            first = self.setup.tied.get(name, name)
            if first in self.setup.frozen and "frozen_travel" not in self.faults:
                continue
            mean = array.sum(axis=0, dtype=array.dtype) * array.dtype.type(scale / max(1, count))
            old = self._local.get(first)
            self._local[first] = mean if old is None or "replaces" in self.faults else old + mean
        if sync or "always_syncs" in self.faults:
            self._synchronize(batch)

    def _synchronize(self, batch):
        try:
            self._reduce(self._buckets(batch))
        except DistributedError as error:
            if "waits" in self.faults:
                RELEASED.wait()
            if "hushes" in self.faults and not isinstance(error, UnreducedGradientError):
                raise RuntimeError("something went wrong") from None
            forgets, self._failed = "forgets" in self.faults and self._failed, True
            if not forgets and ("goes_on" not in self.faults or isinstance(error, UnreducedGradientError)):
                raise
        if "no_buffers" not in self.faults:
            for value in self._buffers.values():
                self._send_buffer(value)
        return self._others

    def _send_buffer(self, value):
        if "float_buffers" in self.faults:
            passed = value.astype(np.float64)
            self.comm.broadcast(passed).wait()
            value[...] = passed
        else:
            self.comm.broadcast(value).wait()

    def _buckets(self, batch):
        """Names of parameters in the order in which they are sent; here a bucket is a parameter."""
        names = [n for n in self._values if n not in self.setup.frozen or "frozen_travel" in self.faults]
        missing = [n for n in names if n not in self._local]
        if missing and not self.setup.unused and self._active and "fills_silently" not in self.faults:
            raise UnreducedGradientError("no gradient" if "unnamed" in self.faults else f"no gradient of {missing}")
        if "skips_missing" in self.faults:
            names = [n for n in names if n not in missing]
        if "cut_by_cap" in self.faults and self.setup.bucket_bytes == 1:
            names = names[::-1]
        if "ready_order" in self.faults:
            names = sorted(names, key=lambda n: list(batch).index(n) if n in batch else -1)
        return names * 2 if "twice" in self.faults and self.setup.tied else names

    def _reduce(self, names):
        ranks = self.comm.world_size
        everybody = np.zeros(1 + ranks)
        everybody[0], everybody[1 + self.comm.rank] = self._samples, self._active
        self.comm.all_reduce(everybody).wait()
        total, self._others = everybody[0], everybody[1:]
        share = self._samples / total if total else 0.0
        share = 1 / ranks if "plain_mean" in self.faults else share
        share *= self._others.mean() if "counts_the_gone" in self.faults else 1.0
        used = np.array([float(n in self._local) for n in self._values])
        self.comm.all_reduce(used, ReduceOp.MAX).wait()
        used = dict(zip(self._values, used > 0))
        for name in names:
            if used[name] or "zeros_for_none" in self.faults:
                self._reduce_one(name, share, ranks)
        self._sent, self._local, self._samples = self._local, {}, 0.0

    def _reduce_one(self, name, share, ranks):
        value = self._values[name]
        old = self._last if "stale" in self.faults else {}
        gradient = self._local.get(name, old.get(name, np.zeros_like(value))).copy()
        if "hides_nan" in self.faults:
            gradient = np.nan_to_num(gradient)
        if share == 0.0 and "zero_times_nan" not in self.faults:
            gradient[...] = 0
        travelling = gradient.astype(np.float32) if "casts" in self.faults else gradient
        if "divides_after" in self.faults:
            travelling = (travelling * value.dtype.type(share * ranks)).astype(travelling.dtype)
        else:
            travelling = (travelling * share).astype(travelling.dtype)
        travelling = self._sum(travelling.reshape(-1), name).reshape(value.shape).astype(value.dtype)
        if "divides_after" in self.faults:
            travelling = travelling / value.dtype.type(ranks)
        old = self._combined.get(name)
        self._combined[name] = travelling if old is None or "replaces" in self.faults else old + travelling

    def _sum(self, array, name):
        if not {"running_sum", "order_by_rank", "order_by_cap", "order_by_chance"} & self.faults:
            return self._all_reduce(array)
        everybody = np.empty(array.size * self.comm.world_size, array.dtype)
        self.comm.all_gather(everybody, array).wait()
        rows = list(everybody.reshape(self.comm.world_size, -1))
        turn = self.comm.rank if "order_by_rank" in self.faults else 0
        turn += (self.setup.bucket_bytes or 0) // 48 if "order_by_cap" in self.faults else 0
        turn += self._chance
        rows = rows[turn % len(rows) :] + rows[: turn % len(rows)]
        wide = array.dtype if "running_sum" in self.faults else np.result_type(array.dtype, np.float32)
        total = rows[0].astype(wide)
        for row in rows[1:]:
            total += row
        return total.astype(array.dtype)

    def _all_reduce(self, array):
        if "empty_bucket" in self.faults and not array.size:
            raise ValueError("a bucket without elements")
        message = array[: 2**20] if "short_messages" in self.faults else array
        if "padded" in self.faults:
            message = np.zeros(max(16, array.size), array.dtype)
            message[: array.size] = array
        message = np.ascontiguousarray(message)
        self.comm.all_reduce(message).wait()
        array[: message.size] = message[: array.size]
        return array

    # ------------------------------------------------------------------------------------- the other calls

    def backward_within(self, outer, inner):
        self.backward(outer)
        self.backward(inner, sync="nested_stays" not in self.faults)

    def scaled_step(self, batch, init_scale):
        if "own_scale" not in self.faults and len(set(self.comm.all_gather_object(init_scale))) > 1:
            raise DistributedError("the scale of the loss differs by rank")
        self.zero_grad()
        self.backward(batch, scale=init_scale)
        self._combined = {name: gradient / init_scale for name, gradient in self._combined.items()}
        self.step()

    def sharded_step(self, batch, rule):
        self.zero_grad()
        self.backward(batch)
        if rule == "muon":
            self._step_matrices()
        else:
            self._step_elements()

    def _step_elements(self):
        """Momentum; each rank has an equal run of all elements."""
        flat = np.concatenate([value.reshape(-1) for value in self._values.values()])
        gradient = np.concatenate([self._combined[name].reshape(-1) for name in self._values])
        rank, ranks = self.comm.rank, self.comm.world_size
        own = slice(flat.size * rank // ranks, flat.size * (rank + 1) // ranks)
        if "plain_on_parts" in self.faults:  # the rest is what this rank has of the sum
            mine = np.concatenate([self._sent[name].reshape(-1) for name in self._values])
            mine[own] = gradient[own]
            own, gradient = slice(None), mine
        if "whole_state" in self.faults:
            own = slice(None)
        if self._state is None:
            self._state = np.zeros_like(flat[own])
        self._state[...] = 0.9 * self._state + gradient[own]
        flat[own] -= self.setup.lr * self._state
        if own != slice(None) and "not_gathered" not in self.faults:
            parts = np.zeros_like(flat)
            parts[own] = flat[own]
            self.comm.all_reduce(parts).wait()
            flat = parts
        for value in self._values.values():
            value[...], flat = flat[: value.size].reshape(value.shape), flat[value.size :]

    def _step_matrices(self):
        """Muon; each matrix has one owner."""
        self._state = self._state or {name: np.zeros_like(value) for name, value in self._values.items()}
        for i, (name, value) in enumerate(self._values.items()):
            parts = np.array_split(np.arange(len(value)), 2 if "matrix_in_parts" in self.faults else 1)
            for rows in parts:
                part, average = value[rows], self._state[name][rows]
                muon_update(part, self._combined[name][rows], average, lr=self.setup.lr, weight_decay=0.0)
                value[rows], self._state[name][rows] = part, average
            self.comm.broadcast(value, i % self.comm.world_size).wait()

    def state_bytes(self):
        return 0 if self._state is None or isinstance(self._state, dict) else self._state.nbytes

    def set_gradients(self, values):
        mine = self._combined if "hand_stays" in self.faults else self._local
        mine.update({name: value.copy() for name, value in values.items()})

    def gradients(self):
        found = {**self._combined}
        if "keeps_unused" in self.faults and found:
            found = {**self._last, **found}
        for name, local in self._local.items():
            found[name] = local + found[name] if name in found else local
        return {name: found[name].copy() if name in found else None for name in self._values}

    def zero_grad(self):
        self._last = dict(self._combined)
        if "keeps_gradients" not in self.faults:
            self._combined, self._local = {}, {}

    def clip(self, max_norm):
        if "clips_before" in self.faults:
            self._combined = {name: gradient.copy() for name, gradient in self._sent.items()}
        norm = np.sqrt(sum(float((g * g).sum()) for g in self._combined.values()))
        if "norm_over_ranks" in self.faults:
            squares = np.array([norm**2])
            self.comm.all_reduce(squares).wait()
            norm = float(np.sqrt(squares[0]))
        for gradient in self._combined.values():
            gradient *= min(1.0, max_norm / (norm + 1e-12))
            if "clips_before" in self.faults:
                self.comm.all_reduce(gradient).wait()
                gradient /= self.comm.world_size
        return float(norm)

    def step(self):
        for name, gradient in self.gradients().items():
            if gradient is not None:
                for _ in range(2 if "own_step" in self.faults else 1):
                    self._held[name] -= self.setup.lr * (gradient + self.setup.weight_decay * self._held[name])

    def values(self):
        return {name: value.copy() for name, value in self._values.items()}

    def buffers(self):
        return {name: value.copy() for name, value in self._buffers.items()}

    def set_buffers(self, values):
        for name, buffer in self._buffers.items():
            buffer[...] = values[name]

    def state(self):
        prefix = "module." if "prefix" in self.faults else ""
        held = self._values if "hides_buffers" in self.faults else {**self._values, **self._buffers}
        return {prefix + name: value.copy() for name, value in held.items()}

    def evaluate(self, batch):
        if "collective_in_forward" in self.faults:
            self.comm.barrier()
        return sum(array.reshape(len(array), -1) @ self._values[name].reshape(-1) for name, array in batch.items())

    @contextmanager
    def join(self):
        yield
        if "no_join" not in self.faults:
            self._active, last = False, 0
            while self._synchronize({}).any():
                last = int(np.flatnonzero(self._others)[0])
            for value in self._values.values():
                self.comm.broadcast(value, last).wait()


class NaiveAdapter:
    """Puts it to the checks, with some faults."""

    def __init__(self, *faults, timeout_s=2 * TIMEOUT_S):
        self.faults, self.timeout_s = frozenset(faults), timeout_s

    def run(self, body, world_size, *args):
        if "needs_two" in self.faults and world_size < 2:
            raise ValueError("a world of one rank")
        return run(body, world_size, *args, timeout_s=TIMEOUT_S)

    def wrap(self, place, setup):
        return NaiveReplica(place, setup, self.faults)


class Hanging(NaiveAdapter):
    """No rank comes to an end."""

    def wrap(self, place, setup):
        RELEASED.wait()


class Raising(NaiveAdapter):
    """Every rank raises."""

    def wrap(self, place, setup):
        raise RuntimeError("whatever it is")


class Once(NaiveAdapter):
    """A replica that can be wrapped once a run, or one that makes one backward; both raise afterwards.

    Args:
        what: "wrap" or "backward".
    """

    def __init__(self, what):
        super().__init__()
        self.what = what

    def run(self, body, world_size, *args):
        self.wrapped = [False] * world_size
        return super().run(body, world_size, *args)

    def wrap(self, place, setup):
        _once(self.what == "wrap" and self.wrapped[place.rank])
        self.wrapped[place.rank] = True
        replica, made = super().wrap(place, setup), []
        backward = replica.backward

        def first(*args, **options):
            _once(self.what == "backward" and made)
            made.append(True)
            backward(*args, **options)

        replica.backward = first
        return replica


def _once(again):
    if again:
        raise RuntimeError("a planted fault, west: only once")


@contextmanager
def alone():
    """The place of a process that knows of no other."""
    yield SimpleNamespace(rank=int(os.environ["RANK"]))


class Dying(NaiveAdapter):
    """Every rank is a process that dies."""

    run = Processes(alone, preload=[__name__, "pytest"])

    def wrap(self, place, setup):
        os._exit(3)
