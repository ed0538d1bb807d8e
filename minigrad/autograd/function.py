"""Operations of one's own: a forward and a backward as PyTorch users write them, on the tape as one node.

An operation of ours is a function around `tensor.record`, on arrays; `Function` is that for users, with a context that
carries what forward leaves for backward. Both run with recording off on tensors, each a thin cover around `.data`, the
array of NumPy or CuPy; what they return may be tensors or such arrays. A function of several outputs has a node for
each, all of which hand their gradient to one node in front of them, so that backward is called once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from minigrad.absent import absent
from minigrad.arguments import check_switch, kind_of
from minigrad.autograd.tape import Node, lend
from minigrad.backend.device import Device, array_module
from minigrad.backend.dtypes import Array, is_float
from minigrad.backend.memory import duplicate
from minigrad.errors import AutogradError, CallError, DeviceError, DtypeError, ShapeError
from minigrad.recording import is_grad_enabled, no_grad
from minigrad.stamp import is_view, next_number, shared_stamp
from minigrad.tensor import Tensor, record, tensors_in

__all__ = ["Function", "FunctionCtx", "once_differentiable"]

_Backward = TypeVar("_Backward", bound=Callable[..., Any])


class _Like(NamedTuple):
    """What a gradient of a tensor has to be like."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: Device

    @classmethod
    def of(cls, x: Any) -> _Like | None:
        """Of a tensor; None of what is none."""
        return cls(x.shape, x.dtype, x.device) if isinstance(x, Tensor) else None

    def zeros(self) -> Tensor:
        """A gradient of zeros."""
        with self.device.current() as xp:
            return Tensor(xp.zeros(self.shape, self.dtype))


