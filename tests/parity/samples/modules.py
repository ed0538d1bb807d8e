"""`module_db`: every module of PyTorch's that exists here, trained and evaluated with PyTorch's weights."""

import warnings

import torch
from torch.testing._internal.common_modules import module_db

from minigrad import nn
from tests.parity.samples.crossing import Crossing, Differs, array_of, compare, compare_arrays, dtype_of, renewed
from tests.parity.samples.running import call_theirs, check_gradients, outcome_of

DTYPES = (torch.float32, torch.float64)
RANDOM = {"AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout", "RReLU"}


def existing():
    """The modules of PyTorch's that exist here, each with ours."""
    return [(info, getattr(nn, info.module_cls.__name__)) for info in module_db if is_here(info)]


def is_here(info):
    """Whether a module exists here under its name."""
    return hasattr(nn, info.module_cls.__name__)


def check_module(kind, our_kind, sample, dtype, training):
    """Check a module: made of the same arguments, with PyTorch's state, its output, gradients and buffers.

    Raises:
        Differs: something differs.
    """
    made = sample.constructor_input
    known, crossing = [], Crossing()
    theirs = call_theirs(kind, made.args, made.kwargs).to(dtype).train(training)
    args, kwargs = (renewed(value, known) for value in (list(sample.forward_input.args), sample.forward_input.kwargs))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", RuntimeWarning)
        maker = Crossing()
        ours = our_kind(*maker(list(made.args)), **maker(made.kwargs)).to(dtype_of(dtype)).train(training)
        ours.load_state_dict(theirs.state_dict())
        taken_args, taken_kwargs = crossing(args), crossing(kwargs)
        expected = call_theirs(theirs, args, kwargs)
        output = ours(*taken_args, **taken_kwargs)
        settled = not (training and kind.__name__ in RANDOM)
        compare(output, expected, values=settled)
        if settled:
            check_gradients(output, expected, crossing, list(parameters(ours, theirs)))
        check_buffers(dict(ours.named_buffers()), dict(theirs.named_buffers()))


def parameters(ours, theirs):
    """(name, ours, PyTorch's) of each parameter.

    Raises:
        Differs: the names do.
    """
    mine, other = dict(ours.named_parameters()), dict(theirs.named_parameters())
    if mine.keys() != other.keys():
        raise Differs(f"parameters: {sorted(mine)} for {sorted(other)}")
    return [(f"gradient of {name}", mine[name], param) for name, param in other.items() if param.requires_grad]


def check_buffers(ours, theirs):
    """Check the buffers after a call.

    Raises:
        Differs: names or values do.
    """
    if ours.keys() != theirs.keys():
        raise Differs(f"buffers: {sorted(ours)} for {sorted(theirs)}")
    for name, buffer in theirs.items():
        compare_arrays(ours[name].data, array_of(buffer), f"buffer {name}")


def outcomes(info, our_kind):
    """(note, arguments, outcome) of every sample of a module."""
    for dtype in DTYPES:
        for training in (True, False):
            torch.manual_seed(0)
            made = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
            for sample in made:
                outcome = outcome_of(lambda: check_module(info.module_cls, our_kind, sample, dtype, training))
                both = [[*part.args, part.kwargs] for part in (sample.constructor_input, sample.forward_input)]
                yield f"{dtype} {'train' if training else 'eval'}", both, outcome
