"""`op_db`: every operation of PyTorch's that exists here, under each of its public names."""

import functools
import math
import types
from typing import Any, NamedTuple

import torch
from torch.testing._internal.common_methods_invocations import op_db

import minigrad
from minigrad import Tensor
from tests.parity.samples.crossing import brief, size_of
from tests.parity.samples.running import check_call, is_settled, outcome_of

DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool)
LARGEST = 10_000  # elements of all tensors of a sample together
SPOILT = 8  # samples of a dtype in which an element becomes NaN or infinite
EXTREMES = (math.nan, math.inf, -math.inf)
RANDOM = {
    "bernoulli", "exponential", "multinomial", "nn.functional.dropout", "nn.functional.dropout2d",
    "nn.functional.multi_head_attention_forward",
    "nn.functional.scaled_dot_product_attention", "normal", "rand_like", "randint", "randint_like", "randn",
    "randn_like", "randperm", "uniform",
}  # fmt: skip
EMPTY = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}


class Form(NamedTuple):
    """One public name of an operation: how it is called here and there."""

    name: str
    ours: Any
    theirs: Any


def resolve(path, root):
    """What a dotted name means below an object, or None."""
    for name in path.split("."):
        root = getattr(root, name, None)
    return root


def is_wrapper(function):
    """Whether PyTorch's samples call an operation through a small function of their own."""
    return isinstance(function, types.FunctionType) and function.__module__.startswith("torch.testing.")


def rebound(function):
    """A small function of PyTorch's samples with `torch` meaning ours."""
    names = {**function.__globals__, "torch": minigrad, "wrapper_set_seed": call}
    return types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)


def call(function, *args, **kwargs):
    """What PyTorch's `wrapper_set_seed` does, but for the seed."""
    return function(*args, **kwargs)


def as_method(function):
    """A method of PyTorch's as a function of a clone, which an in-place one may change."""
    return lambda x, *args, **kwargs: function(x.clone(), *args, **kwargs)


def forms(op):
    """All public names under which an operation exists here."""
    found = []
    last = op.name.split(".")[-1]
    special = op.name.startswith("__") or not hasattr(torch, op.name.split(".")[0])
    bare = special or (is_wrapper(op.op) and "torch" not in op.op.__code__.co_names)  # written as x.name()
    function = getattr(Tensor, last, None) if bare else resolve(op.name, minigrad)
    if function is not None:
        found.append(Form(op.name, rebound(op.op) if is_wrapper(op.op) else function, op.op))
    if op.method_variant and hasattr(Tensor, last) and not special:
        wrapped = is_wrapper(op.method_variant)
        ours = rebound(op.method_variant) if wrapped else getattr(Tensor, last)
        if not (wrapped and found and is_wrapper(op.op)):
            found.append(Form(f"Tensor.{last}", ours, op.method_variant))
    if op.inplace_variant:
        if is_wrapper(op.inplace_variant):
            if function is not None:
                changed = rebound(op.inplace_variant)
                found.append(Form(f"{op.name} in place", as_method(changed), as_method(op.inplace_variant)))
        elif hasattr(Tensor, f"{last}_"):
            found.append(Form(f"Tensor.{last}_", as_method(getattr(Tensor, f"{last}_")), as_method(op.inplace_variant)))
    for alias in op.aliases:
        for prefix, ours, theirs in (("", minigrad, torch), ("Tensor.", Tensor, torch.Tensor)):
            if resolve(alias.name, ours) is not None and resolve(alias.name, theirs) is not None:
                found.append(Form(prefix + alias.name, resolve(alias.name, ours), resolve(alias.name, theirs)))
    return found


def existing():
    """The operations of PyTorch's that exist here, with their forms."""
    return [(op, names) for op in op_db if (names := forms(op))]


def title(op):
    """Name and variant of an operation."""
    return f"{op.name} ({op.variant_test_name})" if op.variant_test_name else op.name


def tensors(value):
    """All tensors in a nest of arguments."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    return [t for one in value for t in tensors(one)] if isinstance(value, (list, tuple, type({}.values()))) else []


def spoilt(sample, extreme):
    """A sample with one element of its first float tensor NaN or infinite, or None."""
    for tensor in tensors(sample.input):
        if tensor.is_floating_point() and tensor.numel() and tensor.layout == torch.strided:
            twin = tensor.detach().clone()
            twin[tuple(size // 2 for size in twin.shape)] = extreme
            twin.requires_grad_(tensor.requires_grad)

            def changed(value):
                if isinstance(value, (list, tuple)):
                    return type(value)(changed(one) for one in value)
                return twin if value is tensor else value

            return type(sample)(changed(sample.input), args=sample.args, kwargs=sample.kwargs)
    return None


def drawn(op, dtype, grad):
    """PyTorch's reference inputs, which hold its samples; some of their makers know of no gradients."""
    torch.manual_seed(0)
    try:
        return list(op.reference_inputs("cpu", dtype, requires_grad=grad))
    except (RuntimeError, TypeError, ValueError):
        torch.manual_seed(0)
        return list(op.sample_inputs("cpu", dtype, requires_grad=grad))


def samples(op, dtype):
    """PyTorch's samples and reference inputs, then some of them with NaN and infinities."""
    grad = op.supports_autograd and dtype.is_floating_point
    kept = []
    for sample in drawn(op, dtype, grad):
        count = size_of([sample.input, sample.args, sample.kwargs])
        if count > LARGEST:
            continue
        if len(kept) < SPOILT and dtype.is_floating_point and tensors(sample.input) and count:
            kept.append(sample)
        yield "", sample
    for sample in kept:
        for extreme in EXTREMES:
            changed = spoilt(sample, extreme)
            if changed is not None:
                yield f" with {extreme}", changed


def settling(op):
    """What tells whether the values of a result count; None where they always do."""
    if op.name in EMPTY:
        return lambda args, kwargs, result: False
    if op.name not in RANDOM:
        return None
    return functools.partial(is_settled, resolve(op.name, torch) or as_method(resolve(f"{op.name}_", torch.Tensor)))


def outcomes(op, names):
    """(note, arguments, outcome) of every sample of an operation, under each of its names."""
    settled = settling(op)
    for dtype in DTYPES:
        if dtype not in op.supported_dtypes("cpu"):
            continue
        for note, sample in samples(op, dtype):
            for form in names:
                args = (sample.input, *sample.args)
                outcome = outcome_of(lambda: check_call(form.ours, form.theirs, args, sample.kwargs, settled))
                yield f"{form.name} {brief(dtype)}{note}", [*args, sample.kwargs], outcome
