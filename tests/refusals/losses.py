"""What losses and distances of vectors refuse, as operations and as layers."""

import numpy as np

from minigrad import Tensor, nn, ops
from minigrad.errors import ArgumentError, AutogradError, DtypeError, ShapeError
from tests.refusals import each, run

X, Y, ROW = Tensor(np.full((2, 3), 0.5)), Tensor(np.full((2, 3), 0.25)), Tensor(np.full(3, 0.5))
SIGNS = Tensor(np.array([1, -1]))
SINGLE = Tensor(np.full((2, 3), 0.5, np.float32))

PAIRS = ["kl_div", "binary_cross_entropy", "sigmoid_focal_loss", "poisson_nll_loss", "huber_loss", "smooth_l1_loss"]

ROWS = [
    # of a prediction and a target
    *each((lambda name: getattr(ops, name)(X, ROW), ShapeError, r"%s: .* one shape, got \(2, 3\) and \(3,\)"), *PAIRS),
    *each((lambda name: getattr(ops, name)(X, 0.5), DtypeError, "%s: expected tensors, got float"), *PAIRS),
    *each((lambda name: getattr(ops, name)(X, SINGLE), DtypeError, "%s: .* got float64 and float32"), *PAIRS),
    *each(
        (lambda name: getattr(ops, name)(X, Y, reduction="avg"), ArgumentError, "%s: expected reduction .*got 'avg'"),
        *PAIRS,
    ),
    (lambda: ops.mse_loss(X, Y, "batchmean"), ArgumentError, "mse_loss: expected reduction"),
    (lambda: ops.kl_div(X, Y, log_target=1), ArgumentError, "kl_div: expected log_target to be True or False, got 1"),
    *each(
        (run, ArgumentError),
        (lambda: ops.binary_cross_entropy(X * 4, Y), r"input in \[0, 1\], got values from 2.0 to 2.0: of logits take"),
        (lambda: ops.binary_cross_entropy(X, Y - 1), r"target in \[0, 1\], got values from -0.75 to -0.75$"),
        (lambda: ops.binary_cross_entropy(X * np.nan, Y), r"input in \[0, 1\], got values from nan"),
        (lambda: ops.sigmoid_focal_loss(X, Y, alpha=2), r"expected alpha in \[0, 1\], or -1 for none, got 2"),
        (lambda: ops.sigmoid_focal_loss(X, Y, gamma=-1.0), "sigmoid_focal_loss: expected gamma .* >= 0, got -1.0"),
        (lambda: ops.poisson_nll_loss(X, Y, eps=0.0), "poisson_nll_loss: expected eps .* > 0, got 0.0"),
        (lambda: ops.poisson_nll_loss(X, Y, "yes"), "poisson_nll_loss: expected log_input to be True or False"),
        (lambda: ops.gaussian_nll_loss(X, Y, X, 1), "gaussian_nll_loss: expected full to be True or False, got 1"),
        (lambda: ops.gaussian_nll_loss(X, Y, X, eps=0.0), "gaussian_nll_loss: expected eps .* > 0, got 0.0"),
        (lambda: ops.gaussian_nll_loss(X, Y, X - 1), "gaussian_nll_loss: expected var >= 0, got -0.5"),
        (lambda: ops.gaussian_nll_loss(X, Y, -1.0), "gaussian_nll_loss: expected var .* >= 0, got -1.0"),
    ),
    (lambda: ops.binary_cross_entropy(X, Y, Tensor(np.ones(2))), ShapeError, r"weight to broadcast to \(2, 3\)"),
    (lambda: ops.binary_cross_entropy(X, Y, Tensor(np.ones(3), True)), AutogradError, "weight without gradient"),
    (lambda: ops.gaussian_nll_loss(X, Y, ROW), ShapeError, r"var of shape \(2, 3\), or \(2,\), got \(3,\)"),
    (lambda: ops.gaussian_nll_loss(X, Y, "1"), DtypeError, "expected var to be a tensor or a number, got str"),
    (lambda: ops.gaussian_nll_loss(X, ROW[:2], X), ShapeError, r"gaussian_nll_loss: .* \(2, 3\) and \(2,\)"),
    (lambda: ops.gaussian_nll_loss(X, 1.0, X), DtypeError, "gaussian_nll_loss: expected tensors, got float"),
    # of vectors
    (lambda: ops.normalize(ROW), ShapeError, r"normalize: expected an axis in \[-1, 1\), got 1"),
    (lambda: ops.normalize(SIGNS, dim=0), DtypeError, "normalize: expected a float tensor, got int64"),
    (lambda: ops.normalize(X, "fro"), ArgumentError, "normalize: expected p to be a number, got 'fro'"),
    (lambda: ops.normalize(X, eps=-1.0), ArgumentError, "normalize: expected eps .*got -1.0"),
    (lambda: ops.cosine_similarity(X, ROW, 2), ShapeError, r"cosine_similarity: expected an axis in \[-2, 2\), got 2"),
    (lambda: ops.cosine_similarity(X, Y, eps=0.0), ArgumentError, "cosine_similarity: expected eps .* > 0, got 0.0"),
    (lambda: ops.pairwise_distance(X, Y, p=None), ArgumentError, "pairwise_distance: expected p to be a number"),
    (lambda: ops.pairwise_distance(X, Y, keepdim=1), ArgumentError, "pairwise_distance: expected keepdim"),
    *each(
        (lambda name: getattr(ops, name)(X, Tensor(np.ones((4, 3)))), ShapeError, r"%s: .* \(2, 3\) and \(4, 3\)"),
        *["cosine_similarity", "pairwise_distance"],
    ),
    *each(
        (lambda name: getattr(ops, name)(X, SINGLE), DtypeError, "%s: expected x1, x2 of one dtype, got float64 and"),
        *["cosine_similarity", "pairwise_distance"],
    ),
    *each(
        (lambda name: getattr(ops, name)(X, Y, 1), DtypeError, "%s: expected target to be a tensor of 1 and -1"),
        *["cosine_embedding_loss", "margin_ranking_loss"],
    ),
    *each(
        (run, ShapeError),
        (lambda: ops.cosine_embedding_loss(X, ROW, SIGNS), r"cosine_embedding_loss: .*\(2, 3\), \(3,\) and \(2,\)"),
        (lambda: ops.cosine_embedding_loss(X, Y, Tensor(np.ones(3))), r"cosine_embedding_loss: .*\(2,\) and \(3,\)"),
        (lambda: ops.margin_ranking_loss(X, Y, SIGNS), r"margin_ranking_loss: .*\(2, 3\), \(2, 3\) and \(2,\)"),
        (lambda: ops.margin_ranking_loss(X, Y, Tensor(np.ones((4, 3)))), r"margin_ranking_loss: .* and \(4, 3\)"),
        (lambda: ops.hinge_embedding_loss(X, SIGNS), r"hinge_embedding_loss: .* \(2, 3\) and \(2,\)"),
        (lambda: ops.triplet_margin_loss(X, Y, ROW), r"triplet_margin_loss: .*\(2, 3\), \(2, 3\) and \(3,\)"),
    ),
    *each(
        (run, ArgumentError),
        (lambda: ops.cosine_embedding_loss(X, Y, SIGNS, None), "cosine_embedding_loss: expected margin"),
        (lambda: ops.margin_ranking_loss(X, Y, X, "1"), "margin_ranking_loss: expected margin"),
        (lambda: ops.hinge_embedding_loss(X, Y, np.inf), "hinge_embedding_loss: expected margin to be a finite number"),
        (lambda: ops.triplet_margin_loss(X, Y, X, 0.0), "triplet_margin_loss: expected margin .* > 0, got 0.0"),
        (lambda: ops.triplet_margin_loss(X, Y, X, swap=1), "triplet_margin_loss: expected swap"),
        (lambda: ops.triplet_margin_loss(X, Y, X, reduction=None), "triplet_margin_loss: expected reduction"),
    ),
    (lambda: ops.triplet_margin_loss(X, Y, [1.0]), DtypeError, "expected negative to be a tensor, got list"),
    # layers
    *each(
        (lambda name: getattr(nn, name)(reduction="avg"), ArgumentError, "%s: expected reduction to be one of 'mean'"),
        *["L1Loss", "NLLLoss", "BCEWithLogitsLoss"],
    ),
    *each(
        (run, ArgumentError),
        (lambda: nn.HuberLoss(delta=0.0), "HuberLoss: expected delta .* > 0, got 0.0"),
        (lambda: nn.SmoothL1Loss(beta=-1.0), "SmoothL1Loss: expected beta .* >= 0, got -1.0"),
        (lambda: nn.BCELoss(reduction="batchmean"), "BCELoss: expected reduction"),
        (lambda: nn.KLDivLoss(reduction="avg"), "KLDivLoss: expected reduction .*'batchmean', got 'avg'"),
        (lambda: nn.KLDivLoss(log_target=0), "KLDivLoss: expected log_target to be True or False, got 0"),
        (lambda: nn.PoissonNLLLoss(eps=0.0), "PoissonNLLLoss: expected eps"),
        (lambda: nn.GaussianNLLLoss(full="no"), "GaussianNLLLoss: expected full"),
        (lambda: nn.CosineEmbeddingLoss("1"), "CosineEmbeddingLoss: expected margin"),
        (lambda: nn.HingeEmbeddingLoss(None), "HingeEmbeddingLoss: expected margin"),
        (lambda: nn.MarginRankingLoss(np.nan), "MarginRankingLoss: expected margin"),
        (lambda: nn.TripletMarginLoss(-1.0), "TripletMarginLoss: expected margin .* > 0, got -1.0"),
        (lambda: nn.TripletMarginLoss(swap=0), "TripletMarginLoss: expected swap"),
        (lambda: nn.CosineSimilarity(1.5), "CosineSimilarity: expected dim to be an integer, got 1.5"),
        (lambda: nn.PairwiseDistance(keepdim=1), "PairwiseDistance: expected keepdim"),
    ),
    (lambda: nn.BCELoss(np.ones(3)), DtypeError, "BCELoss: expected weight to be a Tensor, got ndarray"),
]
