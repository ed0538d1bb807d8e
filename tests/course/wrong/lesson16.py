"""What people write in lesson 16."""

import numpy as np

from minigrad import Tensor, no_grad
from minigrad.course.lesson16_slow_links.solution import outer_step
from tests.course.wrong import Wrong


def towards_the_start(start, average, velocity, lr, momentum):
    change = average - start
    velocity = momentum * velocity + change
    return start - lr * (change + momentum * velocity), velocity


def no_look_ahead(start, average, velocity, lr, momentum):
    velocity = momentum * velocity + (start - average)
    return start - lr * velocity, velocity


def old_velocity(start, average, velocity, lr, momentum):
    change = start - average
    return start - lr * (change + momentum * velocity), momentum * velocity + change


def rate_in_the_velocity(start, average, velocity, lr, momentum):
    """Sutskever's form, with the look-ahead: the rate is part of the velocity that comes back."""
    change = start - average
    velocity = momentum * velocity + lr * change
    return start - (lr * change + momentum * velocity), velocity


def in_place(start, average, velocity, lr, momentum):
    change = start - average
    velocity *= momentum
    velocity += change
    start -= lr * (change + momentum * velocity)
    return start, velocity


def _trained(
    comm, module, optimizer, batches, loss_of, every, lr, momentum,
    *, counts=True, moves=True, ends=True, resets=True, gathers=False,
):
    params = list(module.parameters())
    start = np.concatenate([param.detach().numpy().ravel() for param in params])
    velocity, samples = np.zeros_like(start), 0
    for made, (x, y) in enumerate(batches, start=1):
        optimizer.zero_grad()
        loss_of(module(x), y).backward()
        optimizer.step()
        samples += len(x) if counts else 1
        if made % every == 0 or (ends and made == len(batches)):
            here = np.concatenate([param.detach().numpy().ravel() for param in params])
            sums = np.append(here * samples, samples)
            if gathers:
                everyone = np.empty((comm.world_size, len(sums)))
                comm.all_gather(everyone, sums).wait()
                sums = everyone.sum(axis=0)
            else:
                comm.all_reduce(sums).wait()
            values, velocity = outer_step(start, sums[:-1] / sums[-1], velocity, lr, momentum)
            start, samples = values if moves else start, 0 if resets else samples
            _put(params, values)


def _put(params, values):
    begin = 0
    with no_grad():
        for param in params:
            param.copy_(Tensor(values[begin : begin + param.numel()].reshape(param.shape)))
            begin += param.numel()


def plain_mean(comm, module, optimizer, batches, loss_of, every, lr=1.0, momentum=0.0):
    _trained(comm, module, optimizer, batches, loss_of, every, lr, momentum, counts=False)


def never_at_the_end(comm, module, optimizer, batches, loss_of, every, lr=1.0, momentum=0.0):
    _trained(comm, module, optimizer, batches, loss_of, every, lr, momentum, ends=False)


def start_stays(comm, module, optimizer, batches, loss_of, every, lr=1.0, momentum=0.0):
    _trained(comm, module, optimizer, batches, loss_of, every, lr, momentum, moves=False)


def samples_of_all_steps(comm, module, optimizer, batches, loss_of, every, lr=1.0, momentum=0.0):
    """Counts samples from the beginning, not since the ranks met last."""
    _trained(comm, module, optimizer, batches, loss_of, every, lr, momentum, resets=False)


def gathered(comm, module, optimizer, batches, loss_of, every, lr=1.0, momentum=0.0):
    """The right numbers, by a call that brings each rank the arrays of all."""
    _trained(comm, module, optimizer, batches, loss_of, every, lr, momentum, gathers=True)


def one_call_a_parameter(comm, module, optimizer, batches, loss_of, every, lr=1.0, momentum=0.0):
    params = list(module.parameters())
    starts = [param.detach().numpy().copy() for param in params]
    velocities, samples = [np.zeros_like(start) for start in starts], 0
    for made, (x, y) in enumerate(batches, start=1):
        optimizer.zero_grad()
        loss_of(module(x), y).backward()
        optimizer.step()
        samples += len(x)
        if made % every == 0 or made == len(batches):
            total = np.array([float(samples)])
            comm.all_reduce(total).wait()
            for i, param in enumerate(params):
                mean = param.detach().numpy() * samples / total
                comm.all_reduce(mean).wait()
                starts[i], velocities[i] = outer_step(starts[i], mean, velocities[i], lr, momentum)
                _put([param], starts[i].ravel())
            samples = 0


def gradients_each_step(comm, module, optimizer, batches, loss_of, every, lr=1.0, momentum=0.0):
    """Data-parallel training, whatever `every` is."""
    for x, y in batches:
        optimizer.zero_grad()
        loss_of(module(x), y).backward()
        sums = np.concatenate([*(p.grad.numpy().ravel() * len(x) for p in module.parameters()), [float(len(x))]])
        comm.all_reduce(sums).wait()
        begin = 0
        for param in module.parameters():
            part = sums[begin : begin + param.numel()] / sums[-1]
            param.grad.copy_(Tensor(part.reshape(param.shape)))
            begin += param.numel()
        optimizer.step()


def always_one(step_s, reduce_s, most):
    return 1


def always_the_most(step_s, reduce_s, most):
    return most


def as_long_as_a_meeting(step_s, reduce_s, most):
    return max(1, min(most, round(reduce_s / step_s)))


def without_the_step(step_s, reduce_s, most):
    return max(1, min(most, round(1000 * reduce_s)))


def rounded_down(step_s, reduce_s, most):
    return min(most, int(reduce_s / (0.1 * step_s)))


WRONG = {
    "outer_step": [
        Wrong(towards_the_start, "change is start - average"),
        Wrong(no_look_ahead, "without the look-ahead"),
        Wrong(old_velocity, "the new velocity"),
        Wrong(rate_in_the_velocity, "the rate is no part of the velocity"),
        Wrong(in_place, "write into the caller's array"),
    ],
    "train_locally": [
        Wrong(plain_mean, "a rank counts by its samples"),
        Wrong(never_at_the_end, "once more at the end"),
        Wrong(start_stays, "start and velocity are those after the last meeting"),
        Wrong(samples_of_all_steps, "samples since they met last"),
        Wrong(gathered, "all_reduce of 27 elements"),
        Wrong(one_call_a_parameter, "what goes over a slow link"),
        Wrong(gradients_each_step, "averaged by hand"),
    ],
    "local_steps": [
        Wrong(always_one, "the rest of the time went into meetings"),
        Wrong(always_the_most, "ranks drift apart for 128 steps"),
        Wrong(as_long_as_a_meeting, "expected a number with which the loss"),
        Wrong(without_the_step, "expected a number with which the loss"),
        Wrong(rounded_down, "expected an int from 1 to 128, got 0"),
    ],
}
