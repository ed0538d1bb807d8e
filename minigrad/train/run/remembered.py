"""What a rank goes back to where a round comes to nothing: copies of what its steps change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minigrad.backend.random import get_rng_state, set_rng_state
from minigrad.data.collate import map_tensors
from minigrad.nn.module import Module
from minigrad.nn.state import overwrite
from minigrad.tensor import Tensor


class BuffersOf:
    """The buffers of a module, those too that are in no state_dict, as an object with a state.

    Args:
        module: Whose.
    """

    def __init__(self, module: Module) -> None:
        self._module = module

    def state_dict(self) -> dict[str, Any]:
        """By name; they share memory with the module's."""
        return {name: buffer.detach() for name, buffer in self._module.named_buffers()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Overwrite them."""
        for name, buffer in self._module.named_buffers():
            overwrite(buffer, state[name].data)


class Remembered:
    """The states that objects have now, copied, and the random streams of this context.

    Args:
        objects: By name; each has state_dict() and load_state_dict().

    Example:
        >>> from minigrad import nn
        >>> layer = nn.Linear(1, 1)
        >>> kept, before = Remembered({"layer": layer}), layer.weight.item()
        >>> _ = layer.weight.data.fill(7.0)
        >>> kept.put_back()
        >>> layer.weight.item() == before
        True
    """

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._objects = dict(objects)
        self._states = {name: map_tensors(_copy, each.state_dict()) for name, each in self._objects.items()}
        self._streams = get_rng_state()

    def put_back(self) -> None:
        """Give all of them these states again."""
        for name, each in self._objects.items():
            each.load_state_dict(self._states[name])
        set_rng_state(self._streams)


def _copy(tensor: Tensor) -> Tensor:
    with tensor.device.current():
        return Tensor(tensor.data.copy())
