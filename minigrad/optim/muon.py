"""Muon: momentum whose singular values are all brought to about 1, for the matrices of hidden layers."""

from __future__ import annotations

import math
from typing import Any

from minigrad.arguments import as_amount, as_integer, as_real, check_choice, check_switch
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.errors import ArgumentError, ShapeError
from minigrad.ops.linalg import product
from minigrad.optim.optimizer import Params, numbers_like
from minigrad.optim.whole import WholeOptimizer, norm

__all__ = ["Muon", "muon_update"]

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_MOST_STEPS = 100  # below which PyTorch takes them
_RATES = ("original", "match_rms_adamw")


def newton_schulz(
    x: Array,
    coefficients: tuple[float, float, float] = COEFFICIENTS,
    steps: int = 5,
    eps: float = 1e-7,
) -> Array:
    """A matrix of the same singular vectors, with singular values near 1: roughly U·Vᵀ for x = U·S·Vᵀ.

    y = x / max(‖x‖, eps), on its side where it is tall; then `steps` times y = a·y + (b·A + c·A²)·y with A = y·yᵀ.
    The default coefficients rise steeply from 0 and do not converge: singular values end between about 0.7 and 1.2.
    Source: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024.

    Shapes:
        (M, N) -> (M, N), in the dtype of x

    Args:
        x: A matrix of float32 or float64.
        coefficients: a, b, c.
        steps: >= 0.
        eps: Keeps the division finite, > 0.

    Example:
        >>> from minigrad.optim.muon import newton_schulz
        >>> y = newton_schulz(np.array([[3.0, 0.0], [0.0, 1.0]]))
        >>> [round(float(value), 2) for value in np.diag(y)]
        [0.75, 1.13]
    """
    xp = array_module(x)
    a, b, c, least = numbers_like(x, *coefficients, eps)
    tall = x.shape[0] > x.shape[1]
    y = x.T if tall else x
    y = y / xp.maximum(norm(y).astype(y.dtype), least)
    for _ in range(steps):
        gram = product(y, y.T)
        gram = b * gram + c * product(gram, gram)
        y = a * y + product(gram, y)
    return y.T if tall else y


def adjusted_rate(lr: float, adjust_lr_fn: str | None, shape: tuple[int, ...]) -> float:
    """The learning rate of a matrix of this shape; an orthogonal change has the smaller elements the larger it is."""
    rows, columns = shape
    if adjust_lr_fn == "match_rms_adamw":
        return lr * 0.2 * math.sqrt(max(rows, columns))
    return lr * math.sqrt(max(1.0, rows / columns)) if columns else lr


def muon_update(
    param: Array,
    grad: Array,
    momentum_buffer: Array,
    *,
    lr: float = 1e-3,
    weight_decay: float = 0.1,
    momentum: float = 0.95,
    nesterov: bool = True,
    ns_coefficients: tuple[float, float, float] = COEFFICIENTS,
    eps: float = 1e-7,
    ns_steps: int = 5,
    adjust_lr_fn: str | None = None,
    maximize: bool = False,
) -> None:
    """One step on the arrays of one whole matrix, in place; grad is only read.

    d = ±grad; buffer = momentum·buffer + (1 - momentum)·d;
    u = buffer, with Nesterov momentum·buffer + (1 - momentum)·d;
    param *= 1 - lr·weight_decay; param -= lr·f·`newton_schulz`(u) with f = √max(1, M / N) for a matrix of (M, N), or
    0.2·√max(M, N) where adjust_lr_fn is "match_rms_adamw".
    Source: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024; Liu et al., "Muon is
    scalable for LLM training", 2025, for the latter factor.
    """
    xp = array_module(param)
    kept, new = numbers_like(param, momentum, 1 - momentum)
    change = xp.empty_like(param)
    xp.multiply(grad, -new if maximize else new, out=change)
    momentum_buffer *= kept
    momentum_buffer += change
    if nesterov:
        change += momentum_buffer * kept
    change = newton_schulz(change if nesterov else momentum_buffer, ns_coefficients, ns_steps, eps)
    shrink, rate = numbers_like(param, 1 - lr * weight_decay, adjusted_rate(lr, adjust_lr_fn, param.shape))
    param *= shrink
    param -= change * rate


