"""RMSprop: the gradient over the root of its average square."""

from __future__ import annotations

from typing import Any

from minigrad.arguments import as_amount, as_real, check_switch
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.optim.optimizer import Optimizer, Params, average_squares, descent_gradient, numbers_like

__all__ = ["RMSprop", "rmsprop_update"]


def rmsprop_update(
    param: Array,
    grad: Array,
    square_avg: Array,
    momentum_buffer: Array | None = None,
    grad_avg: Array | None = None,
    *,
    lr: float = 1e-2,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    maximize: bool = False,
) -> None:
    """One step on flat arrays of one length, in place; grad is only read.

    d = ±grad + weight_decay·param; v = αv + (1 - α)d²; centered m = αm + (1 - α)d and w = v - m², else w = v;
    change = d / (√w + eps), with momentum buffer = momentum·buffer + change in its place; param -= lr·change.
    Source: Tieleman and Hinton, "Lecture 6.5: rmsprop", COURSERA 2012; centered: Graves, "Generating sequences with
    recurrent neural networks", 2013, equations 38 to 45. In PyTorch's form, with eps outside of the root.
    """
    xp = array_module(param)
    kept, new, decay, rate, floor = numbers_like(param, alpha, 1 - alpha, momentum, lr, eps)
    scratch = xp.empty_like(param)
    if weight_decay or maximize:
        grad = descent_gradient(param, grad, weight_decay, maximize, out=xp.empty_like(param))
    average_squares(square_avg, grad, kept, new, scratch)
    if grad_avg is None:
        xp.sqrt(square_avg, out=scratch)
    else:
        xp.subtract(grad, grad_avg, out=scratch)
        scratch *= new
        grad_avg += scratch
        xp.multiply(grad_avg, grad_avg, out=scratch)
        xp.subtract(square_avg, scratch, out=scratch)
        xp.sqrt(scratch, out=scratch)
    scratch += floor
    xp.divide(grad, scratch, out=scratch)
    if momentum_buffer is not None:
        momentum_buffer *= decay
        momentum_buffer += scratch
        scratch[...] = momentum_buffer
    scratch *= rate
    param -= scratch


class RMSprop(Optimizer):
    """RMSprop; the formula is in `rmsprop_update`.

    Args:
        params: Parameters, or groups: dicts with "params" and the options in which a group differs.
        lr: Learning rate, >= 0.
        alpha: Decay of the average of squares, in [0, 1].
        eps: Keeps the division finite, > 0.
        weight_decay: L2 penalty, added to the gradient, >= 0.
        momentum: >= 0; a group keeps its buffer only where this is not 0 at construction.
        centered: Divide by the root of an estimate of the variance instead of the square. Where a gradient never
            changes that is 0, and may round to less, whose root is NaN.
        maximize: Go up instead of down.
        master_weights: Keep float32 copies of parameters of 16 bits; see `Optimizer`.

    Raises:
        ArgumentError: a value out of range, no parameters, or one given twice.
        DtypeError: something that is no Parameter of a float dtype.

    Example:
        >>> weight = nn.Parameter(np.ones(2))
        >>> optimizer = RMSprop([weight], lr=0.05)
        >>> (weight * 2.0).matmul(weight).backward()
        >>> optimizer.step()
        >>> [round(value, 6) for value in weight.tolist()]
        [0.5, 0.5]
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
        master_weights: bool = False,
    ) -> None:
        options = dict(lr=lr, momentum=momentum, alpha=alpha, eps=eps, centered=centered, weight_decay=weight_decay)
        super().__init__(params, {**options, "maximize": maximize}, master_weights=master_weights)

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The average of squares, a buffer where there is momentum, the average of gradients where centered."""
        momentum = ("momentum_buffer",) if group["momentum"] else ()
        return ("square_avg", *momentum, *(("grad_avg",) if group["centered"] else ()))

    def check(self, group: dict[str, Any]) -> None:
        """Raise ArgumentError where an option is out of range; NumPy's numbers become Python's."""
        for name in ("lr", "momentum", "weight_decay"):
            group[name] = as_amount(self.name, name, group[name])
        group["alpha"] = as_real(self.name, "alpha", group["alpha"], 0.0, 1.0)
        group["eps"] = as_real(self.name, "eps", group["eps"], above=0.0, finite=True)
        check_switch(self.name, centered=group["centered"], maximize=group["maximize"])

    def update(self, group: dict[str, Any], step: int, param: Array, grad: Array, *state: Array) -> None:
        """See `rmsprop_update`."""
        arrays = dict(zip(self.slots(group), state))
        options = {name: group[name] for name in self.defaults if name != "centered"}  # said by grad_avg
        rmsprop_update(param, grad, **arrays, **options)
