"""Cases for the layers that transformers are made of: see tests/cases/layers.py."""

from tests.cases.layers import ROWS, SERIES, layer_case

LAYERS = [
    layer_case("RMSNorm", "default", lambda nn: nn.RMSNorm(4), ROWS),
    layer_case("RMSNorm", "all", lambda nn: nn.RMSNorm((4, 5), 0.1, False), SERIES),
]
