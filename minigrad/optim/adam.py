"""Adam, and AdamW with decoupled weight decay."""

from __future__ import annotations

import math
from typing import Any

from minigrad.arguments import as_amount, as_real, check_switch
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.optimizer import adam_
from minigrad.backend.kernels import kernels_for
from minigrad.errors import ArgumentError
from minigrad.optim.optimizer import Optimizer, Params, descent_gradient, numbers_like

__all__ = ["Adam", "AdamW", "adam_update"]


def adam_update(
    param: Array,
    grad: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    max_exp_avg_sq: Array | None = None,
    *,
    step: int,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    maximize: bool = False,
    decoupled_weight_decay: bool = False,
) -> None:
    """One step on flat arrays of one length, in place; grad is only read.

    d = ±grad + weight_decay·param (not where decoupled: there param *= 1 - lr·weight_decay comes first);
    m = β₁m + (1 - β₁)d; v = β₂v + (1 - β₂)d²; param -= lr · m̂ / (√v̂ + eps), m̂ = m / (1 - β₁ᵗ), v̂ = v / (1 - β₂ᵗ).
    AMSGrad divides by the root of the largest v so far, max_exp_avg_sq, in the place of v.
    Both corrections are folded into the learning rate and eps: two passes less over the arrays.
    Source: Kingma and Ba, "Adam: A method for stochastic optimization", ICLR 2015, end of section 2;
    Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019; Reddi, Kale and Kumar, "On the
    convergence of Adam and beyond", ICLR 2018.
    """
    xp = array_module(param)
    beta1, beta2 = betas
    root = math.sqrt(1 - beta2**step)
    kept, new, new_sq = numbers_like(param, beta2, 1 - beta1, 1 - beta2)
    rate, floor = numbers_like(param, lr * root / (1 - beta1**step), eps * root)
    if weight_decay and decoupled_weight_decay:
        param *= numbers_like(param, 1 - lr * weight_decay)[0]
        weight_decay = 0.0
    scratch = xp.empty_like(param)
    if weight_decay or maximize:
        grad = descent_gradient(param, grad, weight_decay, maximize, out=xp.empty_like(param))
    xp.subtract(grad, exp_avg, out=scratch)
    xp.multiply(scratch, new, out=scratch)
    exp_avg += scratch
    xp.multiply(grad, grad, out=scratch)
    xp.multiply(scratch, new_sq, out=scratch)
    exp_avg_sq *= kept
    exp_avg_sq += scratch
    if max_exp_avg_sq is not None:
        xp.maximum(max_exp_avg_sq, exp_avg_sq, out=max_exp_avg_sq)
    xp.sqrt(exp_avg_sq if max_exp_avg_sq is None else max_exp_avg_sq, out=scratch)
    scratch += floor
    xp.divide(exp_avg, scratch, out=scratch)
    scratch *= rate
    param -= scratch


class Adam(Optimizer):
    """Adam; the formula is in `adam_update`.

    Args:
        params: Parameters, or groups: dicts with "params" and the options in which a group differs.
        lr: Learning rate, >= 0.
        betas: Decay of the averages of the gradient and of its square, each in [0, 1).
        eps: Keeps the division finite, > 0.
        weight_decay: >= 0; an L2 penalty, added to the gradient, unless it is decoupled.
        amsgrad: Divide by the root of the largest average of squares so far.
        maximize: Go up instead of down.
        decoupled_weight_decay: Shrink the parameters by lr·weight_decay instead, as AdamW does.
        master_weights: Keep float32 copies of parameters of 16 bits; see `Optimizer`.

    Raises:
        ArgumentError: a value out of range, no parameters, or one given twice.
        DtypeError: something that is no Parameter of a float dtype.

    Example:
        >>> weight = nn.Parameter(np.ones(2))
        >>> optimizer = Adam([weight], lr=0.5)
        >>> (weight * 2.0).matmul(weight).backward()
        >>> optimizer.step()
        >>> [round(value, 6) for value in weight.tolist()]
        [0.5, 0.5]
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
        master_weights: bool = False,
    ) -> None:
        options = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, maximize=maximize)
        defaults = {**options, "decoupled_weight_decay": decoupled_weight_decay}
        super().__init__(params, defaults, master_weights=master_weights)

    takes_control = True

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The averages of the gradient and of its square, and the largest of the latter for AMSGrad."""
        return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))

    def check(self, group: dict[str, Any]) -> None:
        """Raise ArgumentError where an option is out of range; NumPy's numbers become Python's."""
        group["betas"] = as_betas(self.name, group["betas"])
        group["lr"] = as_amount(self.name, "lr", group["lr"])
        group["weight_decay"] = as_amount(self.name, "weight_decay", group["weight_decay"])
        group["eps"] = as_real(self.name, "eps", group["eps"], above=0.0, finite=True)
        amsgrad, decoupled = group["amsgrad"], group["decoupled_weight_decay"]
        check_switch(self.name, amsgrad=amsgrad, maximize=group["maximize"], decoupled_weight_decay=decoupled)

    def update(self, group: dict[str, Any], step: int, param: Array, grad: Array, *state: Array) -> None:
        """See `adam_update`."""
        options = {name: group[name] for name in self.defaults if name != "amsgrad"}  # which is whether state has three
        if kernels_for(param) is None:
            adam_update(param, grad, *state, step=step, **options)
        else:
            adam_(param, grad, *state, step=step, master=self.master, control=self.control, clock=self.clock, **options)


def as_betas(who: str, betas: Any) -> tuple[float, ...]:
    """Two decays as floats in [0, 1).

    Raises:
        ArgumentError: they are something else.
    """
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise ArgumentError(f"{who}: expected betas to be two numbers, got {betas!r}")
    first, second = betas
    return as_real(who, "betas[0]", first, 0.0, below=1.0), as_real(who, "betas[1]", second, 0.0, below=1.0)


class AdamW(Adam):
    """Adam with decoupled weight decay: param *= 1 - lr·weight_decay before each update.

    Args:
        params, lr, betas, eps, amsgrad, maximize, master_weights: As for `Adam`.
        weight_decay: >= 0.

    Raises:
        ArgumentError, DtypeError: as `Adam`.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        master_weights: bool = False,
    ) -> None:
        options = dict(maximize=maximize, decoupled_weight_decay=True, master_weights=master_weights)
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **options)

    def check(self, group: dict[str, Any]) -> None:
        """Raise ArgumentError where an option is out of range; NumPy's numbers become Python's."""
        super().check(group)
        if not group["decoupled_weight_decay"]:
            raise ArgumentError(f"{self.name}: expected decoupled_weight_decay to be True, got False: use Adam")
