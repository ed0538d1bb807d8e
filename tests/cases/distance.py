"""Cases for minigrad/ops/distance.py."""

import numpy as np

from minigrad import ops
from tests.cases.case import Case, normal


def _case(op, label, inputs, differentiable=True, **options):
    return Case(
        op,
        label,
        inputs,
        lambda *a: getattr(ops, op)(*a, **options),
        lambda t, *a: getattr(t.nn.functional, op)(*a, **options),
        differentiable,
    )


def _signed(targets, *shapes):
    """Normal arguments, and a target of 1, -1 and, of any length, one 0."""

    def inputs(rng):
        target = np.asarray(rng.integers(0, 2, targets) * 2 - 1)
        target.reshape(-1)[1:2] = 0
        return [*normal(*shapes)(rng), target]

    return inputs


CASES = (
    [
        _case("normalize", "rows", normal((3, 4))),
        _case("normalize", "third_power", normal((2, 3, 2)), p=3.0, dim=-1),
        _case("normalize", "two_axes", normal((2, 3, 2)), p=1, dim=(0, 2)),
        _case("normalize", "short", normal((2, 3)), dim=0, eps=10.0),
        _case("normalize", "empty", normal((0, 3))),
        _case("cosine_similarity", "rows", normal((3, 4), (3, 4))),
        _case("cosine_similarity", "broadcast", normal((2, 1, 4), (3, 4)), dim=-1),
        _case("cosine_similarity", "one_short", normal((2, 3), (2, 3)), False, dim=0, eps=1.5),  # not what it computes
        _case("cosine_similarity", "vector", normal((4,), (4,)), dim=0),
        _case("pairwise_distance", "rows", normal((3, 4), (3, 4))),
        _case("pairwise_distance", "broadcast", normal((2, 3, 4), (4,)), p=1.0, keepdim=True),
        _case("pairwise_distance", "largest", normal((3, 4), (3, 4)), p=float("inf"), eps=0.1),
        _case("pairwise_distance", "vector", normal((4,), (4,)), p=3.0),
    ]
    + [
        _case("cosine_embedding_loss", reduction, _signed((4,), (4, 3), (4, 3)), margin=0.1, reduction=reduction)
        for reduction in ("mean", "sum", "none")
    ]
    + [
        _case("cosine_embedding_loss", "vector", _signed((), (3,), (3,))),
        _case("hinge_embedding_loss", "mean", _signed((3, 4), (3, 4))),
        _case("hinge_embedding_loss", "none", _signed((4,), (3, 4)), margin=0.3, reduction="none"),
        _case("hinge_embedding_loss", "sum", _signed((), ()), reduction="sum"),
        _case("margin_ranking_loss", "mean", _signed((3, 4), (3, 4), (3, 4))),
        _case("margin_ranking_loss", "none", _signed((3, 1), (3, 4), (1, 4)), margin=0.5, reduction="none"),
        _case("margin_ranking_loss", "sum", _signed((0,), (0,), (0,)), reduction="sum"),
        _case("triplet_margin_loss", "mean", normal((4, 3), (4, 3), (4, 3))),
        _case("triplet_margin_loss", "swap", normal((4, 3), (4, 3), (4, 3)), swap=True, reduction="none"),
        _case("triplet_margin_loss", "power", normal((4, 3), (1, 3), (4, 3)), p=1.0, margin=2.0, reduction="sum"),
    ]
)
