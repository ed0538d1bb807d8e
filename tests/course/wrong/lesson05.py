"""Mistakes that people make in lesson 5."""

from __future__ import annotations

import numpy as np

from minigrad import Tensor
from minigrad.course.lesson05_naive.solution import NaiveDdp
from tests.course.wrong import Wrong


class MeanOfMeans(NaiveDdp):
    """Each rank counts alike."""

    def finish(self):
        self._comm.all_reduce(np.zeros(1)).wait()
        for p in self.module.parameters():
            if p.requires_grad:
                if not self._samples:
                    p.grad = Tensor(np.zeros_like(p.data))
                self._comm.all_reduce(p.grad.data).wait()
                p.grad.data /= self._comm.world_size


class SumOfRanks(NaiveDdp):
    """Nothing is divided."""

    def finish(self):
        self._comm.all_reduce(np.zeros(1)).wait()
        for p in self.module.parameters():
            if p.requires_grad:
                self._comm.all_reduce(p.grad.data).wait()


class StaleCount(NaiveDdp):
    """A rank that does not call its model has as many samples as in the step before."""

    def finish(self):
        for p in self.module.parameters():
            if p.requires_grad and p.grad is None:
                p.grad = Tensor(np.zeros_like(p.data))
        samples = self._samples
        super().finish()
        self._samples = samples


class AbsentWithoutSamples(NaiveDdp):
    """A rank without samples does not take part."""

    def finish(self):
        if self._samples:
            super().finish()


class DividesByItsOwn(NaiveDdp):
    """Gradients of a sum are divided by the rank's own number."""

    def finish(self):
        total = np.array([self._samples], np.float64)
        self._comm.all_reduce(total).wait()
        for p in self.module.parameters():
            if p.requires_grad:
                grad = np.zeros_like(p.data) if p.grad is None else p.grad.data
                with np.errstate(all="ignore"):
                    grad *= np.float64(self._samples) ** 2 / np.float64(self._samples) / total
                self._comm.all_reduce(grad).wait()
                p.grad = Tensor(grad)
        self._samples = 0


class AddsBeforeItDivides(NaiveDdp):
    """Σ n_r·g_r overflows in float16."""

    def finish(self):
        total = np.array([self._samples], np.float64)
        self._comm.all_reduce(total).wait()
        for p in self.module.parameters():
            if p.requires_grad:
                grad = np.zeros_like(p.data) if not self._samples else p.grad.data
                grad *= self._samples
                self._comm.all_reduce(grad).wait()
                grad /= total[0]
                p.grad = Tensor(grad)
        self._samples = 0


class OwnInitialValues(NaiveDdp):
    """Initial values are left to the seed."""

    def __init__(self, module, comm):
        self.module, self._comm, self._samples = module, comm, 0


class OwnBuffers(NaiveDdp):
    """Parameters are broadcast, and buffers are not."""

    def __init__(self, module, comm):
        self.module, self._comm, self._samples = module, comm, 0
        for parameter in module.parameters():
            comm.broadcast(parameter.data, 0).wait()


class NewParameters(NaiveDdp):
    """What comes from rank 0 is put into new arrays."""

    def __init__(self, module, comm):
        self.module, self._comm, self._samples = module, comm, 0
        for tensor in [*module.parameters(), *module.buffers()]:
            array = tensor.data.copy()
            comm.broadcast(array, 0).wait()
            tensor.data = array


class AddsUpACopy(NaiveDdp):
    """An array is assigned as the gradient, which copies it, and is then added up."""

    def finish(self):
        total = np.array([self._samples], np.float64)
        self._comm.all_reduce(total).wait()
        for p in self.module.parameters():
            if p.requires_grad:
                array = p.grad.data * (self._samples / float(total[0])) if self._samples else np.zeros_like(p.data)
                p.grad = Tensor(array)
                self._comm.all_reduce(array).wait()


