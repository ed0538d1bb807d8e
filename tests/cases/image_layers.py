"""Cases for the layers of images and of sequences: see tests/cases/layers.py."""

from tests.cases.case import normal
from tests.cases.layers import SERIES, layer_case

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
    layer_case("AdaptiveAvgPool1d", "two", lambda nn: nn.AdaptiveAvgPool1d(2), SERIES),
]
