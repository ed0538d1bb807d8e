"""Where the time of a convolution goes: `python -m tests.gpu.convolution`, on a GPU, in half a minute.

The parts are measured by what public calls leave out: a forward alone, one whose backward reaches the weight alone, one
whose backward reaches the input alone. Beside them stands what they can't do without: a copy of as many bytes as the
columns have, and the products of those sizes, that of the weight's gradient also with its long side cut into pieces.
Times of a device are those of its own events. The last rows are the host's, of calls that are too small for the device.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import minigrad
from minigrad import Device, Tensor, no_grad
from minigrad.backend.fused.grad_scale import scale_
from minigrad.backend.gemm import bmm
from minigrad.backend.timer import timer_of
from minigrad.nn import functional as F

PIECES = 64


@dataclass(frozen=True)
class Sizes:
    """Images (N, C, H, H), of which as many kernels of 3 x 3 make (N, O, H, H)."""

    samples: int = 64
    channels: int = 64
    height: int = 32
    outputs: int = 64

    @property
    def pixels(self) -> int:
        """Of all images."""
        return self.samples * self.height**2


def device_ms(call: Callable[[], Any], device: Device, times: int) -> float:
    """The median of what a call takes on its device, which has done it twice before."""
    timer = timer_of(device)
    for _ in range(times + 2):
        timer.start()
        call()
        timer.stop()
    wait(device)
    return 1e3 * statistics.median(timer.read_s()[2:])


def host_us(call: Callable[[], Any], device: Device, times: int) -> float:
    """What the host needs for a call, as long as the device keeps up with it."""
    call()
    wait(device)
    began = time.perf_counter()
    for _ in range(times):
        call()
    passed = time.perf_counter() - began
    wait(device)
    return 1e6 * passed / times


def wait(device: Device) -> None:
    """Until the device is idle."""
    if device.type != "cpu":
        device.xp.cuda.get_current_stream().synchronize()


def convolutions(device: Device, sizes: Sizes) -> dict[str, Callable[[], Any]]:
    """A convolution whose backward goes nowhere, to the weight, to the input, and to both."""
    shape = (sizes.samples, sizes.channels, sizes.height, sizes.height)
    kernel = (sizes.outputs, sizes.channels, 3, 3)

    def step(trains: str) -> Callable[[], Any]:
        x = minigrad.randn(*shape, device=device, requires_grad="x" in trains)
        w = minigrad.randn(*kernel, device=device, requires_grad="w" in trains)
        seed = minigrad.ones(sizes.samples, sizes.outputs, sizes.height, sizes.height, device=device)

        def run() -> None:
            x.grad = w.grad = None
            F.conv2d(x, w, padding=1).backward(seed)

        def forward() -> Tensor:
            with no_grad():
                return F.conv2d(x, w, padding=1)

        return run if trains else forward

    names = {"": "forward", "w": "forward, weight gradient", "x": "forward, input gradient", "xw": "all of it"}
    return {name: step(trains) for trains, name in names.items()}


def likes(device: Device, sizes: Sizes) -> dict[str, Callable[[], Any]]:
    """What a convolution by one product each way is made of."""
    width = 9 * sizes.channels
    columns, grad = (minigrad.randn(sizes.pixels, n, device=device) for n in (width, sizes.outputs))
    taps = minigrad.randn(width, sizes.outputs, device=device)
    images = minigrad.randn(sizes.samples, sizes.outputs, sizes.height**2, device=device)
    deep = grad.data.reshape(PIECES, -1, sizes.outputs).swapaxes(1, 2), columns.data.reshape(PIECES, -1, width)
    return {
        "a copy of the columns": columns.clone,
        "the gradient with its channels last": lambda: images.transpose(1, 2).contiguous(),
        "the product of the forward": lambda: columns @ taps,
        "the product of the weight gradient": lambda: grad.T @ columns,
        f"the same, cut into {PIECES}": lambda: bmm(*deep).sum(axis=0),
        "the product of the input gradient": lambda: grad @ taps.T,
    }


def small_calls(device: Device) -> dict[str, Callable[[], Any]]:
    """Calls that cost the host alone."""
    with device.current() as xp:
        tiny, one = xp.zeros(64, "float32"), xp.ones(1)

        def enter() -> None:
            with device.current():
                pass

        return {
            "scale_ of 64 numbers": lambda: scale_(tiny, one),
            "multiply of 64 numbers": lambda: xp.multiply(tiny, 2.0, out=tiny),
            "a slice of an array": lambda: tiny[1:],
            "Device.current()": enter,
        }


def probe(device: Device, sizes: Sizes = Sizes(), times: int = 20, calls: int = 2000) -> list[str]:
    """The table, a line each."""
    took = {name: device_ms(call, device, times) for name, call in convolutions(device, sizes).items()}
    forward = took["forward"]
    for part in ("weight gradient", "input gradient"):
        took[f"hence the {part}"] = took[f"forward, {part}"] - forward
    took.update({name: device_ms(call, device, times) for name, call in likes(device, sizes).items()})
    host = {name: host_us(call, device, calls) for name, call in small_calls(device).items()}
    return [
        "| part | on the device, ms | on the host, us |",
        "|---|---|---|",
        *(f"| {name} | {ms:.3f} | |" for name, ms in took.items()),
        *(f"| {name} | | {us:.1f} |" for name, us in host.items()),
    ]


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="write the table to this file as well")
    options = parser.parse_args()
    device = minigrad.distributed.init(backend="solo", device=options.device).device
    sizes = Sizes()
    text = "\n".join(
        [
            f"conv2d of {sizes.samples} x {sizes.channels} x {sizes.height} x {sizes.height}, {sizes.outputs} kernels "
            "of 3 x 3, float32, no TF32; medians",
            "",
            *probe(device, sizes),
            "",
        ]
    )
    print(text)
    if options.out is not None:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