class OneFlatCall(NaiveDdp):
    """All gradients in one call, which is lesson 7."""

    def finish(self):
        total = np.array([self._samples], np.float64)
        self._comm.all_reduce(total).wait()
        params = [p for p in self.module.parameters() if p.requires_grad]
        if self._samples == 0:
            for p in params:
                p.grad = Tensor(np.zeros_like(p.data))
        flat = np.concatenate([p.grad.data.reshape(-1) for p in params]) * (self._samples / total[0])
        self._comm.all_reduce(flat).wait()
        for p in params:
            p.grad.data[...] = flat[: p.numel()].reshape(p.shape)
            flat = flat[p.numel() :]


class MatricesAlone(NaiveDdp):
    """Biases are forgotten."""

    def finish(self):
        total = np.array([self._samples], np.float64)
        self._comm.all_reduce(total).wait()
        for p in self.module.parameters():
            if p.ndim < 2:
                continue
            if self._samples == 0:
                p.grad = Tensor(np.zeros_like(p.data))
            p.grad.data *= self._samples / total[0]
            self._comm.all_reduce(p.grad.data).wait()


def nothing(module, comm):
    """No wrapper comes back."""


def bill_of_one_message(parameters, nbytes, latency_s, bandwidth_bytes_s, world_size):
    """A call is a message."""
    return (parameters + 1) * latency_s * (world_size > 1), (nbytes + 8) / bandwidth_bytes_s


def bill_without_the_count(parameters, nbytes, latency_s, bandwidth_bytes_s, world_size):
    """The call for the number of samples is forgotten."""
    messages = 2 * (world_size - 1)
    return parameters * messages * latency_s, messages * nbytes / world_size / bandwidth_bytes_s


def bill_of_whole_arrays(parameters, nbytes, latency_s, bandwidth_bytes_s, world_size):
    """Each message carries all."""
    messages = 2 * (world_size - 1)
    return (parameters + 1) * messages * latency_s, messages * (nbytes + 8) / bandwidth_bytes_s


def bill_of_all_bytes_for_each(parameters, nbytes, latency_s, bandwidth_bytes_s, world_size):
    """nbytes is taken for those of one parameter."""
    messages = 2 * (world_size - 1)
    return (parameters + 1) * messages * latency_s, parameters * messages * nbytes / world_size / bandwidth_bytes_s


def bill_as_one_number(parameters, nbytes, latency_s, bandwidth_bytes_s, world_size):
    """The sum."""
    messages = 2 * (world_size - 1)
    return (parameters + 1) * messages * latency_s + messages * (nbytes + 8) / world_size / bandwidth_bytes_s


WRONG = {
    "get_ddp_naive": [
        Wrong(MeanOfMeans, "each rank counts alike"),
        Wrong(SumOfRanks, "the sum of the ranks' gradients"),
        Wrong(StaleCount, "do not add up to 1"),
        Wrong(AbsentWithoutSamples, "do not make the same collectives"),
        Wrong(DividesByItsOwn, "a number of samples that may be 0"),
        Wrong(AddsBeforeItDivides, "float16_sum_in_range"),
        Wrong(OwnInitialValues, "replicas that start apart"),
        Wrong(OwnBuffers, "the buffer 'seen'"),
        Wrong(NewParameters, "an optimizer that was made before"),
        Wrong(AddsUpACopy, "nothing was added up"),
        Wrong(OneFlatCall, "one of each of the 4 trainable parameters"),
        Wrong(MatricesAlone, "nothing was combined"),
        Wrong(nothing, "an object that is called as the module is"),
    ],
    "latency_bill_s": [
        Wrong(bill_of_one_message, "there are 2 (W - 1)"),
        Wrong(bill_without_the_count, "without the call for the number of samples"),
        Wrong(bill_of_whole_arrays, "n / W bytes"),
        Wrong(bill_of_all_bytes_for_each, "of all parameters together"),
        Wrong(bill_as_one_number, "a pair of seconds"),
    ],
}
