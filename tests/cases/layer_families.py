"""The cases of layers by family, each of which has a file of recorded values of its own."""

from __future__ import annotations

from tests.cases import image_layers, layers, recurrent_layers, transformer_layers

LAYER_FAMILIES = {
    "image_layers": image_layers.LAYERS,
    "layers": layers.LAYERS,
    "recurrent_layers": recurrent_layers.LAYERS,
    "transformer_layers": transformer_layers.LAYERS,
}
LAYERS = [case for cases in LAYER_FAMILIES.values() for case in cases]
