"""How the samples of a run become batches on a rank's device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigrad.backend.device import Device, to_device
from minigrad.data.collate import default_collate, map_tensors
from minigrad.data.dataset import Dataset, batch_reader, read_samples
from minigrad.data.order import Indices
from minigrad.tensor import Tensor


class SampleReader:
    """Reads batches of a dataset; what samples draw at random comes from this context's noise stream.

    Example:
        >>> from minigrad import tensor
        >>> from minigrad.data import TensorDataset
        >>> (x,) = SampleReader(TensorDataset(tensor([1.0, 2.0, 3.0])), Device("cpu")).read([2, 0])
        >>> x.tolist()
        [3.0, 1.0]
    """

    def __init__(self, dataset: Dataset, device: Device) -> None:
        self._dataset, self._device = dataset, device
        self._read_rows = batch_reader(dataset)

    def read(self, indices: Sequence[int] | Indices) -> Any:
        """The batch of these samples, on the device."""
        if self._read_rows is not None:
            batch = self._read_rows(indices)
        else:
            batch = default_collate(read_samples(self._dataset, [int(index) for index in indices]))
        return batch if self._device.type == "cpu" else map_tensors(self._move, batch)

    def _move(self, tensor: Tensor) -> Tensor:
        return Tensor(to_device(tensor.data, self._device))