class FunctionCtx:
    """What the forward of a `Function` leaves for its backward: what it saves, and any attribute that is set.

    Attributes:
        needs_input_grad: For each argument of forward whether backward has to give its gradient.
    """

    needs_input_grad: tuple[bool, ...]

    def __init__(self, who: str, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self._who, self._materializes = who, True
        self._saved: tuple[Any, ...] | None = ()  # from forward to the tape, and again while backward runs
        self._constant: tuple[Any, ...] = ()
        self._inputs: list[_Like | None] = []
        self._outputs: list[_Like | None] = []

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep inputs, outputs or other tensors for backward, where `saved_tensors` has them; once for each forward.

        A change in place of one of them in between is an error in backward.

        Raises:
            DtypeError: one is neither a tensor nor None: set an attribute of ctx instead.
        """
        for x in tensors:
            if x is not None and not isinstance(x, Tensor):
                raise DtypeError(
                    f"{self._who}: expected tensors for save_for_backward, got {kind_of(x)}: write ctx.name = value"
                )
        self._saved = tensors

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What `save_for_backward` was given; AutogradError where no backward is running."""
        if self._saved is None:
            raise AutogradError(f"{self._who}: expected saved_tensors to be read inside backward, got a read elsewhere")
        return self._saved

    def mark_non_differentiable(self, *outputs: Any) -> None:
        """Let outputs of floats have no gradient, as those of integers never have; backward gets zeros for them."""
        self._constant = outputs

    def mark_dirty(self, *inputs: Tensor) -> None:
        """Say which inputs forward changes in place: none that requires grad.

        Raises:
            AutogradError: one does, and recording is on.
        """
        self._refuse_changed([x for x in inputs if isinstance(x, Tensor) and x.requires_grad])

    def set_materialize_grads(self, value: bool) -> None:
        """Whether backward gets zeros for an output that was not used, rather than None; it does by default."""
        check_switch("set_materialize_grads", value=value)
        self._materializes = value

    def _refuse_changed(self, inputs: list[Tensor]) -> None:
        if inputs and any(self.needs_input_grad):
            raise AutogradError(
                f"{self._who}.forward: expected inputs that require grad to stay as they are, got one of shape "
                f"{inputs[0].shape} changed in place: change a clone(), and return that"
            )

    def _gradients(self, found: dict[int, Array]) -> list[Tensor | None]:
        """What backward gets: a gradient for each output, under which nobody may write."""
        given: list[Tensor | None] = []
        for i, like in enumerate(self._outputs):
            if i in found:
                given.append(Tensor(_lent(found[i])))
            else:
                given.append(like.zeros() if like is not None and self._materializes else None)
        return given


class Function:
    """An operation of one's own: a subclass with a static `forward` and `backward`, called by `apply`.

    forward(ctx, *args) gets the arguments of apply and returns a tensor or a tuple. backward(ctx, *grads) gets a
    gradient for each output and returns one for each argument of forward, None for what is no tensor or needs none;
    `ctx.needs_input_grad` says which do. Instead of a forward with ctx there may be forward(*args) and
    setup_context(ctx, inputs, output). Both run with recording off, on tensors whose `.data` is the array of NumPy or
    CuPy; arrays may be returned too. `minigrad.testing.gradcheck(Exp.apply, [array])` checks it.

    On the tape it is one operation: a parameter that is given twice, or used elsewhere too, is complete once.

    Raises:
        AutogradError: by apply: no forward, a tensor that requires grad inside a list or a mapping, or an input that
            requires grad was changed in place. In backward: no backward, another number of gradients than arguments, a
            gradient for what is no tensor, or a gradient that was changed in place.
        DtypeError, ShapeError, DeviceError: no tensor was returned; a gradient is not like its input.

    Example:
        >>> import minigrad
        >>> class Exp(minigrad.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         y = x.exp()
        ...         ctx.save_for_backward(y)
        ...         return y
        ...     @staticmethod
        ...     def backward(ctx, grad):
        ...         (y,) = ctx.saved_tensors
        ...         return grad * y
        >>> x = minigrad.tensor([0.0, 0.0], requires_grad=True)
        >>> Exp.apply(x).sum().backward()
        >>> x.grad.tolist()
        [1.0, 1.0]
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        name = type(self).__name__
        raise AutogradError(f"{name}: expected a call of {name}.apply(...), got one of {name}(...)")

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the outputs; of a subclass."""
        raise AutogradError("Function: expected a static forward(ctx, *args), got a class without one")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        """Save what backward needs, where forward takes no ctx; of a subclass."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Compute the gradients of the inputs; of a subclass."""
        raise AutogradError(f"{ctx._who}: expected a static backward(ctx, *grads), got a class without one")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Call forward, and record it where an argument requires grad."""
        splits = cls.setup_context is not Function.setup_context
        if kwargs or splits:
            args = _bound(cls, args, kwargs, splits)
        needs = tuple([isinstance(x, Tensor) and x.requires_grad for x in args])
        wanted = is_grad_enabled() and any(needs)
        context, began = FunctionCtx(cls.__name__, needs if is_grad_enabled() else (False,) * len(args)), next_number()
        with no_grad():
            if splits:
                result = cls.forward(*args)
                cls.setup_context(context, args, result)
            else:
                result = cls.forward(context, *args)
        if is_grad_enabled():
            _refuse_hidden(cls.__name__, args)
        if wanted:
            changed = [x for x in args if isinstance(x, Tensor) and x.stamp is not None and x.stamp.changed > began]
            context._refuse_changed([x for x in changed if x.requires_grad])
        outputs = list(result) if isinstance(result, tuple) else [result]
        if not isinstance(result, tuple) and not _is_output(result):
            raise DtypeError(f"{cls.__name__}.forward: expected a tensor or a tuple of them, got {kind_of(result)}")
        _record(cls, context, args, outputs, wanted)
        return tuple(outputs) if isinstance(result, tuple) else outputs[0]


def once_differentiable(backward: _Backward) -> _Backward:
    """Mark a backward that can't be differentiated itself: as all are here."""
    return backward


# ------------------------------------------------------------------------------------------------------- forward


def _bound(cls: type[Function], args: tuple[Any, ...], kwargs: dict[str, Any], splits: bool) -> tuple[Any, ...]:
    """The arguments of forward in its order, those that have a default among them."""
    signature = inspect.signature(cls.forward)
    try:
        bound = signature.bind(*args, **kwargs) if splits else signature.bind(None, *args, **kwargs)
    except TypeError as error:
        raise CallError(f"{cls.__name__}.apply: expected what forward{signature} takes, got: {error}") from None
    bound.apply_defaults()
    if bound.kwargs:
        raise CallError(f"{cls.__name__}.apply: expected arguments by position, got {', '.join(bound.kwargs)}")
    return bound.args if splits else bound.args[1:]


def _refuse_hidden(who: str, args: tuple[Any, ...]) -> None:
    """Refuse a tensor that would get no gradient since it is no argument of its own."""
    for i, value in enumerate(args):
        if isinstance(value, (list, tuple, dict)) and any(x.requires_grad for x in tensors_in(value)):
            raise AutogradError(
                f"{who}.apply: expected each tensor that requires grad as an argument, got one inside argument {i}, a "
                f"{type(value).__name__}: give them one by one, as apply(*tensors)"
            )


def _is_output(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray, np.generic)) or type(value).__module__.split(".")[0] == "cupy"


def _record(
    cls: type[Function], context: FunctionCtx, args: tuple[Any, ...], outputs: list[Any], wanted: bool
) -> None:
    """Put a call on the tape, and its outputs, as tensors, in the place of what forward returned."""
    constant = {id(output) for output in context._constant}
    inputs = tuple([x for x in args if isinstance(x, Tensor)])
    given = {id(x) for x in inputs}
    differentiable = []
    for i, output in enumerate(outputs):
        if _is_output(output):
            x = output if isinstance(output, Tensor) else _covered(output, inputs)
            if wanted and is_float(x.dtype) and id(output) not in constant:
                differentiable.append(i)
            elif id(x) in given:
                x = x.detach()
            outputs[i] = x
    context._inputs, context._outputs = [_Like.of(x) for x in args], [_Like.of(x) for x in outputs]
    saved, context._saved, context._constant = context._saved or (), None, ()
    if len(differentiable) == 1:
        i = differentiable[0]
        outputs[i] = _on_tape(outputs[i], _Call(cls, i), inputs, (context, *saved), id(outputs[i]) in given)
    elif differentiable:
        first = outputs[differentiable[0]]
        joint = record(first.data, _Call(cls, -1), inputs, (context, *saved))
        for i in differentiable:
            outputs[i] = _on_tape(outputs[i], _hand_over, (joint,), (i,), id(outputs[i]) in given)


