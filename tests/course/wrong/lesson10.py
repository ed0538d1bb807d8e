"""Lesson 10: the wrong solutions."""

import numpy as np

from minigrad import Tensor
from minigrad.distributed import ReduceOp
from tests.course.wrong import Wrong

# ------------------------------------------------------------------------------------------------------ used_anywhere


def keeps_its_own(comm, used):
    return list(used)


def used_everywhere(comm, used):
    flags = np.array(used, np.float32)
    if len(used):
        comm.all_reduce(flags, ReduceOp.MIN).wait()
    return [bool(flag) for flag in flags]


def one_call_an_entry(comm, used):
    answers = []
    for entry in used:
        flag = np.array([entry], np.float32)
        comm.all_reduce(flag, ReduceOp.MAX).wait()
        answers.append(bool(flag[0]))
    return answers


def only_if_something_is_missing(comm, used):
    """A rank that used all knows its answer already, and does not ask."""
    flags = np.array(used, np.float32)
    if not all(used):
        comm.all_reduce(flags, ReduceOp.MAX).wait()
    return [bool(flag) for flag in flags]


def sends_objects(comm, used):
    return [any(column) for column in zip(*comm.all_gather_object([bool(entry) for entry in used]))]


# ----------------------------------------------------------------------------------------------------- get_ddp_unused


class Simple:
    """Combines after backward; a subclass says of what, and what it does about gradients that are not there."""

    def __init__(self, module, comm, find_unused_parameters=False):
        self.module, self.comm, self.find_unused, self.samples = module, comm, find_unused_parameters, 0
        for param in module.parameters():
            comm.broadcast(param.data).wait()

    def __call__(self, *inputs):
        self.samples += len(inputs[0])
        return self.module(*inputs)

    def summed(self, value):
        array = np.array(value, np.float64).reshape(-1)
        self.comm.all_reduce(array).wait()
        return array

    def share(self):
        total, samples = self.summed(self.samples)[0], self.samples
        self.samples = 0
        return samples / total

    def combine(self, param, share):
        grad = np.zeros(param.shape, param.dtype) if param.grad is None or share == 0 else param.grad.data
        flat = grad.reshape(-1) * param.dtype.type(share)
        self.comm.all_reduce(flat).wait()
        param.grad = Tensor(flat.reshape(param.shape))


class SendsWhatItHas(Simple):
    def finish(self):
        share = self.share()
        for param in self.module.parameters():
            if param.grad is not None:
                self.combine(param, share)


class Lonely(Simple):
    """The rank that lacks a gradient raises; the others hear of it by accident."""

    def finish(self):
        for name, param in self.module.named_parameters():
            if param.requires_grad and param.grad is None and self.samples and not self.find_unused:
                raise RuntimeError(f"no gradient for {name}")
        share = self.share()
        for param in self.module.parameters():
            if param.requires_grad:
                self.combine(param, share)


class FillsWithZeros(Simple):
    def finish(self):
        share = self.share()
        for param in self.module.parameters():
            if param.requires_grad:
                self.combine(param, share)


class Agrees(Simple):
    """Right but for what a subclass changes."""

    named = True

    def parameters(self):
        return [(name, param) for name, param in self.module.named_parameters() if param.requires_grad]

    def finish(self):
        named = self.parameters()
        lacks = [bool(self.samples) and param.grad is None for _, param in named]
        used = self.summed([param.grad is not None and self.samples > 0 for _, param in named])
        lacking = self.summed(lacks)
        names = [name for (name, _), count in zip(named, lacking) if count]
        if names and not self.find_unused:
            raise RuntimeError(f"no gradient for {', '.join(names)}" if self.named else "a parameter has no gradient")
        share = self.share()
        for (_, param), count in zip(named, used):
            if self.sends(count):
                self.combine(param, share)

    def sends(self, count):
        return count > 0


class NamesNone(Agrees):
    named = False


