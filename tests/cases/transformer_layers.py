"""Cases for the layers that transformers are made of: see tests/cases/layers.py."""

import numpy as np

from tests.cases.case import normal
from tests.cases.layers import ROWS, SERIES, layer_case


def _attending(make, *, weights=True, **options):
    """A module that calls one of attention, and gives all that it gives in a row."""

    def made(nn):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.held = make(nn)

            def forward(self, query, key, value, *masks):
                names = ("key_padding_mask", "attn_mask")[-len(masks) :] if masks else ()
                found = self.held(query, key, value, need_weights=weights, **dict(zip(names, masks)), **options)
                return found[0] if found[1] is None else (found[0].mean() + found[1].reshape(-1))

        return Net()

    return made


def _self(*shape):
    """One sequence three times, as three tensors."""
    return lambda rng: normal(shape)(rng) * 3


def _padded(rng):
    """Of three samples with 4, 2 and 3 places, the rest being padding; no place sees a later one."""
    padding = np.arange(4) >= np.array([4, 2, 3])[:, None]
    return [*normal((3, 4, 2))(rng) * 3, padding, np.triu(np.ones((4, 4), bool), 1)]


def _encoded(rng):
    query, _, _, padding, causal = _padded(rng)
    return [query, causal, padding]


def _added(rng):
    """Masks of floats, that of each sample and head by itself."""
    return [*normal((3, 2, 4), (5, 2, 4), (5, 2, 4), (2, 5), (4, 3, 5))(rng)]


def _encoder(nn):
    layer = nn.TransformerEncoderLayer(2, 1, 3, 0.0, "gelu", batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, nn.LayerNorm(2), enable_nested_tensor=False)


ATTENTION = "MultiheadAttention"
LAYERS = [
    layer_case("RMSNorm", "default", lambda nn: nn.RMSNorm(4), ROWS),
    layer_case("RMSNorm", "all", lambda nn: nn.RMSNorm((4, 5), 0.1, False), SERIES),
    layer_case(ATTENTION, "default", _attending(lambda nn: nn.MultiheadAttention(4, 2)), _self(3, 2, 4)),
    layer_case(
        ATTENTION, "padded", _attending(lambda nn: nn.MultiheadAttention(2, 1, batch_first=True), weights=False),
        _padded,
    ),
    layer_case(
        ATTENTION, "all",
        _attending(lambda nn: nn.MultiheadAttention(4, 2, 0.0, False, True, True), average_attn_weights=False), _added,
    ),
    layer_case(
        ATTENTION, "apart", _attending(lambda nn: nn.MultiheadAttention(4, 2, kdim=3, vdim=2), weights=False),
        normal((3, 2, 4), (5, 2, 3), (5, 2, 2)),
    ),
    layer_case(ATTENTION, "unbatched", _attending(lambda nn: nn.MultiheadAttention(4, 2)), normal(*[(3, 4)] * 3)),
    layer_case(
        "TransformerEncoderLayer", "default", lambda nn: nn.TransformerEncoderLayer(2, 1, 3, dropout=0.0),
        normal((3, 2, 2)),
    ),
    layer_case("TransformerEncoder", "all", _encoder, _encoded),
]
