"""Wrappers to be graded, as a student writes them: honest ones, and beside each cheat what it would be without."""

import threading
import time
import tracemalloc

import numpy as np

import minigrad.testing.grading.steps as judging
from minigrad import Tensor
from minigrad.distributed.simulate.clock import VirtualClock
from minigrad.nn import Parameter
from minigrad.testing.grading.notes import Did


class Naive:
    """One all_reduce for each parameter, after backward."""

    def __init__(self, module, comm):
        self.module, self.comm = module, comm
        self.samples = 0
        for parameter in module.parameters():
            comm.broadcast(parameter.data).wait()
        self.trained = [p for p in module.parameters() if p.requires_grad]

    def __call__(self, *inputs):
        self.samples = len(inputs[0])
        return self.module(*inputs)

    def weight(self):
        whole = np.array([float(self.samples)])
        self.comm.all_reduce(whole).wait()
        return self.samples / whole[0]

    def finish(self):
        weight = self.weight()
        for parameter in self.trained:
            part = parameter.grad.data * parameter.data.dtype.type(weight)
            self.comm.all_reduce(part).wait()
            parameter.grad = Tensor(part)


class Overlapped(Naive):
    """Buckets of some bytes, which travel as soon as they are full."""

    cap_bytes = 40_000

    def __init__(self, module, comm):
        super().__init__(module, comm)
        self.ready, self.under_way = [], []
        self.share = 0.0
        for parameter in self.trained:
            parameter.register_post_accumulate_grad_hook(self.on_ready)

    def __call__(self, *inputs):
        self.samples, self.ready, self.under_way = len(inputs[0]), [], []
        self.whole = np.array([float(self.samples)])
        self.count = self.comm.all_reduce(self.whole)
        return self.module(*inputs)

    def on_ready(self, parameter):
        if self.count is not None:
            self.count.wait()
            self.count, self.share = None, self.samples / self.whole[0]
        self.ready.append(parameter)
        if sum(p.grad.data.nbytes for p in self.ready) >= self.cap_bytes:
            self.launch()

    def launch(self):
        if self.ready:
            flat = np.concatenate([p.grad.data.ravel() for p in self.ready])
            flat *= flat.dtype.type(self.share)
            self.under_way.append((self.comm.all_reduce(flat), flat, self.ready))
            self.ready = []

    def finish(self):
        self.launch()
        for work, flat, parameters in self.under_way:
            work.wait()
            start = 0
            for parameter in parameters:
                stop = start + parameter.data.size
                parameter.grad = Tensor(flat[start:stop].reshape(parameter.shape))
                start = stop
        self.under_way = []


class AtTheseCuts(Overlapped):
    """Buckets that end after so many gradients, of ranks that have as many samples each: none is counted."""

    cuts = ()

    def __call__(self, *inputs):
        self.ready, self.under_way, self.came, self.share = [], [], 0, 1.0 / self.comm.world_size
        return self.module(*inputs)

    def on_ready(self, parameter):
        self.ready.append(parameter)
        self.came += 1
        if self.came in self.cuts:
            self.launch()


