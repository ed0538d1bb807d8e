"""LAMB: Adam's change of each parameter, as long as the parameter is."""

from __future__ import annotations

import math
from typing import Any

from minigrad.arguments import as_amount, as_real, check_switch
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.optim.adam import as_betas
from minigrad.optim.optimizer import Params, average_squares, numbers_like
from minigrad.optim.whole import WholeOptimizer, norm

__all__ = ["LAMB", "lamb_update"]


def lamb_update(
    param: Array,
    grad: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    *,
    step: int,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.01,
    maximize: bool = False,
) -> None:
    """One step on the arrays of one whole parameter, in place; grad is only read.

    d = ±grad; m = β₁m + (1 - β₁)d; v = β₂v + (1 - β₂)d²; m̂ = m / (1 - β₁ᵗ), v̂ = v / (1 - β₂ᵗ);
    change = m̂ / (√v̂ + eps) + weight_decay·param; param -= lr · ‖param‖ / ‖change‖ · change.
    Norms are of all elements, in float64; the trust ratio ‖param‖ / ‖change‖ is 1 where one of the two is 0.
    Source: You et al., "Large batch optimization for deep learning: Training BERT in 76 minutes", ICLR 2020
    (arXiv:1904.00962), algorithm 2: with bias correction, φ the identity, so the ratio is not clamped.
    """
    xp = array_module(param)
    beta1, beta2 = betas
    kept, new, kept_sq, new_sq = numbers_like(param, beta1, 1 - beta1, beta2, 1 - beta2)
    root, floor = numbers_like(param, math.sqrt(1 - beta2**step), eps)
    scratch, change = xp.empty_like(param), xp.empty_like(param)
    xp.multiply(grad, -new if maximize else new, out=scratch)
    exp_avg *= kept
    exp_avg += scratch
    average_squares(exp_avg_sq, grad, kept_sq, new_sq, scratch)
    xp.sqrt(exp_avg_sq, out=scratch)
    scratch /= root
    scratch += floor
    xp.divide(exp_avg, numbers_like(param, 1 - beta1**step)[0], out=change)
    change /= scratch
    if weight_decay:
        xp.multiply(param, numbers_like(param, weight_decay)[0], out=scratch)
        change += scratch
    change *= (trust_ratio(param, change) * lr).astype(param.dtype)
    param -= change


def trust_ratio(param: Array, change: Array) -> Array:
    """‖param‖ / ‖change‖ as float64, 1 where one of them is 0, NaN where one is; it stays on the device."""
    xp, length, step = array_module(param), norm(param), norm(change)
    usable = (length != 0) & (step != 0)
    return xp.asarray(xp.where(usable, length, 1.0) / xp.where(usable, step, 1.0))


class LAMB(WholeOptimizer):
    """LAMB, for large batches: Adam's step of each parameter in proportion to its norm; formula in `lamb_update`.

    The variant is that of the paper's algorithm 2: bias correction, decoupled weight decay inside of the trust ratio,
    and a ratio that is not clamped and that every parameter has. Where biases and norms should not decay, put them into
    a group with weight_decay=0. PyTorch has no LAMB; arguments are in the order of its Adam.

    Args:
        params: Parameters, or groups: dicts with "params" and the options in which a group differs.
        lr: Learning rate, >= 0: by which fraction of its norm a parameter changes in a step.
        betas: Decay of the averages of the gradient and of its square, each in [0, 1).
        eps: Keeps the division finite, > 0.
        weight_decay: >= 0, added to the change before its norm is taken.
        maximize: Go up instead of down.
        master_weights: Keep float32 copies of parameters of 16 bits; see `Optimizer`.

    Raises:
        ArgumentError: a value out of range, no parameters, or one given twice.
        DtypeError: something that is no Parameter of a float dtype.
        LayoutError: a layout that has only a part of a parameter, whose norm it then can't know.

    Example:
        >>> weight = nn.Parameter(np.ones(4))
        >>> optimizer = LAMB([weight], lr=0.5, weight_decay=0.0)
        >>> (weight * 2.0).matmul(weight).backward()
        >>> optimizer.step()
        >>> [round(value, 6) for value in weight.tolist()]
        [0.5, 0.5, 0.5, 0.5]
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        maximize: bool = False,
        master_weights: bool = False,
    ) -> None:
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, maximize=maximize)
        super().__init__(params, defaults, master_weights=master_weights)

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The averages of the gradient and of its square."""
        return "exp_avg", "exp_avg_sq"

    def check(self, group: dict[str, Any]) -> None:
        """Raise ArgumentError where an option is out of range; NumPy's numbers become Python's."""
        group["betas"] = as_betas(self.name, group["betas"])
        for name in ("lr", "weight_decay"):
            group[name] = as_amount(self.name, name, group[name])
        group["eps"] = as_real(self.name, "eps", group["eps"], above=0.0, finite=True)
        check_switch(self.name, maximize=group["maximize"])

    def update(self, group: dict[str, Any], step: int, param: Array, grad: Array, *state: Array) -> None:
        """See `lamb_update`."""
        lamb_update(param, grad, *state, step=step, **{name: group[name] for name in self.defaults})
