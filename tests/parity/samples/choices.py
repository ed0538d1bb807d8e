"""Where minigrad does something else than PyTorch on purpose: each choice once, in words, and where it is documented.

A sample that does not agree must be covered by one of them.
"""

import math
import re
from typing import NamedTuple


class Choice(NamedTuple):
    """A choice: what is done, where a reader finds it (file, words in it), and which outcomes are its doing."""

    words: str
    file: str
    written: str
    outcome: str  # "refused" or "differs"
    reason: str  # a pattern, from the beginning of the reason
    ops: str = ".*"  # a pattern of the whole name of the operation, module or optimizer
    notes: str = ""  # a pattern somewhere in the note of the sample, as "with nan"
    near: float = math.inf  # how far the two numbers of the reason are from each other at most, relative to the second


CHOICES = {
    "float dtypes": Choice(
        "Two float dtypes in one operation are an error that names both, also where one is a tensor of no axes; "
        "PyTorch promotes.",
        "minigrad/ops/operands.py",
        "two different float dtypes",
        "refused",
        r"DtypeError: \w+: expected (operands of one float dtype|a source of float\d+)",
    ),
    "what fits": Choice(
        "What is written into a tensor must be of a dtype that fits into its own, and truth into bools; PyTorch casts "
        "in silence.",
        "minigrad/ops/mask.py",
        "a value whose dtype does not fit into x's",
        "refused",
        r"DtypeError: \w+: expected (a source of|(a value|alpha|beta) that fits into) (bool|int\d+|float\d+)",
    ),
    "order of equals": Choice(
        "Sorting is always stable; PyTorch's, without stable=True, leaves equal elements in any order.",
        "minigrad/ops/sorting.py",
        "Equal elements keep their order",
        "differs",
        r"output(\[1\])?: \d+ for \d+",
        "argsort|sort|topk",
    ),
    "floats": Choice(
        "Losses and the operations of networks take floats; some of PyTorch's take integers too on a CPU.",
        "minigrad/ops/pooling.py",
        "DtypeError: no float tensor.",
        "refused",
        r"DtypeError: \w+: expected a float tensor, got (int64|bool)",
    ),
    "no indices": Choice(
        "Pooling does not give the indexes of the maxima.",
        "minigrad/foreign.py",
        "indices are not given",
        "refused",
        r"ArgumentError: \w+: expected no return_indices, got True",
    ),
    "two axes": Choice(
        "An image has one or two axes beside its channels.",
        "minigrad/absent.py",
        "an image has two axes beside its channels",
        "refused",
        r"ShapeError: interpolate: expected x of shape .*, got \(\d+, \d+, \d+, \d+, \d+\)"
        r"|ArgumentError: interpolate: expected mode .* got 'trilinear'",
    ),
    "no divisor": Choice(
        "avg_pool2d divides by what its window holds; another divisor is a factor on the result.",
        "minigrad/foreign.py",
        "scale the result",
        "refused",
        r"ArgumentError: \w+: expected no divisor_override, got -?\d+|CallError: avg_pool2d: .* too many positional",
    ),
    "options in range": Choice(
        "A momentum outside [0, 1] and an eps below 0 are refused.",
        "minigrad/ops/norms.py",
        "momentum or eps out of range",
        "refused",
        r"ArgumentError: \w+_norm: expected (eps|momentum) to be a number (>= 0|in \[0, 1\]), got -",
    ),
    "channels": Choice(
        "batch_norm takes at least two axes, of which the second is of channels.",
        "minigrad/ops/norms.py",
        "ShapeError: the shapes do not fit as above",
        "refused",
        r"ShapeError: batch_norm: expected x with at least 2 axes, got \(0,\)",
    ),
    "empty batches": Choice(
        "A batch norm does not count an empty batch, from which it learns nothing.",
        "minigrad/nn/norm.py",
        "An empty batch changes nothing, and is not counted",
        "differs",
        r"buffer num_batches_tracked: 0 for 1",
        r"BatchNorm\dd",
    ),
    "no sorter": Choice(
        "searchsorted takes a sequence that is sorted; one that sorter= puts in order is indexed by it first.",
        "minigrad/foreign.py",
        "write sorted_sequence[sorter]",
        "refused",
        r"ArgumentError: searchsorted: expected no sorter",
    ),
    "ascending lines": Choice(
        "In a line that is not sorted nothing has its place; where a search in it ends is not said.",
        "minigrad/ops/lookup.py",
        "belongs in an ascending line",
        "differs",
        r"output: \d+ for \d+",
        "searchsorted",
        "with",
    ),
    "images": Choice(
        "dropout2d takes batches of images, of four axes; PyTorch is to change what it does with three.",
        "minigrad/ops/noise.py",
        "ShapeError: not a batch of images.",
        "refused",
        r"ShapeError: dropout2d: expected x of shape \(N, C, H, W\), got \(5, 5, 5\)",
    ),
    "no weights": Choice(
        "Covariances are of samples that weigh the same.",
        "minigrad/foreign.py",
        "repeat the columns",
        "refused",
        r"ArgumentError: cov: expected no [fa]weights",
    ),
    "norms of matrices": Choice(
        "Of the norms of matrices there is Frobenius's alone; others need singular values.",
        "minigrad/linalg.py",
        "over one axis, or of a vector; None and \"fro\" are 2",
        "refused",
        r"ArgumentError: norm: expected (p other than 'fro' to be a number, got 'nuc'|ord None or 'fro' for matrices)",
    ),
    "not finite": Choice(
        "Of a matrix with NaN or infinities comes what the library of linear algebra makes of it, which is none of "
        "PyTorch's.",
        "minigrad/ops/inverse.py",
        "comes what the library of linear algebra makes of it",
        "differs",
        r".*",
        r"linalg\.(det|inv|solve)",
        "with",
    ),
    "integer powers": Choice(
        "An integer to a negative power is an error; PyTorch gives 0 for a tensor of exponents.",
        "minigrad/ops/arithmetic.py",
        "an integer tensor to a negative integer power",
        "refused",
        r"DtypeError: pow: expected a float base for a negative power, got integers",
    ),
    "finite ends": Choice(
        "linspace takes finite numbers; PyTorch gives NaN between others.",
        "minigrad/ops/creation.py",
        "a start or an end that is not finite",
        "refused",
        r"ArgumentError: linspace: expected finite numbers",
    ),
    "first derivatives": Choice(
        "There are no gradients of gradients.",
        "minigrad/tensor.py",
        "only first derivatives are supported",
        "refused",
        r"ArgumentError: \w+: expected no differentiable, got True",
    ),
    "rates are numbers": Choice(
        "A learning rate is a number; a tensor is read by .item().",
        "minigrad/arguments.py",
        "write .item(), which reads its number",
        "refused",
        r"ArgumentError: \w+: expected lr to be a finite number >= 0, got tensor",
    ),
    "an iteration in full": Choice(
        "Muon's iteration runs in the dtype of the parameters; PyTorch's rounds to bfloat16.",
        "minigrad/optim/muon.py",
        "PyTorch runs it in bfloat16",
        "differs",
        r"parameter \d after step \d",
        "Muon",
    ),
    "no number": Choice(
        "A bool is no number, as a factor neither.",
        "minigrad/arguments.py",
        "a bool is no number",
        "refused",
        r"ArgumentError: \w+: expected alpha to be a number, got (True|False)",
    ),
    "infinite factors": Choice(
        "The gradient of a product is the product of the other elements, which is a number where an element is "
        "infinite or NaN; PyTorch divides the product by the element, and gets NaN.",
        "minigrad/ops/reduce.py",
        "dx = g times the product of the other elements",
        "differs",
        r"gradient 0: \S+ for nan",
        "prod",
        "with",
    ),
    "infinities": Choice(
        "The gradient at an infinity is what it tends to, and that of what is cut off is 0; PyTorch's is NaN there.",
        "minigrad/ops/reduce.py",
        "dx = g·e^(x - logsumexp), 0 where x is -inf.",
        "differs",
        r"gradient 0: -?0.0 for nan",
        r"logsumexp|logit|nanmean|linalg\.norm.*|nn\.functional\.softsign",
    ),
    "after an infinity": Choice(
        "Behind an infinity the gradient of cumprod is a sum of infinities, NaN where their signs differ.",
        "minigrad/ops/running.py",
        "dx_i = (Σ_{j >= i} g_j·y_j) / x_i",
        "differs",
        r"gradient 0: nan for -?inf",
        "cumprod",
        "with -?inf",
    ),
    "counted differences": Choice(
        "The distance that counts differences, p=0, counts NaN as one, as the norm does; PyTorch's is NaN.",
        "minigrad/ops/products.py",
        "p=0 counts the differences, NaN as one",
        "differs",
        r"output: \S+ for nan",
        "cdist",
        "with nan",
    ),
    "a mean of infinity": Choice(
        "The mean beside a variance is that of `mean`, infinite where an element is; PyTorch's is NaN.",
        "minigrad/ops/pairs.py",
        "`var` and `mean` over the same axes.",
        "differs",
        r"output\[1\]: -?inf for nan",
        r"(std|var)_mean.*",
        "with -?inf",
    ),
    "no reduce": Choice(
        "scatter replaces; what adds is scatter_add, which a call with reduce= is told.",
        "minigrad/foreign.py",
        "write scatter_add() for a sum",
        "refused",
        r"ArgumentError: scatter_?: expected no reduce",
    ),
    "vector code": Choice(
        "At NaN some gradients of PyTorch's are others in its vector code than in its scalar code; ours are those of "
        "the scalar code.",
        "minigrad/ops/activation.py",
        "as in PyTorch's scalar code, but not in all of its vector code",
        "differs",
        r"gradient 0: \S+ for (nan|0.0) at",
        r"nn\.functional\.(celu|elu|hardshrink|hardswish|hardtanh|relu6|selu|softshrink)",
    ),
    "a rounded slope": Choice(
        "The slopes of celu and hardsigmoid are exact in float64; PyTorch's have the rounding of a float32.",
        "minigrad/ops/activation.py",
        "else g·e^(x/alpha)",
        "differs",
        r"gradient 0: \S+ for \S+ at",
        r"nn\.functional\.(celu|hardsigmoid)",
        "float64",
        near=2e-7,
    ),
    "weights of one key": Choice(
        "The gradient of attention is that of its softmax, of whose terms little is left where one key has nearly all "
        "the weight: to float32's rounding of the largest.",
        "minigrad/ops/attention.py",
        "ds = p · (h - Σ p·h)",
        "differs",
        r"gradient 0: \S+ for \S+",
        r"nn\.functional\.scaled_dot_product_attention",
        "float32",
        near=2e-2,
    ),
    "gelu of infinity": Choice(
        "gelu(inf) is inf; PyTorch's vector code gives NaN, its scalar code inf.",
        "minigrad/ops/gated.py",
        "inf of inf",
        "differs",
        r"output: inf for nan",
        r"nn\.functional\.gelu",
        "with inf",
    ),
}


def choice_of(name, note, outcome):
    """The choice that an outcome is the doing of, or None."""
    for key, choice in CHOICES.items():
        if (
            outcome.word == choice.outcome
            and re.match(choice.reason, outcome.reason, re.DOTALL)
            and re.fullmatch(choice.ops, name)
            and re.search(choice.notes, note)
            and (choice.near == math.inf or _distance(outcome.reason) <= choice.near)
        ):
            return key
    return None


def _distance(reason):
    """How far the numbers of "... A for B ..." are from each other, relative to B."""
    ours, theirs = (float(number) for number in re.search(r"(\S+) for (\S+)", reason).groups())
    return abs(ours - theirs) / abs(theirs)
