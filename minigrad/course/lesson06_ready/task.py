"""What you write: in which order gradients are complete, and when."""

from __future__ import annotations

from typing import Any

from minigrad import nn
from minigrad.tensor import Tensor


def ready_order(module: nn.Module, loss: Tensor) -> list[str]:
    """Run backward, and return the names of the parameters in the order in which their gradients became complete.

    A gradient is complete when nothing in this backward will add to it any more. Afterwards every parameter has in
    `.grad` what `loss.backward()` leaves there, and the module is as it was: a later backward tells nobody.

    What minigrad has for it:

        loss.backward(on_leaf=f)    calls f(leaf) once for each leaf that this backward reaches, when its gradient is
                                    complete. A leaf is a tensor that no operation made and that requires grad: the
                                    parameter itself (`leaf is module.weight`), or an input that requires grad.
        module.named_parameters()   pairs (name, parameter), in order of registration; a parameter that has two names
                                    comes once, with the first.
        param.register_post_accumulate_grad_hook(f)   the same for one parameter, as in PyTorch; returns what has
                                    `.remove()`.

    Tensors compare element by element: keep them in a dict by `id(param)`.

    Args:
        module: Any model: with branches, with a layer that is called several times, with a parameter that has two
            names, with parameters that this loss does not depend on, registered in any order.
        loss: A scalar that was computed with it; its backward has not run.

    Returns:
        The name of each parameter that backward reached, once, the first that was complete first. Those that it did
        not reach are not in the list, nor is a leaf that is no parameter of the module.

    Example:
        >>> import minigrad
        >>> from minigrad import nn
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
        >>> ready_order(model, model(minigrad.ones(4, 2)).mean())
        ['2.weight', '2.bias', '0.weight', '0.bias']
    """
    raise NotImplementedError


def ready_fractions(module: nn.Module, loss: Tensor, clock: Any) -> dict[str, float]:
    """Run backward, and return at which fraction of it the gradient of each parameter became complete.

    0 is the moment at which backward begins, 1 the one at which it has ended. Forward, and whatever else took time
    before backward began, does not count.

    Args:
        module: As in `ready_order`.
        loss: A scalar that was computed with it; its backward has not run.
        clock: `clock.now_s()` is the time in seconds, a float; it does nothing else. It need not be at 0. Backward
            takes some time on it, > 0.

    Returns:
        {name of a parameter: fraction in [0, 1]}, for those that backward reached, in the order in which they were
        complete.

    Example:
        In a model of two parameters with 6 elements and with 2, on a clock where backward takes time by bytes,

            {"second.weight": 0.25, "first.weight": 1.0}

        where the second has the 2 elements: a quarter of the bytes are done when its gradient is complete.
    """
    raise NotImplementedError
