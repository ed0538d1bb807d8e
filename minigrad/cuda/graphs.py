"""A whole training step as one CUDA graph: what costs the host a launch for each operation costs it one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from minigrad.arguments import as_integer, kind_of
from minigrad.backend.capture import DeviceGraph
from minigrad.backend.capturing import Capture, current_capture, refuse_in_capture
from minigrad.backend.device import Device, device_of
from minigrad.backend.dtypes import Array
from minigrad.backend.memory import duplicate
from minigrad.backend.nvtx import nvtx_range
from minigrad.backend.timer import CudaTimer
from minigrad.errors import ArgumentError, CaptureError, DeviceError, DtypeError, ShapeError
from minigrad.nn.watch import naming_calls
from minigrad.stamp import mark_changed, next_number
from minigrad.tensor import Tensor, tensors_in

__all__ = ["CapturedStep", "capture"]


def capture(function: Callable[..., Any], *examples: Tensor, warmup: int = 3) -> CapturedStep:
    """A training step as one CUDA graph, which the host launches in one go: call the result as the function.

    The step is all from zero_grad() to optimizer.step(), the collectives of DistributedDataParallel among it. The
    function is run warmup times on the examples, and once more while it is captured; then that run is launched. So
    warmup + 1 steps are made on the examples, and from there on a call has the bits of a step that is not captured.

    A graph repeats what the device did, with the shapes of the examples. The numbers of steps, learning rates, loss
    scales, dropout's noise and samples of ranks are read from device memory and go on as they would. Other Python in
    the function runs no more: hooks, prints, counters, `if` on what the host knows, and numbers of Python, such as the
    weight of a loss, are as they were when it was captured; give a tensor as an argument for what changes. Tensors that
    it takes from elsewhere are read where they lay: change them in place, and keep them. Where an optimizer, a
    GradScaler or a module that was called has another option, mode, parameter or buffer since, a call is refused.

    Args:
        function: Takes tensors, and returns a tensor, or tensors in tuples, lists and mappings, or None. It has to call
            zero_grad() and may call SGD, Adam and AdamW; step a learning rate schedule outside of it.
        examples: Its arguments: tensors on one GPU, at least one; they stay as they are.
        warmup: Runs before it is captured, in which kernels are compiled and memory is taken that is kept, >= 1. Some
            options of DistributedDataParallel have to be off, such as find_unused_parameters: an error says so.

    Raises:
        DeviceError: the examples are not on a GPU, where nothing can be captured: call the function itself.
        CaptureError: the function does what a graph can't repeat: reads a number on the host, as item() does, makes a
            tensor from host data, steps a schedule. The message names it and its line. What the function did before is
            done, nothing is captured, and training can go on.
        ArgumentError, DtypeError: no function, no examples, something else than tensors, or warmup below 1.

    Example: `step = minigrad.capture(train_step, x, labels)`, then `loss = step(x, labels)` for each batch
    """
    if not callable(function):
        raise ArgumentError(f"capture: expected a function, got {kind_of(function)}")
    warmup = as_integer("capture", "warmup", warmup, 1)
    refuse_in_capture("capture", "another capture")
    device = _device_of("capture", examples)
    return CapturedStep(function, device, examples, warmup)


class CapturedStep:
    """What `capture` returns: call it with tensors like the examples.

    Attributes:
        inputs: Where the graph reads its arguments. Who writes these and calls with them saves a copy each.
        outputs: What a call returns: the same tensors each time, which the next call overwrites. Take `clone()` of
            what has to last.
    """

    def __init__(self, function: Callable[..., Any], device: Device, examples: tuple[Tensor, ...], warmup: int) -> None:
        self._function, self._device = function, device  # keeps alive what the graph reads and writes
        self._graph, self._timer = DeviceGraph(device), CudaTimer(device)
        with self._graph.beside():
            self.inputs = tuple([Tensor(duplicate(example.data)) for example in examples])
            for _ in range(warmup):
                function(*self.inputs)
            self._graph.prepare()
            self._capture = Capture(device, next_number())
            self.outputs = self._graph.record(self._capture, self._body)
        for user in self._capture.users:
            user(self._graph.drop)
        self._launch()

    def _body(self) -> Any:
        with naming_calls():  # so that the capture hears of each module
            outputs = _outputs(self._function(*self.inputs), self._device)
        for tensor in tensors_in(outputs):
            mark_changed(tensor)
        return outputs

    def __call__(self, *args: Tensor) -> Any:
        """Make a step.

        Raises:
            ShapeError, DtypeError, DeviceError, ArgumentError: the arguments are not like the examples.
            CaptureError: the step would now be another one, for an option of an optimizer or the mode of a module was
                changed, say.
        """
        refuse_in_capture("captured step", "a captured step in it")
        self._check(args)
        for check in self._capture.checks:
            check()
        with nvtx_range("captured step"), self._device.current():
            for count in self._capture.counts:
                count()
            for place, data in [(place, self._apart(place, given)) for place, given in zip(self.inputs, args)]:
                if data is not place.data:
                    place.data[...] = data
                    mark_changed(place)
            self._launch()
        return self.outputs

    def times_s(self) -> list[float]:
        """Seconds that the GPU took for each call since it was asked last, once it is through with it; never waits.

        Of more than 64 calls it has the last ones.
        """
        return self._timer.read_s()

    def _launch(self) -> None:
        with self._device.current():
            for write in self._capture.writes:
                write()
            self._timer.start()
            self._graph.launch()
            self._timer.stop()
            for launched in self._capture.launched:
                launched()

    def _apart(self, place: Tensor, given: Tensor) -> Array:
        """The data of what is given for a place; a copy where it views a place that is written to."""
        if given.data is not place.data:
            for other in self.inputs:
                if given.data is other.data or (given.stamp is not None and given.stamp is other.stamp):
                    return duplicate(given.data)
        return given.data

    def _check(self, args: tuple[Any, ...]) -> None:
        who = "captured step"
        if len(args) != len(self.inputs):
            raise ArgumentError(f"{who}: expected {len(self.inputs)} arguments as when captured, got {len(args)}")
        if args and _device_of(who, args) is not self._device:
            raise DeviceError(f"{who}: expected tensors on {self._device}, got some on {args[0].device}")
        for number, (place, given) in enumerate(zip(self.inputs, args)):
            if given.data.shape != place.data.shape:
                raise ShapeError(
                    f"{who}: expected argument {number} of shape {place.shape} as when captured, got {given.shape}: "
                    "capture a step for each shape, or call the function itself"
                )
            if given.data.dtype != place.data.dtype:
                raise DtypeError(f"{who}: expected argument {number} of {place.dtype.name}, got {given.dtype.name}")


def _device_of(who: str, tensors: tuple[Any, ...]) -> Device:
    """The GPU on which all of them lie.

    Raises:
        DeviceError: they are on several, or on none.
    """
    if not tensors:
        raise ArgumentError(f"{who}: expected tensors as arguments, got none")
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise DtypeError(f"{who}: expected tensors as arguments, got {kind_of(tensor)}: it would never change")
        if tensor.requires_grad:
            raise ArgumentError(f"{who}: expected arguments without gradient, got requires_grad=True: use .detach()")
    devices = {device_of(tensor.data) for tensor in tensors}
    device = devices.pop()
    if devices or device.type == "cpu":
        found = ", ".join(sorted(str(each) for each in {device, *devices}))
        hint = "write .to(device)" if devices else "CUDA has graphs, a CPU has none: call the function itself there"
        raise DeviceError(f"{who}: expected tensors on one GPU, got tensors on {found}: {hint}")
    return device


def _outputs(value: Any, device: Device) -> Any:
    """What the function returned, without its graph.

    Raises:
        CaptureError: something in it that no replay would change.
    """
    if value is None or isinstance(value, Tensor) and value.device is device:
        return None if value is None else value.detach()
    if isinstance(value, Mapping):
        return {key: _outputs(each, device) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        fields = [_outputs(each, device) for each in value]
        return type(value)(*fields) if hasattr(value, "_fields") else type(value)(fields)
    got = f"a tensor on {value.device}" if isinstance(value, Tensor) else kind_of(value)
    raise CaptureError(
        f"captured step: expected the function to return tensors on {device}, got {got}: it would be the same each time"
    )


def is_capturing() -> bool:
    """Whether a step is captured in this context: its Python runs, and the GPU does nothing yet."""
    return current_capture() is not None
