"""`optim_db`: every optimizer of PyTorch's that exists here, several steps with all of PyTorch's options."""

import warnings

import torch
from torch.testing._internal.common_optimizers import optim_db

from minigrad import Tensor, nn, optim
from tests.parity.samples.crossing import Crossing, array_of, compare_arrays
from tests.parity.samples.running import call_theirs, outcome_of

DTYPES = (torch.float32, torch.float64)
SHAPES = ((3, 2), (5,), ())
MATRICES = ((3, 2), (2, 5), (4, 4))  # for Muon, which takes nothing else
STEPS = 7
SKIPPED = {(1, 2), (2, 0)}  # (parameter, step) without a gradient


def existing():
    """The optimizers of PyTorch's that exist here, each with ours."""
    return [(info, getattr(optim, info.optim_cls.__name__)) for info in optim_db if is_here(info)]


def is_here(info):
    """Whether an optimizer exists here under its name."""
    return hasattr(optim, info.optim_cls.__name__)


def samples(info):
    """PyTorch's options, alone and with each of the implementations that it can be asked for."""
    for made in info.optim_inputs_func("cpu"):
        yield made.kwargs
        for flag in ("foreach", "fused", "differentiable"):
            if flag in info.supported_impls and (flag != "fused" or "cpu" in info.supports_fused_on):
                for value in (True, False):
                    yield {**made.kwargs, flag: value}


def check_steps(kind, our_kind, kwargs, dtype):
    """Check the parameters after each of several steps with the same gradients.

    Raises:
        Differs: one differs.
    """
    torch.manual_seed(0)
    shapes = MATRICES if kind is torch.optim.Muon else SHAPES
    params = [torch.nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes]
    ours = [nn.Parameter(array_of(param)) for param in params]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs, mine = call_theirs(kind, (params,), kwargs), our_kind(ours, **Crossing()(kwargs))
        for step in range(STEPS):
            for i, (param, own) in enumerate(zip(params, ours)):
                drawn = None if (i, step) in SKIPPED else torch.randn(param.shape, dtype=dtype)
                param.grad = None if drawn is None else drawn.clone()
                own.grad = None if drawn is None else Tensor(array_of(drawn))
            call_theirs(theirs.step, (), {})
            mine.step()
            for i, (param, own) in enumerate(zip(params, ours)):
                compare_arrays(own.data, array_of(param), f"parameter {i} after step {step + 1}")


def outcomes(info, our_kind):
    """(note, options, outcome) of every choice of options."""
    for dtype in DTYPES:
        for kwargs in samples(info):
            yield f"{dtype}", kwargs, outcome_of(lambda: check_steps(info.optim_cls, our_kind, kwargs, dtype))
