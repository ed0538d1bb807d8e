"""Cases for the layers of minigrad/nn: each is gradchecked in its inputs and parameters, and compared with PyTorch's.

A case makes one layer on both sides by the same text, so arguments, their order and their defaults are compared too.
A test fails when a layer of `nn.__all__` has no case here, or no row in tests/refusals.
"""

from minigrad import nn as ours_nn
from tests.cases.case import Case, normal, uniform

IMAGES, SERIES, ROWS = normal((2, 4, 4, 5)), normal((3, 4, 5)), normal((5, 4))
PAIR, TRIPLE = normal((4, 3), (4, 3)), normal((4, 3), (4, 3), (4, 3))


def layer_case(layer, label, make, inputs, training=True):
    """A call of one layer: after its arguments come values for each of its parameters, by which it is differentiated.

    Args:
        make: Makes the layer from `minigrad.nn` or `torch.nn`.
        inputs: Draws the arguments of the call.
    """
    names = [name for name, _ in make(ours_nn).named_parameters()]
    shapes = [param.shape for param in make(ours_nn).parameters()]

    def ours(*values):
        module = make(ours_nn).train(training)
        split = len(values) - len(names)
        for name, value in zip(names, values[split:]):
            path, _, leaf = name.rpartition(".")
            owner = module.get_submodule(path)
            owner._parameters[leaf] = owner.__dict__[leaf] = value
        for _, buffer in module.named_buffers():
            buffer.data = buffer.data.astype(values[0].dtype) if buffer.data.dtype.kind == "f" else buffer.data
        return module(*values[:split])

    def theirs(torch, *values):
        module = make(torch.nn).to(next((v.dtype for v in values if v.is_floating_point()))).train(training)
        split = len(values) - len(names)
        return torch.func.functional_call(module, dict(zip(names, values[split:])), values[:split])

    return Case(layer, label, lambda rng: [*inputs(rng), *normal(*shapes)(rng)], ours, theirs)


def _holding(name, *args):
    """A module that runs, or multiplies by, all that a container holds."""

    def make(nn):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.held = getattr(nn, name)(*[arg(nn) for arg in args])

            def forward(self, x):
                held = self.held.values() if name.endswith("Dict") else self.held
                for one in held:
                    x = one(x) if isinstance(one, nn.Module) else x * one
                return x

        return Net()

    return make


def _layers(nn):
    return [nn.Linear(4, 3), nn.Linear(3, 2)]


def _vectors(nn):
    return [nn.Linear(4, 3).bias[:1], nn.Linear(4, 4).bias]


def _named(list_of):
    return lambda nn: {f"x{i}": held for i, held in enumerate(list_of(nn))}


def _indices(high, *shape):
    return lambda rng: [rng.integers(0, high, shape)]


def _classes(rng):
    return [rng.standard_normal((4, 3)), rng.integers(0, 3, 4)]


def _probabilities(rng):
    return uniform(0.1, 0.9, (4, 3), (4, 3))(rng)


def _signed(*shapes):
    return lambda rng: [*normal(*shapes)(rng), rng.integers(0, 2, 4) * 2 - 1]


def _each(layers, inputs, label="default", **options):
    return [layer_case(name, label, _maker(name, options), inputs) for name in layers]


def _maker(name, options):
    return lambda nn: getattr(nn, name)(**options)


def _hard_sigmoid(nn):
    """PyTorch's takes a sixth in float32, also of float64."""
    if nn is ours_nn:
        return nn.Hardsigmoid()
    layer = nn.ReLU6()
    layer.forward = lambda x: nn.functional.relu6(x + 3) / 6
    return layer


