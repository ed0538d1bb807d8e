"""The parameters of one replica in their flat layout: what the reducer, `Replicas` and `average_gradients` work on.

It gives a plan its entries, and a bucket its range of memory, with zeros where a gradient is missing; afterwards it
says that what lies there are the gradients. What `grad_array` and its kin mean is said at `autograd.Variable`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from minigrad.backend.dtypes import Array
from minigrad.distributed.ddp.buckets import Bucket, Entry
from minigrad.nn.flat import FlatBuffer, fill_missing, flatten
from minigrad.nn.parameter import Parameter

Named = Sequence[tuple[str, Parameter]]


class Layout:
    """Parameters and their names, flat buffer by flat buffer, in the order in which they lie there.

    Args:
        named: The parameters in order of registration, frozen ones too, each once. Those that lie in no flat buffer
            get one.

    Attributes:
        buffers: The flat buffers; they may hold other parameters too.
        params, names: In the order of the layout.
        number: The place of each parameter in that order, by its id.
    """

    def __init__(self, named: Named) -> None:
        self.buffers = flatten([param for _, param in named])
        names = {id(param): name for name, param in named}
        self.params = [p for buffer in self.buffers for p in buffer.params if id(p) in names]
        self.names = [names[id(param)] for param in self.params]
        self.number = {id(param): i for i, param in enumerate(self.params)}

    def trainable(self) -> list[bool]:
        """Which parameters get a gradient now."""
        return [param.requires_grad for param in self.params]

    def entries(self) -> list[Entry]:
        """The entries of a bucket plan, padding behind a parameter included."""
        number = {id(buffer): i for i, buffer in enumerate(self.buffers)}
        entries = []
        for param, name in zip(self.params, self.names):
            buffer: FlatBuffer = param.flat
            (run,) = buffer.runs([param])
            entries.append(Entry(name, number[id(buffer)], *run, buffer.dtype.itemsize, param.requires_grad))
        return entries

    def check(self) -> None:
        """Refuse to go on when a parameter no longer lives where it was laid out.

        Raises:
            LayoutError: its data was replaced; it is named.
        """
        for buffer in self.buffers:
            buffer.check()

    def values(self) -> list[Array]:
        """The values of these parameters, range by range; nothing of others that lie in the same flat buffers."""
        return [
            buffer.data[start:stop]
            for buffer in self.buffers
            for start, stop in buffer.runs(param for param in self.params if param.flat is buffer)
        ]

    def gradients(self, bucket: Bucket) -> Array:
        """The range of the flat gradient that a bucket covers."""
        return self.buffers[bucket.buffer].grad[bucket.start : bucket.stop]

    def filled(self, bucket: Bucket) -> Array:
        """That range, with zeros where a parameter has no gradient."""
        fill_missing(self.params_of(bucket))
        return self.gradients(bucket)

    def params_of(self, bucket: Bucket) -> list[Parameter]:
        """The parameters of a bucket."""
        return [self.params[i] for i in bucket.entries]


def give_names(named: Iterable[tuple[str, Parameter]]) -> None:
    """Let parameters that have no name yet go by these in messages."""
    for name, param in named:
        param.name = param.name or name
