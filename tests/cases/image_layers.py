"""Cases for the layers of images and of sequences: see tests/cases/layers.py."""

from tests.cases.case import normal
from tests.cases.layers import IMAGES, ROWS, SERIES, layer_case

SMALL = normal((2, 4, 3, 2))


def _to_size(nn):
    """A transposed convolution that is asked for a size of its output."""
    layer = nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1)
    forward = layer.forward
    layer.forward = lambda x: forward(x, output_size=(2, 3, 6, 4))
    return layer


LAYERS = [
    layer_case("Conv1d", "default", lambda nn: nn.Conv1d(4, 3, 3), SERIES),
    layer_case("Conv1d", "all", lambda nn: nn.Conv1d(4, 6, (2,), (2,), 1, 2, 2, False), SERIES),
    layer_case("ConvTranspose1d", "default", lambda nn: nn.ConvTranspose1d(4, 3, 3), SERIES),
    layer_case("ConvTranspose1d", "all", lambda nn: nn.ConvTranspose1d(4, 6, 3, 2, (1,), 1, 2, False, 2), SERIES),
    layer_case("ConvTranspose2d", "default", lambda nn: nn.ConvTranspose2d(4, 3, 3), SMALL),
    layer_case("ConvTranspose2d", "all", lambda nn: nn.ConvTranspose2d(4, 6, (3, 2), 2, 1, (1, 0), 2, False, 2), SMALL),
    layer_case("ConvTranspose2d", "size", _to_size, SMALL),
    layer_case("MaxPool1d", "default", lambda nn: nn.MaxPool1d(2), SERIES),
    layer_case("MaxPool1d", "all", lambda nn: nn.MaxPool1d(3, 2, 1, 1, ceil_mode=True), SERIES),
    layer_case("AvgPool1d", "default", lambda nn: nn.AvgPool1d(2), SERIES),
    layer_case("AvgPool1d", "all", lambda nn: nn.AvgPool1d(3, 2, 1, True, False), SERIES),
    layer_case("InstanceNorm1d", "default", lambda nn: nn.InstanceNorm1d(4), SERIES),
    layer_case("InstanceNorm1d", "unbatched", lambda nn: nn.InstanceNorm1d(5, affine=True), normal((5, 4))),
    layer_case("InstanceNorm2d", "all", lambda nn: nn.InstanceNorm2d(4, 1e-3, 0.2, True, True), SMALL),
    layer_case("InstanceNorm2d", "evaluated", lambda nn: nn.InstanceNorm2d(4, 0.1, None, True, True), SMALL, False),
    *[
        layer_case(f"{kind}Pad{axes}d", "one", lambda nn, name=f"{kind}Pad{axes}d": getattr(nn, name)(1), inputs)
        for kind in ("Zero", "Reflection", "Replication", "Circular")
        for axes, inputs in ((1, SERIES), (2, IMAGES))
    ],
    layer_case("ConstantPad1d", "two", lambda nn: nn.ConstantPad1d((2, 1), 0.5), SERIES),
    layer_case("ConstantPad2d", "four", lambda nn: nn.ConstantPad2d((1, -1, 0, 2), 0.5), IMAGES),
    layer_case("PixelShuffle", "two", lambda nn: nn.PixelShuffle(2), IMAGES),
    layer_case("PixelUnshuffle", "two", lambda nn: nn.PixelUnshuffle(2), normal((1, 2, 4, 2))),
    layer_case("Upsample", "two", lambda nn: nn.Upsample(scale_factor=2), IMAGES),
    layer_case("Upsample", "all", lambda nn: nn.Upsample((3, 7), None, "bilinear", False), IMAGES),
    layer_case("UpsamplingNearest2d", "size", lambda nn: nn.UpsamplingNearest2d((3, 7)), IMAGES),
    layer_case("UpsamplingBilinear2d", "factor", lambda nn: nn.UpsamplingBilinear2d(scale_factor=2), IMAGES),
    layer_case("Softmax2d", "default", lambda nn: nn.Softmax2d(), IMAGES),
    layer_case("Softmin", "middle", lambda nn: nn.Softmin(1), SERIES),
    layer_case("Hardshrink", "narrow", lambda nn: nn.Hardshrink(0.2), ROWS),
    layer_case("Threshold", "plain", lambda nn: nn.Threshold(0.1, 2.0), ROWS),
    layer_case("AdaptiveAvgPool1d", "two", lambda nn: nn.AdaptiveAvgPool1d(2), SERIES),
]
