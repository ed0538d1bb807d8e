"""Adagrad, and Adadelta, which replaces its sum by an average and its learning rate by that of the changes."""

from __future__ import annotations

from typing import Any

from minigrad.arguments import as_amount, as_real, check_switch
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.optim.optimizer import Optimizer, Params, average_squares, descent_gradient, numbers_like

__all__ = ["Adadelta", "Adagrad", "adadelta_update", "adagrad_update"]


def adagrad_update(
    param: Array,
    grad: Array,
    sum: Array,
    *,
    step: int,
    lr: float = 1e-2,
    lr_decay: float = 0.0,
    weight_decay: float = 0.0,
    initial_accumulator_value: float = 0.0,
    eps: float = 1e-10,
    maximize: bool = False,
) -> None:
    """One step on flat arrays of one length, in place; grad is only read.

    d = ±grad + weight_decay·param; sum += d², from initial_accumulator_value in the first step;
    param -= lr / (1 + (step - 1)·lr_decay) · d / (√sum + eps).
    Source: Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic optimization",
    JMLR 2011, figure 1 with diagonal matrices.
    """
    xp = array_module(param)
    rate, floor = numbers_like(param, lr / (1 + (step - 1) * lr_decay), eps)
    scratch = xp.empty_like(param)
    if weight_decay or maximize:
        grad = descent_gradient(param, grad, weight_decay, maximize, out=xp.empty_like(param))
    if step == 1:
        sum[...] = initial_accumulator_value
    xp.multiply(grad, grad, out=scratch)
    sum += scratch
    xp.sqrt(sum, out=scratch)
    scratch += floor
    xp.divide(grad, scratch, out=scratch)
    scratch *= rate
    param -= scratch


class Adagrad(Optimizer):
    """Adagrad; the formula is in `adagrad_update`.

    Args:
        params: Parameters, or groups: dicts with "params" and the options in which a group differs.
        lr: Learning rate, >= 0.
        lr_decay: By how much of itself, >= 0, the divisor of the learning rate grows in each step.
        weight_decay: L2 penalty, added to the gradient, >= 0.
        initial_accumulator_value: What the sum of squares starts from, >= 0.
        eps: Keeps the division finite, > 0.
        maximize: Go up instead of down.
        master_weights: Keep float32 copies of parameters of 16 bits; see `Optimizer`.

    Raises:
        ArgumentError: a value out of range, no parameters, or one given twice.
        DtypeError: something that is no Parameter of a float dtype.

    Example:
        >>> weight = nn.Parameter(np.ones(2))
        >>> optimizer = Adagrad([weight], lr=0.5)
        >>> (weight * 2.0).matmul(weight).backward()
        >>> optimizer.step()
        >>> [round(value, 6) for value in weight.tolist()]
        [0.5, 0.5]
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        master_weights: bool = False,
    ) -> None:
        options = dict(lr=lr, lr_decay=lr_decay, eps=eps, weight_decay=weight_decay, maximize=maximize)
        defaults = {**options, "initial_accumulator_value": initial_accumulator_value}
        super().__init__(params, defaults, master_weights=master_weights)

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The sum of squares."""
        return ("sum",)

    def check(self, group: dict[str, Any]) -> None:
        """Raise ArgumentError where an option is out of range; NumPy's numbers become Python's."""
        for name in ("lr", "lr_decay", "weight_decay", "initial_accumulator_value"):
            group[name] = as_amount(self.name, name, group[name])
        group["eps"] = as_real(self.name, "eps", group["eps"], above=0.0, finite=True)
        check_switch(self.name, maximize=group["maximize"])

    def update(self, group: dict[str, Any], step: int, param: Array, grad: Array, *state: Array) -> None:
        """See `adagrad_update`."""
        adagrad_update(param, grad, *state, step=step, **{name: group[name] for name in self.defaults})


def adadelta_update(
    param: Array,
    grad: Array,
    square_avg: Array,
    acc_delta: Array,
    *,
    lr: float = 1.0,
    rho: float = 0.9,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> None:
    """One step on flat arrays of one length, in place; grad is only read.

    d = ±grad + weight_decay·param; v = ρv + (1 - ρ)d²; change = √(a + eps) / √(v + eps) · d;
    a = ρa + (1 - ρ)change²; param -= lr·change.
    Source: Zeiler, "ADADELTA: An adaptive learning rate method", 2012, algorithm 1.
    """
    xp = array_module(param)
    kept, new, rate, floor = numbers_like(param, rho, 1 - rho, lr, eps)
    change, scratch = xp.empty_like(param), xp.empty_like(param)
    if weight_decay or maximize:
        grad = descent_gradient(param, grad, weight_decay, maximize, out=xp.empty_like(param))
    average_squares(square_avg, grad, kept, new, scratch)
    xp.add(square_avg, floor, out=scratch)
    xp.sqrt(scratch, out=scratch)
    xp.add(acc_delta, floor, out=change)
    xp.sqrt(change, out=change)
    change /= scratch
    change *= grad
    average_squares(acc_delta, change, kept, new, scratch)
    change *= rate
    param -= change


class Adadelta(Optimizer):
    """Adadelta; the formula is in `adadelta_update`.

    Args:
        params: Parameters, or groups: dicts with "params" and the options in which a group differs.
        lr: What each change is multiplied by, >= 0.
        rho: Decay of the averages of the squares of gradients and of changes, in [0, 1].
        eps: Keeps the division finite, and lets the first change be more than 0; > 0.
        weight_decay: L2 penalty, added to the gradient, >= 0.
        maximize: Go up instead of down.
        master_weights: Keep float32 copies of parameters of 16 bits; see `Optimizer`.

    Raises:
        ArgumentError: a value out of range, no parameters, or one given twice.
        DtypeError: something that is no Parameter of a float dtype.

    Example:
        >>> weight = nn.Parameter(np.ones(2))
        >>> optimizer = Adadelta([weight], rho=0.0, eps=1e-2)
        >>> (weight * 2.0).matmul(weight).backward()
        >>> optimizer.step()
        >>> [round(value, 3) for value in weight.tolist()]
        [0.9, 0.9]
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        master_weights: bool = False,
    ) -> None:
        defaults = dict(lr=lr, rho=rho, eps=eps, weight_decay=weight_decay, maximize=maximize)
        super().__init__(params, defaults, master_weights=master_weights)

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The averages of the squares of gradients and of changes."""
        return "square_avg", "acc_delta"

    def check(self, group: dict[str, Any]) -> None:
        """Raise ArgumentError where an option is out of range; NumPy's numbers become Python's."""
        for name in ("lr", "weight_decay"):
            group[name] = as_amount(self.name, name, group[name])
        group["rho"] = as_real(self.name, "rho", group["rho"], 0.0, 1.0)
        group["eps"] = as_real(self.name, "eps", group["eps"], above=0.0, finite=True)
        check_switch(self.name, maximize=group["maximize"])

    def update(self, group: dict[str, Any], step: int, param: Array, grad: Array, *state: Array) -> None:
        """See `adadelta_update`."""
        adadelta_update(param, grad, *state, **{name: group[name] for name in self.defaults})
