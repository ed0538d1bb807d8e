"""What the host spends on a fused operation before its kernel is launched: `python -m tests.benchmarks.overhead`.

No GPU is needed: arrays are names of memory that is not there, allocations and launches return at once. What is left
is the framework's own time from the public call to its first and its last launch, and to the result: CuPy's and the
driver's come on top, about 5 µs a launch and 1 µs an allocation. Medians over calls, of the least disturbed of several
rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

import minigrad
from minigrad import nn, optim
from minigrad.backend import device
from minigrad.backend.cublas import Cublas, using_cublas
from minigrad.backend.kernels import KernelLoader, using_kernels
from minigrad.nn import functional as F

CALLS, ROUNDS = 400, 9


class LightArray:
    """An array on a GPU that is not there: a shape and a dtype."""

    __slots__ = ("shape", "dtype", "size", "ndim", "itemsize", "strides", "_views")
    __array_priority__ = 100
    flags = SimpleNamespace(c_contiguous=True, f_contiguous=False, owndata=True, forc=True)
    data = SimpleNamespace(ptr=4096, device_id=0, mem=None)
    device = SimpleNamespace(id=0)

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = shape, dtype
        self.ndim, self.size, self.itemsize = len(shape), math.prod(shape), dtype.itemsize
        step, strides = dtype.itemsize, []
        for length in reversed(shape):
            strides.append(step)
            step *= length
        self.strides = tuple(strides[::-1])
        self._views: dict[Any, LightArray] = {}

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> LightArray:
        return self

    def __iadd__(self, other: Any) -> LightArray:
        return self

    @property
    def T(self) -> LightArray:
        """Its axes in turn."""
        if "T" not in self._views:
            self._views["T"] = turned = LightArray(self.shape[::-1], self.dtype)
            turned.strides = self.strides[::-1]
        return self._views["T"]

    def swapaxes(self, first: int, second: int) -> LightArray:
        """Matrices turned."""
        return self.transpose(*range(self.ndim - 2), self.ndim - 1, self.ndim - 2)

    def transpose(self, *axes: int) -> LightArray:
        """The same memory with its axes in another order."""
        if ("transpose", axes) not in self._views:
            self._views["transpose", axes] = turned = LightArray(tuple(self.shape[i] for i in axes), self.dtype)
            turned.strides = tuple(self.strides[i] for i in axes)
        return self._views["transpose", axes]

    def reshape(self, *shape: Any) -> LightArray:
        """The same memory in another shape."""
        if shape not in self._views:
            self._views[shape] = self._in(*shape)
        return self._views[shape]

    def _in(self, *shape: Any) -> LightArray:
        lengths = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        if -1 in lengths:
            rest = -math.prod(lengths)
            lengths = tuple(self.size // rest if length == -1 else length for length in lengths)
        return LightArray(tuple(lengths), self.dtype)

    def astype(self, dtype: Any, copy: bool = True) -> LightArray:
        """It in another dtype."""
        return self if self.dtype == dtype else LightArray(self.shape, np.dtype(dtype))


@functools.cache
def empty(shape: Any, dtype: Any = np.float64, order: str = "C") -> LightArray:
    """Memory that is not there."""
    return LightArray(tuple(shape) if isinstance(shape, (tuple, list)) else (int(shape),), np.dtype(dtype))


def empty_like(x: LightArray, dtype: Any = None, order: str = "K") -> LightArray:
    """The same, as another array has it."""
    return empty(x.shape, x.dtype if dtype is None else dtype)


class LightDevice:
    """A GPU that is not there."""

    def __init__(self, index: int) -> None:
        self.id = index

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


MODULE: Any = SimpleNamespace(
    empty=empty,
    zeros=empty,
    empty_like=empty_like,
    maximum=lambda x, y, out: out,
    ascontiguousarray=lambda x: x,
    ndarray=LightArray,
    cuda=SimpleNamespace(
        Device=LightDevice,
        get_current_stream=lambda stream=SimpleNamespace(ptr=0): stream,
        is_available=lambda: True,
        runtime=SimpleNamespace(getDevice=lambda: 0, getDeviceCount=lambda: 1),
    ),
)


class Clock(KernelLoader):
    """Kernels that do nothing but look at the clock."""

    def __init__(self) -> None:
        super().__init__(lambda name, source: self)
        self.at: list[int] = []

    def get_function(self, name: str) -> Callable[..., None]:
        """The kernel of a name."""
        return lambda grid, block, args: self.at.append(time.perf_counter_ns())


class ClockCublas(Cublas):
    """Products that do nothing but look at the clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._at = clock.at

    def multiply(self, *args: Any) -> None:
        """Look at the clock."""
        self._at.append(time.perf_counter_ns())


