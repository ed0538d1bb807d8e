"""Collectives through which gradients flow."""

from minigrad.distributed.nn.functional import all_gather

__all__ = ["all_gather"]
