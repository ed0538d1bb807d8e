"""The CUDA sources, shipped as package data; `minigrad.backend.kernels` reads them."""