def measured(clock: Clock, call: Callable[[], Any]) -> tuple[float, float, float, int]:
    """µs from the call to the first and to the last launch and to the result, and how many launches there were."""
    rounds = []
    for _ in range(ROUNDS):
        times: tuple[list[int], ...] = ([], [], [])
        for _ in range(CALLS):
            clock.at.clear()
            begin = time.perf_counter_ns()
            call()
            end = time.perf_counter_ns()
            for times_of_one, at in zip(times, (clock.at[0], clock.at[-1], end)):
                times_of_one.append(at - begin)
        first, last, whole = (statistics.median(times_of_one) / 1e3 for times_of_one in times)
        rounds.append((first, last, whole, len(clock.at)))
    return min(rounds)


def operations() -> dict[str, Callable[[], Any]]:
    """Public calls of fused operations, on tensors that want gradients."""
    float32, int64 = np.dtype(np.float32), np.dtype(np.int64)

    def tensor(*shape: int) -> minigrad.Tensor:
        return minigrad.Tensor(LightArray(shape, float32), requires_grad=True)

    x, vector, matrix = tensor(64, 128), tensor(128), tensor(128, 128)
    labels = minigrad.Tensor(LightArray((64,), int64))
    images, kernels, channels = tensor(8, 16, 8, 8), tensor(16, 16, 3, 3), tensor(16)
    mean, variance = (minigrad.Tensor(LightArray((16,), float32)) for _ in range(2))
    tokens = minigrad.Tensor(LightArray((8, 16), int64))
    heads = tensor(4, 2, 16, 32)
    return {
        "layer_norm": lambda: F.layer_norm(x, (128,), vector, vector),
        "dropout": lambda: F.dropout(x, 0.1),
        "cross_entropy": lambda: F.cross_entropy(x, labels),
        "relu": lambda: F.relu(x),
        "linear": lambda: F.linear(x, matrix, vector),
        "conv2d": lambda: F.conv2d(images, kernels, padding=1),
        "batch_norm": lambda: F.batch_norm(images, mean, variance, channels, channels, training=True),
        "group_norm": lambda: F.group_norm(images, 4, channels, channels),
        "softmax": lambda: F.softmax(x, -1),
        "gelu": lambda: F.gelu(x),
        "embedding": lambda: F.embedding(tokens, matrix),
        "attention": lambda: F.scaled_dot_product_attention(heads, heads, heads, is_causal=True),
        "max_pool2d": lambda: F.max_pool2d(images, 2),
        "avg_pool2d": lambda: F.avg_pool2d(images, 2),
        **{f"{make.__name__}.step": stepping(make) for make in (optim.SGD, optim.Adam)},
    }


def stepping(make: Callable[..., Any]) -> Callable[[], Any]:
    """Steps of an optimizer of one group, whose memory on the host is taken for that of the GPU."""
    parameter = nn.Parameter(np.zeros((128, 128), np.float32))
    optimizer = make([parameter], lr=0.1)
    (part,) = optimizer.parts[0]
    parameter.grad = minigrad.zeros(128, 128)
    buffer, flat = part.buffer, LightArray(parameter.data.reshape(-1).shape, parameter.data.dtype)
    buffer.data = buffer.grad = flat
    return optimizer.step


@contextlib.contextmanager
def light_gpu() -> Iterator[Clock]:
    """Let light arrays be CuPy's inside the block."""
    clock = Clock()
    modules = {"cupy": MODULE}
    with mock.patch.dict(sys.modules, modules), mock.patch.dict(device._MODULES, {LightArray: MODULE}):
        with using_kernels(clock), using_cublas(ClockCublas(clock)):
            yield clock


def main() -> None:
    """Print the table, or profile one operation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", metavar="NAME", help="list what one operation calls")
    options = parser.parse_args()
    with light_gpu() as clock:
        calls = operations()
        if options.profile:
            profile(calls[options.profile])
            return
        print(f"{'µs':16}{'first launch':>14}{'last launch':>14}{'result':>10}{'launches':>10}")
        for name, call in calls.items():
            first, last, whole, launches = measured(clock, call)
            print(f"{name:16}{first:14.1f}{last:14.1f}{whole:10.1f}{launches:10}")


def profile(call: Callable[[], Any]) -> None:
    """List what a call spends its time on."""
    import cProfile
    import pstats

    with cProfile.Profile() as found:
        for _ in range(5000):
            call()
    pstats.Stats(found).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