class Scattered(Naive):
    """A reduce_scatter and an all_gather of all gradients."""

    def finish(self):
        weight, world_size = self.weight(), self.comm.world_size
        flat = np.concatenate([p.grad.data.ravel() for p in self.trained])
        whole = np.zeros(-(-flat.size // world_size) * world_size, flat.dtype)
        whole[: flat.size] = flat * flat.dtype.type(weight)
        own = np.empty(whole.size // world_size, flat.dtype)
        self.comm.reduce_scatter(own, whole).wait()
        self.comm.all_gather(whole, own).wait()
        start = 0
        for parameter in self.trained:
            stop = start + parameter.data.size
            parameter.grad, start = Tensor(whole[start:stop].reshape(parameter.shape)), stop


class ByMessages(Naive):
    """A ring of messages for each parameter, as lesson 3 has it."""

    def finish(self):
        weight = self.weight()
        for parameter in self.trained:
            whole = self.sum(parameter.grad.data.ravel() * parameter.data.dtype.type(weight))
            parameter.grad = Tensor(whole.reshape(parameter.shape))

    def sum(self, flat):
        rank, world_size = self.comm.rank, self.comm.world_size
        parts = np.zeros((world_size, -(-flat.size // world_size)), flat.dtype)
        parts.ravel()[: flat.size] = flat
        got = np.empty_like(parts[0])
        for turn in range(2 * (world_size - 1)):
            ahead = turn // (world_size - 1)  # the second time round, sums are handed on
            sent = self.comm.send(parts[(rank + ahead - turn % (world_size - 1)) % world_size], (rank + 1) % world_size)
            self.comm.recv(got, (rank - 1) % world_size).wait()
            sent.wait()
            here = (rank + ahead - 1 - turn % (world_size - 1)) % world_size
            parts[here] = got if ahead else parts[here] + got
        return parts.ravel()[: flat.size].copy()


class ByServer(Naive):
    """All send their gradients to rank 0, and get the sum back: ranks send and take unlike numbers of messages."""

    def finish(self):
        weight, comm = self.weight(), self.comm
        for parameter in self.trained:
            part = parameter.grad.data * parameter.data.dtype.type(weight)
            got = np.empty_like(part)
            if comm.rank:
                comm.send(part, 0).wait()
                comm.recv(part, 0).wait()
            else:
                for rank in range(1, comm.world_size):
                    comm.recv(got, rank).wait()
                    part = part + got
                for rank in range(1, comm.world_size):
                    comm.send(part, rank).wait()
            parameter.grad = Tensor(part)
        comm.barrier()


class Halves(Naive):
    """Gradients travel as float16."""

    def finish(self):
        weight = self.weight()
        for parameter in self.trained:
            part = (parameter.grad.data * weight).astype(np.float16)
            self.comm.all_reduce(part).wait()
            parameter.grad = Tensor(part.astype(parameter.data.dtype))


class MeanOfMeans(Naive):
    """All ranks count alike."""

    def weight(self):
        return 1.0 / self.comm.world_size


# ---------------------------------------------------------------------------------------------------------- cheats


class Elsewhere(Naive):
    """Exchanges its gradients through a place that all threads see, and sends what it is told to send."""

    places = {}  # of each step and rank
    fills = True  # hand in as many bytes as there should be

    def __init__(self, module, comm):
        super().__init__(module, comm)
        self.step = 0

    def finish(self):
        self.step += 1
        here = self.places.setdefault((self.comm.world_size, self.step), {})
        here[self.comm.rank] = self.samples, [p.grad.data.copy() for p in self.trained]
        self.comm.barrier()
        parts = [here[rank] for rank in range(self.comm.world_size)]
        self.comm.barrier()
        whole = sum(samples for samples, _ in parts)
        if self.fills:
            self.comm.all_reduce(np.zeros(sum(p.data.size for p in self.trained), np.float32)).wait()
        for i, parameter in enumerate(self.trained):
            parameter.grad = Tensor(sum(gradients[i] * np.float32(samples / whole) for samples, gradients in parts))


class ElsewhereOnThreads(Elsewhere):
    """The same, where ranks are threads; in processes it is honest."""

    def finish(self):
        if threading.current_thread() is threading.main_thread():
            Naive.finish(self)
        else:
            super().finish()


class ElsewhereAndSilent(ElsewhereOnThreads):
    fills = False


class Winds(Overlapped):
    """Sets its clock back, through the communicator inside."""

    def finish(self):
        super().finish()
        clock = self.comm.inner.clock
        if isinstance(clock, VirtualClock):
            clock._now_s -= 0.004


class Advances(Overlapped):
    """Calls what moves the clock that it was given."""

    def finish(self):
        super().finish()
        self.comm.clock.advance(0.0)


class CountsInside(Overlapped):
    """Has the samples counted by the communicator inside."""

    def __call__(self, *inputs):
        comm, self.comm = self.comm, self.comm.inner
        try:
            return super().__call__(*inputs)
        finally:
            self.comm = comm


class CallsInside(Overlapped):
    """Sends by the communicator inside the one that it was given."""

    def __init__(self, module, comm):
        super().__init__(module, comm.inner)


class ComputesEarly(Overlapped):
    """Makes a backward of its own in forward, before that time is charged."""

    def __call__(self, *inputs):
        output = super().__call__(*inputs)
        (output * output).mean().backward()
        return super().__call__(*inputs)


class SendsEarly(Overlapped):
    """Launches everything when the first gradient is there, and takes the rest from what it sums up later."""

    def on_ready(self, parameter):
        if not self.under_way:
            super().on_ready(parameter)
            empty = np.zeros(sum(p.data.size for p in self.trained), np.float32)
            self.under_way.append((self.comm.all_reduce(empty), empty, []))
        else:
            self.ready.append(parameter)


class KnowsEarly(Naive):
    """Has its gradients before backward, by a thread that nobody hears, and hands them in as it is let.

    Attributes:
        at_once: In forward; else with each gradient that is complete one and a half of it.
    """

    at_once = True

    def __init__(self, module, comm):
        super().__init__(module, comm)
        for parameter in self.trained:
            parameter.register_post_accumulate_grad_hook(self.on_ready)

    def __call__(self, *inputs):
        output, weight = super().__call__(*inputs), self.weight()
        self.hears = False
        thread = threading.Thread(target=self.compute, args=inputs)
        thread.start()
        thread.join()
        self.hears = True
        self.flat = np.concatenate([p.grad.data.ravel() for p in self.trained]) * np.float32(weight)
        for parameter in self.trained:
            parameter.grad = None
        self.complete, self.handed, self.under_way = 0, 0, []
        if self.at_once:
            self.hand_in(self.flat.size)
        return output

    def compute(self, x):
        output = self.module(x)
        ((output * output).sum() * (1.0 / len(output))).backward()

    def on_ready(self, parameter):
        if self.hears:
            self.complete += parameter.data.size
            self.hand_in(min(self.flat.size, self.complete * 3 // 2))

    def hand_in(self, stop):
        if stop > self.handed:
            self.under_way.append(self.comm.all_reduce(self.flat[self.handed : stop]))
            self.handed = stop

    def finish(self):
        self.hand_in(self.flat.size)
        for work in self.under_way:
            work.wait()
        start = 0
        for parameter in self.trained:
            stop = start + parameter.data.size
            parameter.grad, start = Tensor(self.flat[start:stop].reshape(parameter.shape)), stop


class KnowsEarlier(KnowsEarly):
    at_once = False


class MessagesEarly(KnowsEarly):
    """Two ranks send each other what they know, in the first part of backward."""

    at_once = False

    def hand_in(self, stop):
        if not self.handed:
            other, self.handed = 1 - self.comm.rank, self.flat.size
            self.got = np.empty_like(self.flat)
            self.under_way = [self.comm.recv(self.got, other), self.comm.send(self.flat, other)]

    def finish(self):
        for work in self.under_way:
            work.wait()
        self.under_way, self.flat = [], self.flat + self.got
        super().finish()


class Loads(Overlapped):
    """Has a large parameter of its own, complete last: as if most of backward were to come when gradients are there."""

    def __init__(self, module, comm):
        super().__init__(module, comm)
        self.load = Parameter(np.zeros(1_000_000, np.float32))

    def __call__(self, x):
        return super().__call__(x + self.load.sum() * 0.0)


class Rewrites(Winds):
    """Sets its clock back, and writes down that it computed as much less."""

    def finish(self):
        super().finish()
        self.comm._notes.did.append(Did("computed", -0.004))


class Judges(ElsewhereOnThreads):
    """Puts its own judge in the place of minigrad's until it is deleted."""

    untouched = staticmethod(judging.untouched)
    made = []

    def __init__(self, module, comm):
        super().__init__(module, comm)
        self.made.append(comm.rank)

    def finish(self):
        judging.untouched = lambda *found: ""
        super().finish()

    def __del__(self):
        self.made.pop()
        if not self.made:
            judging.untouched = self.untouched


class Hides(Overlapped):
    """Does nothing where memory is measured."""

    def on_ready(self, parameter):
        if not tracemalloc.is_tracing():
            super().on_ready(parameter)


class Hoards(Overlapped):
    """Keeps the gradients of all steps on rank 0."""

    def __init__(self, module, comm):
        super().__init__(module, comm)
        self.kept = []

    def finish(self):
        super().finish()
        if self.comm.rank == 0:
            self.kept += [np.copy(p.grad.data) for p in self.trained for _ in range(self.comm.world_size)]


class Mixes(ByMessages):
    """Sends some gradients by messages and others by collectives, as if both had the link for themselves."""

    def finish(self):
        mine, self.trained = self.trained, self.trained[:2]
        Naive.finish(self)
        self.trained = mine[2:]
        super().finish()
        self.trained = mine


class Splits(Naive):
    """Makes a group of all ranks, whose collectives have a channel of their own."""

    def __init__(self, module, comm):
        super().__init__(module, comm.split(0))


class Exits(Naive):
    """Leaves in its first step."""

    def finish(self):
        raise SystemExit(3)


class Unwritten(Naive):
    """A stub."""

    def finish(self):
        raise NotImplementedError


class Hangs(Naive):
    """Rank 1 does not come."""

    def finish(self):
        if self.comm.rank == 1:
            time.sleep(1000.0)
        super().finish()