LAYERS = [
    layer_case("Linear", "bias", lambda nn: nn.Linear(4, 3), ROWS),
    layer_case("Linear", "none", lambda nn: nn.Linear(5, 2, bias=False), SERIES),
    layer_case("Conv2d", "default", lambda nn: nn.Conv2d(4, 2, 3), IMAGES),
    layer_case("Conv2d", "all", lambda nn: nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2), 2, False), IMAGES),
    layer_case("Conv2d", "same", lambda nn: nn.Conv2d(4, 2, (2, 3), padding="same", dilation=2), IMAGES),
    layer_case("MaxPool2d", "default", lambda nn: nn.MaxPool2d(2), IMAGES),
    layer_case("MaxPool2d", "all", lambda nn: nn.MaxPool2d((3, 2), 2, (1, 0), ceil_mode=True), IMAGES),
    layer_case("AvgPool2d", "default", lambda nn: nn.AvgPool2d(2), IMAGES),
    layer_case("AvgPool2d", "all", lambda nn: nn.AvgPool2d(3, 2, 1, True, False), IMAGES),
    layer_case("AdaptiveAvgPool2d", "pair", lambda nn: nn.AdaptiveAvgPool2d((2, None)), IMAGES),
    layer_case("BatchNorm1d", "rows", lambda nn: nn.BatchNorm1d(4), ROWS),
    layer_case("BatchNorm1d", "series", lambda nn: nn.BatchNorm1d(4, 1e-3, None, bias=False), SERIES),
    layer_case("BatchNorm1d", "evaluated", lambda nn: nn.BatchNorm1d(4), ROWS, training=False),
    layer_case("BatchNorm1d", "untracked", lambda nn: nn.BatchNorm1d(4, 1e-3, 0.3, False, False), ROWS, training=False),
    layer_case("BatchNorm2d", "default", lambda nn: nn.BatchNorm2d(4), IMAGES),
    layer_case("LayerNorm", "default", lambda nn: nn.LayerNorm(4), ROWS),
    layer_case("LayerNorm", "all", lambda nn: nn.LayerNorm((4, 5), 0.1, True, False), SERIES),
    layer_case("GroupNorm", "default", lambda nn: nn.GroupNorm(2, 4), IMAGES),
    layer_case("GroupNorm", "all", lambda nn: nn.GroupNorm(4, 4, 0.1, bias=False), SERIES),
    layer_case("Dropout", "none", lambda nn: nn.Dropout(0.0), ROWS),
    layer_case("Dropout", "evaluated", lambda nn: nn.Dropout(), ROWS, training=False),
    layer_case("Dropout2d", "evaluated", lambda nn: nn.Dropout2d(), IMAGES, training=False),
    layer_case("Embedding", "default", lambda nn: nn.Embedding(5, 3), _indices(5, 2, 3)),
    layer_case("Embedding", "padded", lambda nn: nn.Embedding(5, 3, padding_idx=-1), _indices(4, 4)),
    *_each(["ReLU", "ReLU6", "Hardtanh", "Hardswish", "SiLU", "Mish", "Sigmoid", "LogSigmoid"], ROWS),
    *_each(["Softsign", "Tanh", "Tanhshrink", "Softshrink", "GELU", "LeakyReLU", "PReLU", "ELU", "CELU"], ROWS),
    *_each(["SELU", "Softplus", "GLU", "Identity"], ROWS),
    layer_case("Hardsigmoid", "default", _hard_sigmoid, ROWS),
    layer_case("Hardtanh", "all", lambda nn: nn.Hardtanh(-0.5, 0.7), ROWS),
    layer_case("Softshrink", "all", lambda nn: nn.Softshrink(0.3), ROWS),
    layer_case("PReLU", "channels", lambda nn: nn.PReLU(4, 0.1), SERIES),
    layer_case("CELU", "alpha", lambda nn: nn.CELU(0.5), ROWS),
    layer_case("GLU", "middle", lambda nn: nn.GLU(1), SERIES),
    layer_case("GELU", "tanh", lambda nn: nn.GELU("tanh"), ROWS),
    layer_case("LeakyReLU", "slope", lambda nn: nn.LeakyReLU(0.2), ROWS),
    layer_case("ELU", "alpha", lambda nn: nn.ELU(0.5), ROWS),
    layer_case("Softplus", "all", lambda nn: nn.Softplus(2.0, 1.0), ROWS),
    *_each(["Softmax", "LogSoftmax"], SERIES, "middle", dim=1),
    layer_case("Flatten", "default", lambda nn: nn.Flatten(), SERIES),
    layer_case("Flatten", "two", lambda nn: nn.Flatten(0, 1), SERIES),
    layer_case("Unflatten", "two", lambda nn: nn.Unflatten(1, (2, -1)), SERIES),
    layer_case("Sequential", "two", lambda nn: nn.Sequential(*_layers(nn)), ROWS),
    layer_case("ModuleList", "two", _holding("ModuleList", _layers), ROWS),
    layer_case("ModuleDict", "two", _holding("ModuleDict", _named(_layers)), ROWS),
    layer_case("ParameterList", "two", _holding("ParameterList", _vectors), ROWS),
    layer_case("ParameterDict", "two", _holding("ParameterDict", _named(_vectors)), ROWS),
    # losses
    *_each(["MSELoss", "L1Loss", "HuberLoss", "SmoothL1Loss"], PAIR),
    *_each(["HuberLoss"], PAIR, "narrow", reduction="sum", delta=0.3),
    *_each(["SmoothL1Loss"], PAIR, "narrow", reduction="none", beta=0.3),
    *_each(["CrossEntropyLoss", "NLLLoss"], _classes),
    *_each(["CrossEntropyLoss"], _classes, "all", ignore_index=1, reduction="sum", label_smoothing=0.1),
    *_each(["BCELoss", "BCEWithLogitsLoss", "PoissonNLLLoss"], _probabilities),
    *_each(["KLDivLoss"], _probabilities, "batch", reduction="batchmean"),
    *_each(["KLDivLoss"], _probabilities, "logarithms", reduction="sum", log_target=True),
    *_each(["PoissonNLLLoss"], _probabilities, "all", log_input=False, full=True, eps=0.1, reduction="none"),
    *_each(["GaussianNLLLoss"], uniform(0.1, 0.9, (4, 3), (4, 3), (4, 3))),
    *_each(["GaussianNLLLoss"], uniform(0.1, 0.9, (4, 3), (4, 3), (4, 1)), "all", full=True, reduction="none"),
    *_each(["CosineEmbeddingLoss"], _signed((4, 3), (4, 3)), margin=0.2),
    *_each(["HingeEmbeddingLoss"], _signed((3, 4)), margin=0.2),
    *_each(["MarginRankingLoss"], _signed((4,), (4,)), margin=0.2),
    *_each(["TripletMarginLoss"], TRIPLE),
    *_each(["TripletMarginLoss"], TRIPLE, "all", margin=2.0, p=1.0, eps=0.1, swap=True, reduction="none"),
    *_each(["CosineSimilarity", "PairwiseDistance"], PAIR),
    layer_case("CosineSimilarity", "all", lambda nn: nn.CosineSimilarity(0, 0.01), PAIR),
    layer_case("PairwiseDistance", "all", lambda nn: nn.PairwiseDistance(1.0, 0.1, True), PAIR),
]
