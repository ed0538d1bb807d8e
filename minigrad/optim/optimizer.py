"""What all optimizers share: groups of parameters, state on the flat layout, and which ranges are due.

State lies as the parameters do: for each flat buffer one array of its length for each kind of state. A step updates
maximal contiguous ranges, which is one for each buffer where every parameter has a gradient, so its cost does not
depend on how many parameters the model has. Parameters without gradient stay as they are, weight decay included.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from minigrad.arguments import as_amount, check_switch
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, is_float
from minigrad.backend.kernels import kernels_for
from minigrad.errors import ArgumentError, DtypeError
from minigrad.kept import check_finished
from minigrad.nn.companions import attach, number_of, unshared_number
from minigrad.nn.flat import flatten
from minigrad.nn.parameter import Parameter, at_least_one, zero_gradients
from minigrad.optim.attempts import Attempts, Controls, has_skipped
from minigrad.optim.captured import CapturedUpdates, range_of_step, updates_in_capture
from minigrad.optim.part import AnyBuffer, Part, buffer_of
from minigrad.optim.state import INITIAL_LR, MASTER, load_optimizer_state, optimizer_state, state_by_parameter
from minigrad.recording import enable_grad
from minigrad.tensor import Tensor

__all__ = ["Optimizer"]

Params = Iterable[Parameter] | Iterable[dict[str, Any]]
Agree = Callable[[Array | None], Array | None]  # a flag of this rank -> that of all

BLOCK = 65536  # elements; parameter, gradient, state and scratch of a block stay in the cache between passes


class Optimizer:
    """Base class: a subclass says which options and state it has, and how to update a flat array.

    Args:
        params: Parameters, or groups: dicts with "params" and the options in which a group differs. A tensor that is
            no Parameter is taken too, and trained in its own memory.
        defaults: Every option with its value for groups that do not name it.
        master_weights: Keep float32 copies of parameters of 16 bits, and update these: steps that are too small for
            the parameter's dtype then add up. A parameter that is changed from outside is copied again.

    Attributes:
        param_groups: A dict for each group, with "params" and all options, which may be changed between steps.

    Raises:
        ArgumentError: no parameters, one given twice, an unknown option, or a value out of range.
        DtypeError: something that is no Parameter, or one of an integer dtype.

    Example:
        >>> class Lion(Optimizer):
        ...     def slots(self, group):
        ...         return ("average",)
        ...     def update(self, group, step, param, grad, average):
        ...         xp = array_module(param)
        ...         param -= group["lr"] * xp.sign(0.9 * average + 0.1 * grad)
        ...         average += 0.01 * (grad - average)
    """

    step_limit = sys.maxsize  # the formula no longer changes after so many steps, so counts stop there
    takes_control = False  # whether update hands on self.control, self.clock and self.master, for kernels to use
    control: Array | None = None  # what decides whether the step counts
    clock: Array | None = None  # its number and rate on the device, in a captured step
    master: Array | None = None  # the float32 copy of what is updated

    def __init__(self, params: Params, defaults: dict[str, Any], *, master_weights: bool = False) -> None:
        self.name = type(self).__name__
        check_switch(self.name, master_weights=master_weights)
        self.master_weights = master_weights
        self.defaults = defaults
        self.param_groups: list[dict[str, Any]] = []
        self.parts: list[list[Part]] = []  # of each group
        self._state: dict[int, dict[str, Array]] = {}  # by id of the flat buffer, which its parts keep alive
        self.moved_by: weakref.ref[Any] | None = None  # the schedule that has stepped its rates
        self._attempts = Attempts()
        self._base = self._options_number = 0
        self._options: tuple[Any, ...] = ()
        self._add_groups(_as_groups(self.name, params))

    # ------------------------------------------------------------------------------------- for subclasses

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Names of the state arrays that a group with these options needs."""
        return ()

    def check(self, group: dict[str, Any]) -> None:
        """Raise ArgumentError where an option of a group is out of range; called in every step."""

    def update(self, group: dict[str, Any], step: int, param: Array, grad: Array, *state: Array) -> None:
        """Update flat arrays of one length in place: param and state, never grad.

        Args:
            group: The options.
            step: Number of this update, from 1.
            param, grad, *state: Float32 where the parameters are narrower than that, unless takes_control and a
                kernel updates them: then param and grad are as narrow as they are. Any length.
        """
        raise NotImplementedError(f"{self.name} has no update")

    # ------------------------------------------------------------------------------------------ for users

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient.

        Args:
            closure: Computes the loss and its gradients; called first.

        Returns:
            What closure returned, or None.

        Raises:
            ArgumentError: an option was changed to a value out of range.
            LayoutError: the data of a parameter was replaced.
            AutogradError: gradients that are not combined yet over the replicas of a graph.
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        self.step_unless_skipped({})
        return loss

    def step_unless_skipped(self, controls: Controls) -> None:
        """Update every parameter that has a gradient, unless its device says that the step does not count.

        Args:
            controls: By device what `backend.fused.optimizer.settle_step` filled; the same dict in every step. The
                host asks what it says on a CPU, and where update does not take it on to the kernels.

        Raises:
            ArgumentError, LayoutError: as `step`.
        """
        for group, parts in zip(self.param_groups, self.parts):
            self.check(group)
            for part in parts:
                for param in part.params[:: max(1, len(part.params) - 1)]:  # a wrapper's lie together: one tells
                    if param.listeners:
                        check_finished(f"{type(self).__name__}.step", param)
                part.buffer.check()
        on_device = controls if self.takes_control else {}
        if on_device and any(isinstance(control, np.ndarray) for control in on_device.values()):
            on_device = {}
        self._attempts.begin(all_parts(self), on_device, self.step_limit)
        captured = updates_in_capture(self, on_device)
        with range_of_step(self.name):
            for group, parts in zip(self.param_groups, self.parts):
                for part in parts:
                    control = controls.get(part.buffer.device) if controls else None
                    if control is None or on_device or not has_skipped(control):
                        self.control = control if on_device else None
                        self._step_part(group, part, captured)

    def looking(self) -> AbstractContextManager[Agree]:
        """Around a look at the gradients that its parts have, as for one that is not finite.

        Returns:
            What makes of a flag, uint32 (1,), that of all ranks which share the gradients; here it is that already.
        """
        return nullcontext(_as_it_is)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients. The first contribution of the next backward overwrites the old values.

        Args:
            set_to_none: False fills them with zeros instead, so that a step still decays and moves by momentum.
        """
        zero_gradients(f"{self.name}.zero_grad", self.params(), set_to_none)

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Train more parameters: a dict with "params" and the options in which the group differs.

        Raises:
            ArgumentError, DtypeError: as in the constructor.
        """
        self._add_groups([group])

    def params(self) -> list[Parameter]:
        """All parameters, in the order of the groups."""
        return [param for group in self.param_groups for param in group["params"]]

    @property
    def state(self) -> Mapping[Parameter, Mapping[str, Any]]:
        """What `state_dict` has under "state", by parameter: tensors can be changed in place, not replaced."""
        settled_parts(self)
        return state_by_parameter(self)

    def state_dict(self) -> dict[str, Any]:
        """Options and state as PyTorch has them: {"state": {index: {name: value}}, "param_groups": [...]}.

        Parameters are numbered in the order of the groups; those never updated have no entry. Arrays are tensors
        that share memory with the optimizer; `step` is an int. PyTorch loads it with
        `torch.from_dlpack(value).clone()` in the place of each tensor.
        """
        settled_parts(self)
        return optimizer_state(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned, here or in PyTorch, as it is; values are copied.

        The optimizer has to be made with options that need the same state, such as momentum or amsgrad.

        Raises:
            StateDictError: keys, counts, shapes, dtypes or values that do not fit; nothing was changed then.
        """
        settled_parts(self)
        load_optimizer_state(self, state_dict)
        self.settle(unshared_number())

    def mark(self) -> int:
        """See `nn.companions.Companion`: the options, and what was updated since the state was last known."""
        options = tuple([group[name] for group in self.param_groups for name in self.defaults])
        if options != self._options:
            self._options, self._options_number = options, number_of((self.name, self.master_weights, options))
        if not any(self._state.values()):
            return self._options_number
        updates = sorted([part.updates for parts in self.parts for part in parts])
        return hash((self._options_number, self._base, *updates))

    def settle(self, number: int) -> None:
        """See `nn.companions.Companion`."""
        self._base = number
        for part in all_parts(self):
            part.updates = 0

    def __repr__(self) -> str:
        lines = []
        for group in self.param_groups:
            options = ", ".join(f"{name}={group[name]!r}" for name in self.defaults)
            lines.append(f"  {len(group['params'])} parameters: {options}")
        return "\n".join([f"{self.name}(", *lines, ")"])

    # ---------------------------------------------------------------------------------------------- inside

    def _add_groups(self, groups: list[dict[str, Any]]) -> None:
        """Check all groups, then give their parameters one layout, then make their state."""
        seen = {id(param) for param in self.params()}
        complete = [_complete(self, group, seen) for group in groups]
        given = [param for group in complete for param in group["params"]]
        if any(isinstance(param, Parameter) for param in given):
            flatten(param for param in given if isinstance(param, Parameter))
        for group in complete:
            self.param_groups.append(group)
            self.parts.append(self._make_parts(group))
        attach(self, buffers_of(self))

    def _make_parts(self, group: dict[str, Any]) -> list[Part]:
        members: dict[int, tuple[AnyBuffer, list[Parameter]]] = {}
        for param in group["params"]:
            buffer = buffer_of(param)
            members.setdefault(id(buffer), (buffer, []))[1].append(param)
        found = []
        for buffer, params in members.values():
            has_masters = self.master_weights and buffer.dtype.itemsize < 4
            slots = self.slots(group) + ((MASTER,) if has_masters else ())
            found.append(Part(buffer, params, slots, self._state.setdefault(id(buffer), {})))
        return found

    def _step_part(self, group: dict[str, Any], part: Part, captured: CapturedUpdates | None) -> None:
        buffer, master = part.buffer, part.state.get(MASTER)
        state = state_arrays(self, group, part)
        with buffer.device.current() as xp:
            limit = sys.maxsize if self.control is not None else self.step_limit
            for step, params, runs in part.take_due(limit):
                self.clock = None if captured is None else captured.clock_of(group, part, step, params, runs, limit)
                arrays = [buffer.data, buffer.grad, *state]
                for start, stop in runs:
                    block = BLOCK if xp is np else max(1, stop - start)
                    for first in range(start, stop, block):
                        last = min(first + block, stop)
                        whole = last - first == buffer.count  # then no views are made
                        self.master = master if whole or master is None else master[first:last]
                        param, grad, *rest = arrays if whole else [array[first:last] for array in arrays]
                        self._update_block(group, step, param, grad, rest)

    def _update_block(self, group: dict[str, Any], step: int, param: Array, grad: Array, state: list[Array]) -> None:
        if param.dtype.itemsize >= 4 or (self.takes_control and kernels_for(param) is not None):
            self.update(group, step, param, grad, *state)
            return
        wide, master = param.astype(np.float32), self.master
        if master is not None:
            wide = array_module(param).where(master.astype(param.dtype) == param, master, wide)
        self.master = None  # update gets it as its parameter
        self.update(group, step, wide, grad.astype(np.float32), *state)
        param[...] = wide
        if master is not None:
            master[...] = wide


def state_arrays(optimizer: Optimizer, group: dict[str, Any], part: Part) -> list[Array]:
    """The state of a whole part that a step with these options needs.

    Raises:
        ArgumentError: it was not made at construction.
    """
    slots = optimizer.slots(group)
    if slots != part.slots and not set(slots) <= set(part.slots):
        raise ArgumentError(
            f"{optimizer.name}: expected options that need no more state than those at construction, "
            f"got options that need {', '.join(slots)}: make a new optimizer"
        )
    return [part.state[name] for name in slots]


def all_parts(optimizer: Optimizer) -> list[Part]:
    """All its parts, group by group."""
    return [part for parts in optimizer.parts for part in parts]


def _as_it_is(flag: Array | None) -> Array | None:
    return flag


def settled_parts(optimizer: Optimizer) -> list[Part]:
    """All its parts, group by group, with the counts of the steps that counted; waits for a GPU that decides these."""
    parts = all_parts(optimizer)
    optimizer._attempts.settle(parts, optimizer.step_limit)
    return parts


def buffers_of(optimizer: Optimizer) -> list[AnyBuffer]:
    """Where the parameters of an optimizer lie, each place once."""
    return list({id(part.buffer): part.buffer for part in all_parts(optimizer)}.values())


def numbers_like(like: Array, *values: float) -> list[Any]:
    """Numbers in the cheapest form for arithmetic with an array.

    NumPy takes about 0.5 µs to convert a Python number, so it gets arrays of no axes; CuPy passes Python numbers as
    arguments of the kernel, with nothing to copy to the device.
    """
    if array_module(like) is np:
        return [np.array(value, like.dtype) for value in values]
    return list(values)


def descent_gradient(param: Array, grad: Array, weight_decay: float, maximize: bool, out: Array) -> Array:
    """±grad + weight_decay · param, written to out; grad itself where there is nothing to do."""
    xp = array_module(param)
    if weight_decay:
        (decay,) = numbers_like(param, weight_decay)
        xp.multiply(param, decay, out=out)
        return (xp.subtract if maximize else xp.add)(out, grad, out=out)
    return xp.negative(grad, out=out) if maximize else grad


def average_squares(average: Array, x: Array, kept: Any, new: Any, scratch: Array) -> None:
    """average = kept · average + new · x², in place; scratch is overwritten."""
    array_module(x).multiply(x, x, out=scratch)
    scratch *= new
    average *= kept
    average += scratch


def _as_groups(who: str, params: Any) -> list[dict[str, Any]]:
    """The groups that a constructor was given; parameters alone are one group."""
    given = _as_list(who, params)
    return given if isinstance(given[0], dict) else [{"params": given}]


def _complete(optimizer: Optimizer, group: dict[str, Any], seen: set[int]) -> dict[str, Any]:
    """A group with all its options, checked; its parameters are added to those seen."""
    who = optimizer.name
    if not isinstance(group, dict) or "params" not in group:
        raise ArgumentError(f'{who}: expected a group to be a dict with "params", got {group!r}')
    known = {"params", INITIAL_LR, *optimizer.defaults}
    unknown = sorted(str(key) for key in group if key not in known)
    if unknown:
        raise ArgumentError(f"{who}: expected options {', '.join(optimizer.defaults)}, got {', '.join(unknown)}")
    params = [group["params"]] if isinstance(group["params"], Tensor) else _as_list(who, group["params"])
    for param in params:
        _check_parameter(who, param)
        if id(param) in seen:
            raise ArgumentError(f"{who}: expected each parameter once, got {_describe(param)} twice")
        seen.add(id(param))
    complete = {**optimizer.defaults, **group, "params": params}
    optimizer.check(complete)
    if INITIAL_LR in complete:
        as_amount(who, INITIAL_LR, complete[INITIAL_LR])
    return complete


def _as_list(who: str, params: Any) -> list[Any]:
    if isinstance(params, (Tensor, dict, set, frozenset, str)) or not isinstance(params, Iterable):
        hint = ": a set has no order" if isinstance(params, (set, frozenset)) else ": put it into a list"
        raise ArgumentError(f"{who}: expected an iterable of Parameters or groups, got {type(params).__name__}{hint}")
    return at_least_one(who, params)


def _check_parameter(who: str, param: Any) -> None:
    if not isinstance(param, Tensor) or not param.is_leaf:
        hint = "train what it was made of" if isinstance(param, Tensor) else "use the values of named_parameters()"
        raise DtypeError(f"{who}: expected Parameters or leaf tensors, got {_describe(param)}: {hint}")
    if not is_float(param.dtype):
        raise DtypeError(f"{who}: expected Parameters of a float dtype, got {_describe(param)}")


def _describe(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    kind = type(value).__name__ if value.is_leaf else "the output of an operation"
    name = f" {value.name}" if isinstance(value, Parameter) and value.name else ""
    return f"{kind}{name} of {value.dtype.name} {value.shape}"