class Muon(WholeOptimizer):
    """Muon, for the matrices of hidden layers; the formula is in `muon_update`.

    Everything else, and by custom embeddings and the last layer too, goes to another optimizer, such as AdamW. Newton
    and Schulz's iteration runs in the dtype of the parameters, in float32 where they are narrower. PyTorch runs it in
    bfloat16, whose rounding is all that its steps differ by: elements of a change by up to a twentieth of the largest.

    Args:
        params: Parameters of two axes, or groups: dicts with "params" and the options in which a group differs.
        lr: Learning rate, >= 0.
        weight_decay: >= 0, decoupled: param *= 1 - lr·weight_decay before each update.
        momentum: Decay of the average of gradients, >= 0.
        nesterov: Look ahead.
        ns_coefficients, eps, ns_steps: Of `newton_schulz`; ns_steps in [0, 100).
        adjust_lr_fn: "original", which is None too, or "match_rms_adamw", whose changes are as large as AdamW's.
        maximize: Go up instead of down.
        master_weights: Keep float32 copies of parameters of 16 bits; see `Optimizer`.

    Raises:
        ArgumentError: a value out of range, no parameters, or one given twice.
        DtypeError: something that is no Parameter of a float dtype.
        ShapeError: a parameter that is no matrix.
        LayoutError: a layout that has only a part of a matrix, which then can't be made orthogonal.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
        >>> muon = Muon([x for x in model.parameters() if x.ndim == 2], lr=0.02)
        >>> others = AdamW([x for x in model.parameters() if x.ndim != 2])
        >>> model(minigrad.ones(2, 4)).sum().backward()
        >>> muon.step()
        >>> others.step()
    """

    step_limit = 1  # the formula does not know the step

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = COEFFICIENTS,
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        *,
        maximize: bool = False,
        master_weights: bool = False,
    ) -> None:
        options = dict(lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov, eps=eps)
        more = dict(ns_coefficients=ns_coefficients, ns_steps=ns_steps, adjust_lr_fn=adjust_lr_fn, maximize=maximize)
        super().__init__(params, {**options, **more}, master_weights=master_weights)

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The average of gradients."""
        return ("momentum_buffer",)

    def check(self, group: dict[str, Any]) -> None:
        """Raise ArgumentError where an option is out of range, ShapeError at a parameter that is no matrix."""
        for name in ("lr", "weight_decay", "momentum"):
            group[name] = as_amount(self.name, name, group[name])
        group["eps"] = as_real(self.name, "eps", group["eps"], above=0.0, finite=True)
        group["ns_steps"] = as_integer(self.name, "ns_steps", group["ns_steps"], 0, _MOST_STEPS)
        group["ns_coefficients"] = self._coefficients(group["ns_coefficients"])
        check_switch(self.name, nesterov=group["nesterov"], maximize=group["maximize"])
        if group["adjust_lr_fn"] is not None:
            check_choice(self.name, _RATES, adjust_lr_fn=group["adjust_lr_fn"])
        for param in group.get("params", ()):
            if param.ndim != 2:
                name = getattr(param, "name", None) or "one"
                raise ShapeError(
                    f"{self.name}: expected matrices, got {name} of shape {param.shape}: "
                    "give what has another number of axes to another optimizer, such as AdamW"
                )

    def _coefficients(self, values: Any) -> tuple[float, ...]:
        if not isinstance(values, (tuple, list)) or len(values) != 3:
            raise ArgumentError(f"{self.name}: expected ns_coefficients to be three numbers, got {values!r:.100}")
        return tuple(as_real(self.name, f"ns_coefficients[{i}]", value, finite=True) for i, value in enumerate(values))

    def update(self, group: dict[str, Any], step: int, param: Array, grad: Array, *state: Array) -> None:
        """See `muon_update`."""
        muon_update(param, grad, *state, **{name: group[name] for name in self.defaults})
