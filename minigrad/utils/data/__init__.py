"""All of `minigrad.data`, for `from minigrad.utils.data import DataLoader`."""

from minigrad.data import *
from minigrad.data import __all__ as _names
from minigrad.utils.data import distributed as distributed

__all__ = sorted([*_names, "distributed"])
