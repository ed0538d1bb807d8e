"""Pieces of a tensor, whose gradients are written into one gradient of the whole.

Each piece is a view with a node of its own, where its gradient adds up and its hooks are. Behind them is one more node,
that of the whole: backward comes to it once, with an array that the pieces have filled, and gives that on. What no
piece has filled is zero. The array lies in memory as the whole does, so that the way back through views needs no copy.
An operation may write the gradient of a piece where it belongs (`room_for`).

Backwards may cross: a hook may call `grad` for what an outer backward has half done, whose gradients are set aside
meanwhile. So each array is known by who has written what into it, and no place is given out twice. It goes to the node
of the whole in the place of `grad_owned`: in a checkpoint the pieces may be those of another run than the whole.
"""

from __future__ import annotations

from typing import Any

from minigrad.autograd.tape import Edge, Node, accumulate
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.workspace import empty_in_order, memory_order
from minigrad.recording import is_grad_enabled
from minigrad.tensor import Tensor, record


class _Filling:
    """A gradient of the whole, in one backward: which places were given out, and which pieces are written."""

    __slots__ = ("array", "given", "written")

    def __init__(self, array: Array) -> None:
        self.array = array
        self.given: dict[int, Array] = {}
        self.written: set[int] = set()


class _Pieces:
    """What the nodes of a whole and its pieces share: where the pieces are, and the gradients under way."""

    __slots__ = ("parts", "_xp", "_shape", "_order", "_dtype", "_under_way")

    def __init__(self, x: Array, parts: list[tuple[Any, ...]]) -> None:
        self.parts = parts
        self._xp, self._shape, self._order, self._dtype = array_module(x), x.shape, memory_order(x), x.dtype
        self._under_way: list[_Filling] = []

    def _begin(self) -> _Filling:
        filling = _Filling(empty_in_order(self._xp, self._shape, self._order, self._dtype))
        self._under_way.append(filling)
        return filling

    def room(self, i: int, whole: Node) -> Array | None:
        """The place of a piece, for its first gradient; None where it was given out already."""
        filling = self._under_way[-1] if self._under_way else self._begin()
        if filling.written and whole.grad_array is not filling.array:  # of a backward that is set aside
            filling = self._begin()
        if i in filling.given or i in filling.written:
            return None
        filling.given[i] = place = filling.array[self.parts[i]]
        return place

    def take(self, i: int, whole: Node, grad: Array) -> None:
        """Put the gradient of a piece in its place, unless it was written there."""
        own = next((one for one in self._under_way if one.given.get(i) is grad), None)
        filling = _filling_of(whole, whole.grad_array)
        if filling is None:
            filling = self._begin() if own is None or own.written else own
        elif filling is not own and i in filling.given and i not in filling.written:
            filling = self._begin_anew(filling)  # the place has what another backward may have set aside
        whole.grad_array, whole.grad_owned = filling.array, filling  # type: ignore[assignment]
        if i in filling.written:
            filling.array[self.parts[i]] += grad
        elif filling is not own:
            filling.array[self.parts[i]] = grad
        filling.written.add(i)

    def _begin_anew(self, filling: _Filling) -> _Filling:
        self._forget(filling)
        other = self._begin()
        for i in filling.written:
            other.array[self.parts[i]] = filling.array[self.parts[i]]
        other.written = filling.written
        return other

    def _forget(self, filling: _Filling) -> None:
        if filling in self._under_way:
            self._under_way.remove(filling)

    def whole(self, node: Node, array: Array) -> Array:
        """The gradient of the whole, which the pieces have filled; nothing more is written into it."""
        filling = _filling_of(node, array)
        if filling is None:
            return array
        self._forget(filling)
        node.grad_owned = True
        missing = [i for i in range(len(self.parts)) if i not in filling.written]
        if any(i in filling.given for i in missing):
            array = array.copy("K")
        for i in missing:
            array[self.parts[i]] = 0
        return array

    def end(self) -> None:
        """Forget arrays of which no piece has told that it has written there."""
        self._under_way = [one for one in self._under_way if one.written]


def _filling_of(whole: Node, array: Array | None) -> _Filling | None:
    """What is known of a gradient that came to the node of a whole; None where none came."""
    found: Any = getattr(whole, "grad_owned", None)
    return found if isinstance(found, _Filling) and found.array is array else None


class _PieceNode(Node):
    """The node of a piece."""

    __slots__ = ()

    def room(self) -> Array | None:
        """Where its gradient belongs, if nothing is there yet."""
        whole = self.inputs[0] if self.inputs and self.saved else None
        return self.saved[1].room(self.saved[0], whole) if isinstance(whole, Node) else None


class _WholeNode(Node):
    """The node of a whole: it outlives a backward, for the pieces that had no part in that."""

    __slots__ = ()

    def free(self) -> None:
        if self.backward is _whole_backward:
            self.saved[0].end()
        else:  # recomputation holds what it needs
            super().free()


def room_for(edge: Edge, shape: tuple[int, ...]) -> Array | None:
    """Where the first gradient of an edge may be written: the place of a piece of this shape, in any order of memory.

    None where there is no such place. What is written there has then to be accumulated, that array itself.
    """
    if not isinstance(edge, _PieceNode) or edge.grad_array is not None:
        return None
    place = edge.room()
    return place if place is not None and place.shape == shape else None


def pieces_of(x: Tensor, parts: list[tuple[Any, ...]]) -> tuple[Tensor, ...]:
    """Views of a tensor at indexes of integers and slices that fit, and name each element once altogether."""
    if not (x.requires_grad and is_grad_enabled()):
        return tuple([record(x.data[part], _piece_backward, (x,), view_of=x) for part in parts])
    pieces = _Pieces(x.data, parts)
    whole = record(x.data, _whole_backward, (x,), (pieces,))
    whole.node.__class__ = _WholeNode
    return tuple([_piece(x, whole, i, pieces) for i in range(len(parts))])


def _piece(x: Tensor, whole: Tensor, i: int, pieces: _Pieces) -> Tensor:
    piece = record(x.data[pieces.parts[i]], _piece_backward, (whole,), (i, pieces), view_of=x)
    piece.node.__class__ = _PieceNode
    return piece


def _piece_backward(node: Node, grad: Array) -> None:
    i, pieces = node.saved
    whole = node.inputs[0]
    if isinstance(whole, Node):
        pieces.take(i, whole, grad)


def _whole_backward(node: Node, grad: Array) -> None:
    (pieces,) = node.saved
    accumulate(node.inputs[0], pieces.whole(node, grad))


# ----------------------------------------------------------------------------------------------- order of memory
