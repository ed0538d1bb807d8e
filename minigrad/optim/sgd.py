"""Stochastic gradient descent with momentum."""

from __future__ import annotations

from typing import Any

from minigrad.arguments import as_amount, as_real, check_switch
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.optimizer import sgd_
from minigrad.backend.kernels import kernels_for
from minigrad.errors import ArgumentError
from minigrad.optim.optimizer import Optimizer, Params, descent_gradient, numbers_like

__all__ = ["SGD", "sgd_update"]


def sgd_update(
    param: Array,
    grad: Array,
    momentum_buffer: Array | None = None,
    *,
    step: int,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    maximize: bool = False,
) -> None:
    """One step on flat arrays of one length, in place; grad is only read.

    d = ±grad + weight_decay·param; buffer = momentum·buffer + (1 - dampening)·d, just d in the first step;
    param -= lr·buffer, with Nesterov lr·(d + momentum·buffer), without momentum lr·d.
    Source: Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013,
    in PyTorch's form, where the learning rate is not part of the buffer.
    """
    xp = array_module(param)
    rate, decay, fresh = numbers_like(param, lr, momentum, 1 - dampening)
    change = xp.empty_like(param)
    direction = descent_gradient(param, grad, weight_decay, maximize, out=change)
    if momentum_buffer is not None:
        if step == 1:
            momentum_buffer[...] = direction
        else:
            momentum_buffer *= decay
            momentum_buffer += direction * fresh if dampening else direction
        direction = direction + momentum_buffer * decay if nesterov else momentum_buffer
    xp.multiply(direction, rate, out=change)
    param -= change


class SGD(Optimizer):
    """Stochastic gradient descent; the formula is in `sgd_update`.

    Args:
        params: Parameters, or groups: dicts with "params" and the options in which a group differs.
        lr: Learning rate, >= 0.
        momentum: >= 0; a group keeps its buffer only where this is not 0 at construction.
        dampening: Fraction of the gradient that does not enter the buffer; any number.
        weight_decay: L2 penalty, added to the gradient, >= 0.
        nesterov: Look ahead; needs momentum and no dampening.
        maximize: Go up instead of down.
        master_weights: Keep float32 copies of parameters of 16 bits; see `Optimizer`.

    Raises:
        ArgumentError: a value out of range, no parameters, or one given twice.
        DtypeError: something that is no Parameter of a float dtype.

    Example:
        >>> weight = nn.Parameter(np.ones(2))
        >>> optimizer = SGD([weight], lr=0.5)
        >>> (weight * 2.0).matmul(weight).backward()
        >>> optimizer.step()
        >>> weight.tolist()
        [-1.0, -1.0]
    """

    step_limit = 2  # only the first step differs
    takes_control = True

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        master_weights: bool = False,
    ) -> None:
        options = dict(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay)
        defaults = {**options, "nesterov": nesterov, "maximize": maximize}
        super().__init__(params, defaults, master_weights=master_weights)

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        """A momentum buffer, where there is momentum."""
        return ("momentum_buffer",) if group["momentum"] else ()

    def check(self, group: dict[str, Any]) -> None:
        """Raise ArgumentError where an option is out of range."""
        for name in ("lr", "momentum", "weight_decay"):
            group[name] = as_amount(self.name, name, group[name])
        group["dampening"] = as_real(self.name, "dampening", group["dampening"], finite=True)
        check_switch(self.name, nesterov=group["nesterov"], maximize=group["maximize"])
        if group["nesterov"] and (not group["momentum"] or group["dampening"]):
            raise ArgumentError(
                f"{self.name}: expected momentum > 0 and dampening 0 with nesterov, "
                f"got momentum {group['momentum']!r} and dampening {group['dampening']!r}"
            )

    def update(self, group: dict[str, Any], step: int, param: Array, grad: Array, *state: Array) -> None:
        """See `sgd_update`."""
        options = {name: group[name] for name in self.defaults}
        if kernels_for(param) is None:
            sgd_update(param, grad, *state, step=step, **options)
        else:
            sgd_(param, grad, *state, step=step, master=self.master, control=self.control, clock=self.clock, **options)
