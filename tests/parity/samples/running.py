"""One sample, put to both libraries: what comes of it, in a word and a reason."""

import warnings
from typing import NamedTuple

import numpy as np
import torch

from minigrad import Tensor
from minigrad.errors import MinigradError
from tests.parity.samples.crossing import Crossing, Differs, Foreign, array_of, compare, compare_arrays, renewed


class Outcome(NamedTuple):
    """agrees; refused (an error of ours); differs; fails (an error of Python's or NumPy's, a warning); foreign."""

    word: str
    reason: str = ""


AGREES = Outcome("agrees")


def outcome_of(check):
    """Run a check, and say what came of it."""
    try:
        check()
    except Foreign as error:
        return Outcome("foreign", str(error))
    except Differs as error:
        return Outcome("differs", str(error))
    except MinigradError as error:
        return Outcome("refused", f"{type(error).__name__}: {error}")
    except (Exception, RuntimeWarning) as error:
        return Outcome("fails", f"{type(error).__name__}: {error}")
    return AGREES


def call_theirs(function, args, kwargs):
    """PyTorch's result; a sample that it refuses itself is none.

    Raises:
        Foreign: it refuses.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            raise Foreign("theirs") from error
    if result is NotImplemented:
        raise Foreign("theirs")
    return result


def tensors_in(value):
    """All tensors of a nest of results, of either library."""
    if isinstance(value, (torch.Tensor, Tensor)):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for one in value for tensor in tensors_in(one)]
    return []


def check_gradients(ours, theirs, crossing, more=()):
    """Check the gradients of all inputs, and of `more` (name, ours, theirs), for a drawn gradient of each output.

    Raises:
        Differs: one differs, or ours does not come where PyTorch's does.
    """
    wanted = [(f"gradient {i}", x, y) for i, (y, x) in enumerate(crossing.differentiated())] + list(more)
    pairs = [(x, y) for x, y in zip(tensors_in(ours), tensors_in(theirs)) if y.requires_grad and y.numel()]
    if not pairs or not wanted:
        return
    torch.manual_seed(1)
    drawn = [torch.randn(y.shape, dtype=y.dtype) for _, y in pairs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = torch.autograd.grad([y for _, y in pairs], [y for _, _, y in wanted], drawn, allow_unused=True)
        except Exception as error:
            raise Foreign("theirs") from error
    backward([(x, Tensor(array_of(g))) for (x, _), g in zip(pairs, drawn) if x.requires_grad])
    for (what, x, y), expected in zip(wanted, found):
        zeros = np.zeros(x.shape, x.dtype)
        compare_arrays(
            zeros if x.grad is None else x.grad.data, zeros if expected is None else array_of(expected), what
        )


def backward(roots):
    """Backward from several outputs at once."""
    if len(roots) == 1:
        roots[0][0].backward(roots[0][1])
    elif roots:
        sum((x * g).sum().reshape(1) if x.ndim else (x * g).reshape(1) for x, g in roots).sum().backward()


def is_settled(function, args, kwargs, result):
    """Whether a function that may draw random numbers drew none: eight seeds give one result."""
    for seed in range(1, 8):
        torch.manual_seed(seed)
        again = call_theirs(function, args, kwargs)
        if not all(torch.equal(a, b) for a, b in zip(tensors_in(result), tensors_in(again))):
            return False
    return True


def check_call(our_function, their_function, args, kwargs, settled=None):
    """Check a call, forward and backward, with PyTorch's arguments as they are.

    Args:
        settled: Of (args, kwargs, result): whether values count, or only shapes and dtypes; they do by default.
    """
    known = []
    args, kwargs = renewed(list(args), known), renewed(dict(kwargs), known)
    crossing = Crossing()
    taken_args, taken_kwargs = crossing(args), crossing(kwargs)
    torch.manual_seed(0)
    theirs = call_theirs(their_function, args, kwargs)
    for tensor in tensors_in(theirs):
        array_of(tensor)
    counts = settled is None or settled(args, kwargs, theirs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's, of infinities
        ours = our_function(*taken_args, **taken_kwargs)
        compare(ours, theirs, values=counts)
        if counts:
            check_gradients(ours, theirs, crossing)