class KeepsSamples(Agrees):
    """What a refused step counted is counted again in the next one."""

    def finish(self):
        before = self.samples
        try:
            super().finish()
        except RuntimeError:
            self.samples = before + self.comm.rank
            raise


class ZerosForNobody(Agrees):
    def sends(self, count):
        return True


class ByNames(Simple):
    """Scales, then sends, by name; a tied parameter has two."""

    def finish(self):
        named = [(n, p) for n, p in self.module.named_parameters(remove_duplicate=False) if p.requires_grad]
        lacking = self.summed([bool(self.samples) and param.grad is None for _, param in named])
        names = [name for (name, _), count in zip(named, lacking) if count]
        if names and not self.find_unused:
            raise RuntimeError(f"no gradient for {', '.join(names)}")
        share = self.share()
        for _, param in named:
            if param.grad is not None:
                param.grad.data[...] *= share
        for param in self.module.parameters():
            if param.requires_grad:
                self.combine(param, 1.0)


class FrozenToo(Agrees):
    def parameters(self):
        for param in self.module.parameters():
            if not param.requires_grad:
                param.grad = Tensor(np.zeros(param.shape, param.dtype))
        return list(self.module.named_parameters())


class MeanOfUsers(Agrees):
    """Divides by the samples of the ranks that used a parameter."""

    def finish(self):
        named, samples = self.parameters(), self.samples
        missing = [name for name, param in named if param.grad is None]
        if self.summed(bool(missing) and samples > 0)[0] and not self.find_unused:
            super().finish()
        self.samples = 0
        for _, param in named:
            here = samples if param.grad is not None else 0
            total = self.summed(here)[0]
            if total:
                self.combine(param, here / total)


class StartsApart(Agrees):
    """Leaves the parameters to the seed."""

    def __init__(self, module, comm, find_unused_parameters=False):
        self.module, self.comm, self.find_unused, self.samples = module, comm, find_unused_parameters, 0


class CountsRanks(Agrees):
    def __call__(self, *inputs):
        self.samples = 1
        return self.module(*inputs)


class FromHooks:
    """Sends each gradient when it is complete, as the lesson on overlap does; nothing comes from an unused one."""

    def __init__(self, module, comm, find_unused_parameters=False):
        self.module, self.comm, self.works = module, comm, []
        for param in module.parameters():
            if param.requires_grad:
                param.register_post_accumulate_grad_hook(self.launch)

    def launch(self, param):
        param.grad.data[...] *= 0.5
        self.works.append(self.comm.all_reduce(param.grad.data))

    def __call__(self, *inputs):
        return self.module(*inputs)

    def finish(self):
        while self.works:
            self.works.pop(0).wait()


WRONG = {
    "used_anywhere": [
        Wrong(keeps_its_own, "one rank that says True is enough"),
        Wrong(used_everywhere, "one rank that says True is enough"),
        Wrong(one_call_an_entry, "each call costs the latency"),
        Wrong(only_if_something_is_missing, "did not make the same calls"),
        Wrong(sends_objects, "expected one all_reduce, got all_gather_object"),
    ],
    "get_ddp_unused": [
        Wrong(FromHooks, "where training hangs"),
        Wrong(SendsWhatItHas, "where training hangs"),
        Wrong(Lonely, "Rank 1 ended with RuntimeError: no gradient for west"),
        Wrong(FillsWithZeros, "got none on rank 0"),
        Wrong(NamesNone, "that names 'west'"),
        Wrong(KeepsSamples, "what the refused step left over was counted"),
        Wrong(ZerosForNobody, "A parameter that no rank used gets a gradient of zeros"),
        Wrong(ByNames, "A parameter of two names lies in two buckets"),
        Wrong(FrozenToo, "A frozen parameter travels along"),
        Wrong(MeanOfUsers, "is left out of the mean"),
        Wrong(StartsApart, "replicas that start one apart stay so"),
        Wrong(CountsRanks, "a mean of means"),
    ],
}
