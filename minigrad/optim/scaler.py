"""Loss scaling: keeps the small gradients of float16 from vanishing, and skips the steps in which large ones overflow.

Source: Micikevicius et al., "Mixed precision training", ICLR 2018, section 3.2; the rule is that of
`torch.amp.GradScaler`.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minigrad.arguments import as_integer, as_real, check_switch
from minigrad.backend.capturing import each_replay, stays_in_replays
from minigrad.backend.device import CPU, Device, array_module, to_device, to_host
from minigrad.backend.dtypes import Array, is_half
from minigrad.backend.fused.grad_scale import scale_
from minigrad.backend.fused.optimizer import GOOD_STEPS, LOSS_SCALE, new_control, settle_step
from minigrad.errors import AutogradError, DtypeError, StateDictError
from minigrad.kept import check_finished, gradient_changed
from minigrad.ops.arithmetic import mul
from minigrad.ops.operands import cast
from minigrad.nn.companions import Holder, attach, holder_near, is_attached, number_of, unshared_number
from minigrad.optim.optimizer import Optimizer, buffers_of
from minigrad.tensor import Tensor

__all__ = ["GradScaler"]

_KEYS = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")


@dataclass(eq=False)
class _Progress:
    """How far an optimizer is since the last update, and what decides about its step on each device.

    found is where the scale lives, uint32 (1,): not 0 where a gradient was not finite; None where there was none.
    """

    unscaled: bool = False
    stepped: bool = False
    found: Array | None = None
    controls: dict[Device, Array] = field(default_factory=dict)


class GradScaler:
    """Multiplies the loss before backward, divides the gradients after it, and adapts the factor.

    A step whose gradients are not finite is skipped and the scale shrinks; after growth_interval good steps it grows.
    The gradients are looked at after backward, combined over ranks, so that all ranks decide alike. On a GPU scale,
    counts and decision stay in device memory and nothing waits for them, with the optimizers of `minigrad.optim`.

    Args:
        init_scale: > 0.
        growth_factor: > 1.
        backoff_factor: In (0, 1).
        growth_interval: Steps in a row without overflow, >= 1.
        enabled: False leaves loss and steps as they are.

    Raises:
        ArgumentError: a value out of range.

    Example:
        >>> from minigrad import autocast, nn, ones, optim
        >>> model = nn.Linear(3, 4)
        >>> optimizer, scaler = optim.SGD(model.parameters(), lr=0.1), GradScaler()
        >>> with autocast("float16"):
        ...     loss = model(ones(8, 3)).mean()
        >>> scaler.scale(loss).backward()
        >>> scaler.unscale_(optimizer)  # only where gradients are clipped, or looked at
        >>> norm = optim.clip_grad_norm_(model.parameters(), 1.0)
        >>> scaler.step(optimizer)
        >>> scaler.update()
        >>> scaler.get_scale()
        65536.0
    """

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        check_switch("GradScaler", enabled=enabled)
        self._enabled = enabled
        self._home: Device | None = None  # not known before the first loss or optimizer
        self._control = new_control(CPU)
        self._set(init_scale, growth_factor, backoff_factor, growth_interval, 0)

    def _set(
        self, scale: float, growth_factor: float, backoff_factor: float, growth_interval: int, good_steps: int
    ) -> None:
        as_real("GradScaler", "scale", scale, above=0.0, finite=True)
        as_real("GradScaler", "growth_factor", growth_factor, above=1.0, finite=True)
        as_real("GradScaler", "backoff_factor", backoff_factor, above=0.0, below=1.0)
        as_integer("GradScaler", "growth_interval", growth_interval, 1)
        as_integer("GradScaler", "_growth_tracker", good_steps, 0)
        self.growth_factor, self.backoff_factor = float(growth_factor), float(backoff_factor)
        self.growth_interval = int(growth_interval)
        with self._control_place().current():
            self._control[...] = new_control(self._control_place(), float(scale))  # where graphs read it
            self._control[GOOD_STEPS] = float(good_steps)
        self._base = number_of((scale, growth_factor, backoff_factor, growth_interval, good_steps, self._enabled))
        self._updates = 0
        self._progress: weakref.WeakKeyDictionary[Optimizer, _Progress] = weakref.WeakKeyDictionary()

    # ------------------------------------------------------------------------------------------------------ a step

    def scale(self, outputs: Any) -> Any:
        """A loss times the scale, or a list or tuple of them; half precision becomes float32.

        Raises:
            DtypeError: something that is no tensor.
        """
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(self.scale(output) for output in outputs)
        if not isinstance(outputs, Tensor):
            raise DtypeError(f"GradScaler.scale: expected tensors, got {type(outputs).__name__}")
        if not self._enabled:
            return outputs
        self._attach(holder_near(outputs))
        loss = cast(outputs, np.dtype(np.float32)) if is_half(outputs.dtype) else outputs
        with loss.device.current():
            scale = self._control_on(loss.device)[LOSS_SCALE].astype(loss.dtype)
            return mul(loss, Tensor(scale))

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimizer by the scale, for example to clip them; `step` does it otherwise.

        Raises:
            AutogradError: called a second time since the last update, or after step; or a gradient is a part of one.
            DtypeError: a gradient of float16, which the scale might not fit into.
        """
        if not self._enabled:
            return
        progress = self._progress_of("unscale_", optimizer)
        if progress.unscaled:
            raise AutogradError("GradScaler.unscale_: expected one call for an optimizer between updates, got another")
        flags: dict[Device, Array] = {}
        with optimizer.looking() as agreed:
            runs = _gradients(optimizer)
            for device, gradients in runs.items():
                with device.current() as xp:
                    flags[device] = xp.zeros(1, np.uint32)
                    inverse = 1.0 / self._control_on(device)[LOSS_SCALE : LOSS_SCALE + 1]
                    for gradient in gradients:
                        scale_(gradient, inverse, flags[device])
            progress.found = agreed(self._combined(list(flags.values())))
        progress.unscaled = True
        for device in runs:
            if device not in progress.controls:
                progress.controls[device] = new_control(device)

    def step(self, optimizer: Optimizer) -> None:
        """Step the optimizer, unless a gradient was not finite; they are unscaled first where they are not yet.

        Raises:
            AutogradError: called a second time since the last update.
            DtypeError: see `unscale_`.
        """
        if not self._enabled:
            optimizer.step()
            return
        progress = self._progress_of("step", optimizer)
        if not progress.unscaled:
            self.unscale_(optimizer)
        progress.stepped = True
        if progress.found is None:
            optimizer.step()
            return
        for device, control in progress.controls.items():
            with device.current():
                flag = to_device(progress.found, device).copy()
                settle_step(control, flag, growth_factor=1.0, backoff_factor=1.0)
        optimizer.step_unless_skipped(progress.controls)

    def update(self, new_scale: float | None = None) -> None:
        """Adapt the scale to what was found since the last update; to be called after the steps of all optimizers.

        Args:
            new_scale: Take this one instead, > 0.

        Raises:
            AutogradError: no gradients were looked at since the last update.
            ArgumentError: new_scale out of range.
        """
        if not self._enabled:
            return
        started = [progress for progress in self._progress.values() if progress.unscaled]
        if new_scale is not None:
            as_real("GradScaler.update", "new_scale", new_scale, above=0.0, finite=True)
            with self._control_place().current():
                self._control[LOSS_SCALE] = float(new_scale)
            self._base = number_of((self._base, self._updates, float(new_scale)))
        elif not started:
            raise AutogradError("GradScaler.update: expected a step since the last update, got none")
        else:
            self._adapt([progress.found for progress in started if progress.found is not None])
        for progress in started:
            progress.unscaled = progress.stepped = False
            progress.found = None

    def _adapt(self, found: list[Array]) -> None:
        flag = self._combined(found)
        if flag is None:
            return
        self._count()
        each_replay(self._count)
        stays_in_replays("GradScaler", lambda: _options(self))
        with self._control_place().current():
            settle_step(
                self._control,
                flag.copy(),
                growth_factor=self.growth_factor,
                backoff_factor=self.backoff_factor,
                growth_interval=self.growth_interval,
            )

    def _count(self) -> None:
        self._updates += 1

    # -------------------------------------------------------------------------------------------------------- state

    def get_scale(self) -> float:
        """The present scale, 1 where not enabled; waits for a GPU."""
        return float(to_host(self._control)[LOSS_SCALE]) if self._enabled else 1.0

    def is_enabled(self) -> bool:
        """Whether it does anything."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """Scale, options and the good steps in a row, under PyTorch's names; empty where not enabled."""
        if not self._enabled:
            return {}
        control = to_host(self._control)
        options = (self.growth_factor, self.backoff_factor, self.growth_interval)
        return dict(zip(_KEYS, (float(control[LOSS_SCALE]), *options, int(control[GOOD_STEPS]))))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned, here or in PyTorch.

        Raises:
            StateDictError: other keys.
            ArgumentError: a value out of range; nothing was changed then.
        """
        if not self._enabled:
            return
        if not isinstance(state_dict, Mapping) or set(state_dict) != set(_KEYS):
            got = sorted(state_dict) if isinstance(state_dict, Mapping) else type(state_dict).__name__
            raise StateDictError(f"GradScaler.load_state_dict: expected {', '.join(_KEYS)}, got {got}")
        self._set(*(state_dict[key] for key in _KEYS))
        self._base = unshared_number()

    def mark(self) -> int:
        """See `nn.companions.Companion`: the state, or, where a GPU keeps it, how often it was updated since."""
        if self._control_place() is not CPU:
            return hash((self._base, self._updates))
        control = self._control
        options = (self.growth_factor, self.backoff_factor, self.growth_interval, self._enabled)
        return hash((float(control[LOSS_SCALE]), float(control[GOOD_STEPS]), *options))

    def settle(self, number: int) -> None:
        """See `nn.companions.Companion`."""
        self._base, self._updates = number, 0

    def attach(self, optimizer: Optimizer) -> None:
        """Be seen beside an optimizer's parameters before the first step too, by who keeps those alike on ranks.

        A rank that has no data calls no `scale`, and would be seen later than others.
        """
        for buffer in buffers_of(optimizer)[:1]:
            self._attach(buffer)

    def _attach(self, buffer: Holder | None) -> None:
        if buffer is not None and not is_attached(self, buffer):
            attach(self, [buffer])

    # ------------------------------------------------------------------------------------------------------- inside

    def _progress_of(self, method: str, optimizer: Optimizer) -> _Progress:
        if not isinstance(optimizer, Optimizer):
            raise DtypeError(f"GradScaler.{method}: expected an Optimizer, got {type(optimizer).__name__}")
        progress = self._progress.setdefault(optimizer, _Progress())
        self.attach(optimizer)
        if progress.stepped:
            raise AutogradError(f"GradScaler.{method}: expected update() after step(), got another {method}() before")
        return progress

    def _control_place(self) -> Device:
        return CPU if self._home is None else self._home

    def _control_on(self, device: Device) -> Array:
        """The scale and its counts on a device; they live on the first that asks."""
        if self._home is None:
            self._home, self._control = device, to_device(self._control, device)
        return to_device(self._control, device)

    def _combined(self, flags: list[Array]) -> Array | None:
        """Whether one of the flags, of any devices, is set: where the scale lives, uint32 (1,)."""
        if not flags:
            return None
        place = self._control_place()
        with place.current():
            total = to_device(flags[0], place)
            for flag in flags[1:]:
                total = array_module(total).maximum(total, to_device(flag, place))
        return total


def _options(scaler: GradScaler) -> dict[str, object]:
    return {name: getattr(scaler, name) for name in _KEYS[1:4]}


def _gradients(optimizer: Optimizer) -> dict[Device, list[Array]]:
    """By device the contiguous ranges that hold an optimizer's gradients."""
    found: dict[Device, list[Array]] = {}
    for part in (part for parts in optimizer.parts for part in parts):
        due = [param for param in part.params if param.grad_array is not None]
        if not due:
            continue
        for param in due:
            check_finished("GradScaler.unscale_", param)
            gradient_changed(param)
        part.buffer.check()
        if part.buffer.dtype == np.float16:
            raise DtypeError(
                "GradScaler: expected gradients of float32, bfloat16 or float64, got float16: "
                "keep parameters in float32 and compute under autocast"
            )
        ranges = [part.buffer.grad[start:stop] for start, stop in part.buffer.runs(due)]
        found.setdefault(part.buffer.device, []).extend(ranges)
    return found
