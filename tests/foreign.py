"""A stand-in for PyTorch's tensor, as far as a program can take one that does not import PyTorch.

It gives its memory through `__dlpack__` and `__array__`, and refuses what PyTorch 2.13 refuses there, with its errors:
a tensor that requires grad, bfloat16 to NumPy, another device, no data. `tests/unit/test_foreign.py` holds it to that
under the marker `torch`.
"""

import numpy as np

from minigrad.backend.dtypes import as_dtype


class Dtype:
    """torch.float32 and the like."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"torch.{self.name}"


class ForeignTensor:
    """A tensor of another library on an array; `device` is "cpu", "cuda:0", or "meta", which has no data."""

    def __init__(self, array, requires_grad=False, device="cpu"):
        self._array, self.requires_grad, self.device = np.asarray(array), requires_grad, device
        self.dtype, self.shape = Dtype(self._array.dtype.name), tuple(self._array.shape)

    def __dlpack_device__(self):
        if self.device == "meta":
            raise ValueError("Unknown device type meta for Dlpack")
        return (1, 0) if self.device == "cpu" else (2, 0)

    def __dlpack__(self, **options):
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        if self.dtype.name == "bfloat16":
            raise RuntimeError("Unsupported dtype in DLTensor.")
        return self._array.__dlpack__(**options)

    def __array__(self, dtype=None, copy=None):
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        if self.device != "cpu" or self.dtype.name == "bfloat16":
            raise TypeError(f"can't convert a tensor of {self.dtype.name} on {self.device} to numpy")
        return np.array(self._array, dtype=dtype, copy=copy)

    def __bool__(self):
        if self._array.size != 1:
            raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")
        return bool(self._array)

    def __eq__(self, other):
        return ForeignTensor(self._array == getattr(other, "_array", other))

    def item(self):
        return self._array.item()

    def detach(self):
        return ForeignTensor(self._array, False, self.device)

    def cpu(self):
        return ForeignTensor(self._array.copy(), self.requires_grad)

    def new_empty(self, size):
        return ForeignTensor(np.empty(size, self._array.dtype))

    def short(self):
        return ForeignTensor(self._array.astype(np.int16))

    def view(self, dtype):
        if not isinstance(dtype, Dtype):
            raise TypeError(f"view(): argument must be a torch.dtype, not {type(dtype).__name__}")
        return ForeignTensor(self._array.view(as_dtype(dtype.name)), self.requires_grad, self.device)


class ForeignState(dict):
    """A state_dict of PyTorch's: a mapping with the version of each layer in `_metadata`."""

    def __init__(self, tensors, versions=None):
        super().__init__(tensors)
        self._metadata = {path: {"version": version} for path, version in (versions or {}).items()}


def foreign_state(module, versions=None):
    """The state_dict of a module of ours as that of another library."""
    return ForeignState({name: ForeignTensor(x.data) for name, x in module.state_dict().items()}, versions)
