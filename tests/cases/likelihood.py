"""Cases for minigrad/ops/likelihood.py."""

from minigrad import ops
from tests.cases.case import Case, normal, uniform


def _case(op, label, inputs, theirs=None, **options):
    return Case(
        op,
        label,
        inputs,
        lambda *a: getattr(ops, op)(*a, **options),
        lambda t, *a: (theirs(t, *a, **options) if theirs else getattr(t.nn.functional, op)(*a, **options)),
    )


def _distributions(*shape):
    """Logarithms of probabilities, and probabilities."""
    return uniform(0.1, 0.9, shape, shape)


def _kl_theirs(t, x, y, reduction, log_target):
    """Without the warning of "mean" that it is no mean over the batch."""
    mean = reduction == "mean"
    losses = t.nn.functional.kl_div(x, y, reduction="none" if mean else reduction, log_target=log_target)
    return losses.mean() if mean else losses


def _with_weight(rng):
    return [*uniform(0.05, 0.95, (4, 3), (4, 3))(rng), rng.integers(1, 4, 3)]


def _weighted(reduction):
    op = "binary_cross_entropy"
    return Case(
        op,
        f"weighted_{reduction}",
        _with_weight,
        lambda x, y, w: getattr(ops, op)(x, y, w.to(x.dtype), reduction),
        lambda t, x, y, w: getattr(t.nn.functional, op)(x, y, w.to(x.dtype).expand(4, 3), reduction=reduction),
    )


def _labelled(rng):
    """Logits of both signs, some far out, and labels; as integers, so that they are not differentiated."""
    return [rng.standard_normal((5, 3)) * 8, rng.integers(0, 2, (5, 3))]


def _focal_theirs(t, x, y, alpha=0.25, gamma=2.0, reduction="none"):
    """As torchvision composes it."""
    p = t.sigmoid(x)
    missed = 1 - (p * y + (1 - p) * (1 - y))
    losses = t.nn.functional.binary_cross_entropy_with_logits(x, y, reduction="none") * missed**gamma
    losses = losses if alpha < 0 else losses * (alpha * y + (1 - alpha) * (1 - y))
    return losses if reduction == "none" else getattr(losses, reduction)()


def _focal(label, inputs, **options):
    op = "sigmoid_focal_loss"
    return Case(
        op,
        label,
        inputs,
        lambda x, y: getattr(ops, op)(x, y.to(x.dtype), **options),
        lambda t, x, y: _focal_theirs(t, x, y.to(x.dtype), **options),
    )


def _counts(rng):
    return [rng.uniform(0.5, 2.0, (3, 4)), rng.uniform(1.2, 5.0, (3, 4)) * (rng.random((3, 4)) < 0.7)]


def _variances(*shape):
    return lambda rng: [*normal((3, 4), (3, 4))(rng), rng.uniform(0.5, 2.0, shape)]


CASES = (
    [
        _case("kl_div", f"{reduction}_{log:d}", _distributions(3, 4), _kl_theirs, reduction=reduction, log_target=log)
        for reduction in ("mean", "batchmean", "sum", "none")
        for log in (False, True)
    ]
    + [_case("kl_div", "empty", _distributions(0, 3), reduction="sum")]
    + [
        _case("binary_cross_entropy", reduction, uniform(0.05, 0.95, (3, 4), (3, 4)), reduction=reduction)
        for reduction in ("mean", "sum", "none")
    ]
    + [_weighted("mean"), _weighted("none")]
    + [
        _focal("none", _labelled),
        _focal("mean", lambda rng: [*normal((3, 4))(rng), *uniform(0.1, 0.9, (3, 4))(rng)], reduction="mean"),
        _focal("unweighted", _labelled, alpha=-1, gamma=1.5, reduction="sum"),
        _focal("cross_entropy", _labelled, alpha=0.6, gamma=0.0),
        _case("poisson_nll_loss", "mean", _counts),
        _case("poisson_nll_loss", "full", _counts, full=True, reduction="none"),
        _case("poisson_nll_loss", "of_means", _counts, log_input=False, eps=1e-3, reduction="sum"),
        _case("gaussian_nll_loss", "mean", _variances(3, 4)),
        _case("gaussian_nll_loss", "one_for_each_row", _variances(3), full=True, reduction="none"),
        _case("gaussian_nll_loss", "broadcast", lambda rng: [*normal((3, 4), ())(rng), rng.uniform(0.5, 2.0, 3)]),
        _case("gaussian_nll_loss", "one_for_each_column", _variances(3, 1), reduction="sum"),
    ]
)
