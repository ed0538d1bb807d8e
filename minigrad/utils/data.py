"""All of `minigrad.data`, for `from minigrad.utils.data import DataLoader`."""

from minigrad.data import *
from minigrad.data import __all__ as __all__
