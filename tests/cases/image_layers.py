"""Cases for the layers of images and of sequences: see tests/cases/layers.py."""

LAYERS = []