def _covered(array: Array, inputs: tuple[Tensor, ...]) -> Tensor:
    """An array that forward returned, as a tensor; one on the memory of an input as a view of that."""
    out = Tensor(array)
    for x in inputs:
        if array_module(x.data) is array_module(out.data) and array_module(x.data).may_share_memory(out.data, x.data):
            out.stamp = shared_stamp(x)
            out.stamp.viewed, out.taken = True, out.stamp.recorded
            break
    return out


def _on_tape(x: Tensor, backward: Any, inputs: tuple[Tensor, ...], saved: tuple[Any, ...], is_input: bool) -> Tensor:
    """A tensor that forward returned, as the output of a node; it has the memory and the stamp, and no cycle."""
    out = record(x.data, backward, inputs, saved, view_of=x if is_input or is_view(x) else None)
    if out.stamp is None:
        out.stamp = shared_stamp(x)
        out.stamp.viewed = True
    return out


# ------------------------------------------------------------------------------------------------------ backward


def _hand_over(node: Node, grad: Array) -> None:
    """The backward of one output among several: its gradient waits in the joint node, which comes after them all."""
    joint: Any = node.inputs[0]
    if joint.grad_array is None:
        joint.grad_array, joint.grad_owned = grad, {}
    joint.grad_owned[node.saved[0]] = grad


class _Call:
    """The backward function of the node of a call."""

    __slots__ = ("_function", "_output", "__name__")

    def __init__(self, function: type[Function], output: int) -> None:
        self._function, self._output, self.__name__ = function, output, function.__name__

    def __call__(self, node: Node, grad: Array) -> None:
        context: FunctionCtx = node.saved[0]
        found: Any = {self._output: grad} if self._output >= 0 else node.grad_owned
        node.grad_owned = False
        grads = context._gradients(found)
        context._saved = node.saved[1:]
        try:
            with no_grad():
                result = self._function.backward(context, *grads)
        finally:
            context._saved = None
        if any(x is not None and x.stamp is not None and x.stamp.changed for x in grads):
            raise AutogradError(
                f"{self.__name__}.backward: expected the gradient that it was lent to stay as it is, got one changed "
                "in place: change a clone()"
            )
        _pass_on(self.__name__, node, context._inputs, result if isinstance(result, tuple) else (result,))


def _lent(grad: Array) -> Array:
    """A gradient that others may hold too, as an array to read; CuPy has no such arrays, and 1 is kept for many losses.
    """
    if grad.__class__ is np.ndarray:
        grad = grad.view()
        grad.flags.writeable = False
    elif grad.size == 1:
        grad = duplicate(grad)
    return grad


def _pass_on(who: str, node: Node, inputs: list[_Like | None], grads: tuple[Any, ...]) -> None:
    """Give each edge its gradient."""
    count = len(inputs)
    if len(grads) < count or any(grad is not None for grad in grads[count:]):
        raise AutogradError(
            f"{who}.backward: expected {count} gradients, one for each argument of forward, got {len(grads)}: "
            "return None for those that need none"
        )
    edges = iter(node.inputs)
    for i, (like, grad) in enumerate(zip(inputs, grads)):
        if like is None:
            if grad is not None:
                raise AutogradError(
                    f"{who}.backward: expected None for argument {i}, which is no tensor, got {kind_of(grad)}"
                )
            continue
        edge = next(edges)
        if edge is not None and grad is not None:
            array = _fitting(f"{who}.backward", i, like, grad)
            with like.device.current():  # of the node it is that of a gradient of an output
                lend(edge, array)


def _fitting(who: str, i: int, like: _Like, grad: Any) -> Array:
    """The array of a gradient that is like its input."""
    if not _is_output(grad):
        raise DtypeError(f"{who}: expected a gradient that is a tensor for argument {i}, got {kind_of(grad)}")
    x = grad if isinstance(grad, Tensor) else Tensor(grad)
    if x.shape != like.shape:
        raise ShapeError(
            f"{who}: expected a gradient of shape {like.shape} for argument {i}, got {x.shape}: sum it over the axes "
            "that broadcast"
        )
    if x.dtype != like.dtype:
        raise DtypeError(f"{who}: expected a gradient of {like.dtype.name} for argument {i}, got {x.dtype.name}")
    if x.device != like.device:
        raise DeviceError(f"{who}: expected a gradient on {like.device} for argument {i}, got one on {x.device}")
    return x.data


def __getattr__(name: str) -> Any:
    raise absent(__name__, name)
