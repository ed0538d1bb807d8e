"""Wrong solutions of lesson 8."""

import numpy as np

from minigrad import is_grad_enabled
from minigrad.course.lesson08_overlap.solution import Overlapped
from tests.course.wrong import Wrong


class WaitsAtOnce(Overlapped):
    """Each bucket is waited for when it is launched, so that backward stands still."""

    def _launch(self, bucket):
        super()._launch(bucket)
        self.under_way[-1][1].wait()


class InReadyOrder(Overlapped):
    """A bucket goes out when it is ready, whatever is ready on other ranks."""

    def __call__(self, *inputs):
        self.ready = []
        return super().__call__(*inputs)

    def _complete(self, index, param):
        self.missing[index] -= 1
        if self.missing[index] == 0:
            self.ready.append(self.buckets[index])
            self._launch(self.buckets[index])

    def finish(self):
        kept, self.buckets = self.buckets, self.ready
        super().finish()
        self.buckets = kept


class ForgetsTheLast(Overlapped):
    """A bucket is launched when the next one begins, and after the last none does."""

    def _complete(self, index, param):
        self.missing[index] -= 1
        while len(self.under_way) < len(self.buckets) - 1 and self.missing[len(self.under_way)] == 0:
            self._launch(self.buckets[len(self.under_way)])


class BeforeTheLastContribution(Overlapped):
    """A layer is taken for done when backward has come through it once."""

    def __init__(self, module, comm, bucket_cap_bytes):
        super().__init__(module, comm, bucket_cap_bytes)
        for layer in module.modules():
            own = {id(param) for param in layer.parameters(recurse=False)}
            if own:
                layer.register_full_backward_hook(lambda layer, inputs, outputs, own=own: self._layer(own))

    def _complete(self, index, param):
        pass

    def _layer(self, own):
        for index, bucket in enumerate(self.buckets):
            for param in bucket:
                if id(param) in own and id(param) not in self.seen and param.grad is not None:
                    self.seen.add(id(param))
                    super()._complete(index, param)

    def __call__(self, *inputs):
        self.seen = set()
        return super().__call__(*inputs)

    def finish(self):
        self._layer({id(param) for bucket in self.buckets for param in bucket})
        super().finish()


class DividesByRanks(Overlapped):
    """A mean of means."""

    def __call__(self, *inputs):
        output = super().__call__(*inputs)
        self.samples = min(1, len(inputs[0]))
        return output

    def finish(self):
        self.counting.wait()
        self.total[:] = self.comm.world_size
        super().finish()


class KeepsTheSum(Overlapped):
    """Nobody divides."""

    def finish(self):
        self.counting.wait()
        self.total[:] = 1.0
        super().finish()


class NeverPutsBack(Overlapped):
    """What came back stays in the bucket."""

    def finish(self):
        self.counting.wait()
        for _, work in self.under_way:
            work.wait()


class OneStepOnly(Overlapped):
    """What was missing is not set back for the next step."""

    kept = None

    def __call__(self, *inputs):
        output = super().__call__(*inputs)
        if is_grad_enabled():
            self.missing = self.kept = self.kept or self.missing
        return output


class CountsInEvaluation(Overlapped):
    """A forward that no backward follows makes a call too."""

    def __call__(self, *inputs):
        if not is_grad_enabled():
            self.comm.all_reduce(np.zeros(1))
        return super().__call__(*inputs)


class StartsApart(Overlapped):
    """Nobody broadcasts."""

    def __init__(self, module, comm, bucket_cap_bytes):
        class Silent:
            def __getattr__(self, name):
                return getattr(comm, name)

            def broadcast(self, array, root=0):
                return comm.all_reduce(np.zeros(1))

        super().__init__(module, Silent(), bucket_cap_bytes)


class WithoutBuffers(Overlapped):
    """Only parameters are made alike."""

    def __init__(self, module, comm, bucket_cap_bytes):
        kept = [(buffer, buffer.data.copy()) for buffer in module.buffers()]
        super().__init__(module, comm, bucket_cap_bytes)
        for buffer, data in kept:
            buffer.data[...] = data


class MovesParameters(Overlapped):
    """Values of rank 0, in new arrays."""

    def __init__(self, module, comm, bucket_cap_bytes):
        super().__init__(module, comm, bucket_cap_bytes)
        for param in module.parameters():
            param.data = param.data.copy()


class GoesOnWithOne(Overlapped):
    """In a hook at most one bucket leaves; one that was ready before stays."""

    def _complete(self, index, param):
        self.missing[index] -= 1
        following = len(self.under_way)
        if following < len(self.buckets) and self.missing[following] == 0:
            self._launch(self.buckets[following])


class InDoubles(Overlapped):
    """A bucket is float64, whatever gradients are."""

    def _launch(self, bucket):
        flat = np.concatenate([param.grad.data.reshape(-1) for param in bucket], dtype=np.float64)
        flat = flat * self.samples if self.samples else np.zeros_like(flat)
        self.under_way.append((flat, self.comm.all_reduce(flat)))


class NanOfNoSamples(Overlapped):
    """0 times NaN."""

    def _launch(self, bucket):
        flat = np.concatenate([param.grad.data.reshape(-1) for param in bucket]) * self.samples
        self.under_way.append((flat, self.comm.all_reduce(flat)))


class MovesTheClock(Overlapped):
    """Time is told to go on, or back."""

    def finish(self):
        super().finish()
        self.comm.clock.progress(1.0)


def of(kind, cap=None):
    """A wrapper of this kind."""

    def get_ddp_overlapped(module, comm, *, bucket_cap_bytes=25 * 2**20):
        return kind(module, comm, cap or bucket_cap_bytes)

    get_ddp_overlapped.__name__ = kind.__name__
    return get_ddp_overlapped


WRONG = {
    "get_ddp_overlapped": [
        Wrong(of(WaitsAtOnce), "the wire was idle while backward ran"),
        Wrong(of(InReadyOrder), "launch them in order of index"),
        Wrong(of(ForgetsTheLast), "its bucket was not sent"),
        Wrong(of(BeforeTheLastContribution), "must have the last contribution in it"),
        Wrong(of(DividesByRanks), "where each counts 1/W"),
        Wrong(of(KeepsTheSum), "divide it by the sum of n"),
        Wrong(of(NeverPutsBack), "not put in its place"),
        Wrong(of(OneStepOnly), "has to be set back for the next"),
        Wrong(of(CountsInEvaluation), "call nothing in a forward under no_grad()"),
        Wrong(of(StartsApart), "should be those of rank 0"),
        Wrong(of(WithoutBuffers), "buffers should be those of rank 0"),
        Wrong(of(MovesParameters), "in the arrays that they are in"),
        Wrong(of(GoesOnWithOne), "all that can go then, which may be two"),
        Wrong(of(InDoubles), "a bucket has their dtype"),
        Wrong(of(NanOfNoSamples), "0 * NaN is NaN"),
        Wrong(of(Overlapped, 2**30), "a bucket over its cap"),
        Wrong(of(Overlapped, 1), "each call pays the latency"),
        Wrong(of(MovesTheClock), "leaves time alone"),
    ],
}
