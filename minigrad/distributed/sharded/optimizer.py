"""ShardedOptimizer: each rank keeps the optimizer's state of its own part of the parameters, and updates that alone.

ZeRO's first stage on the flat layout. Source: Rajbhandari, Rasley, Ruwase and He, "ZeRO: Memory optimizations toward
training trillion parameter models", SC 2020, sections 5.1 and 7.2.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from minigrad.arguments import as_list
from minigrad.backend.dtypes import Array
from minigrad.distributed.ddp.parallel import DistributedDataParallel
from minigrad.distributed.sharded.gradients import ShardedGradients, extents_of
from minigrad.distributed.sharded.owners import own_whole
from minigrad.distributed.sharded.parts import check_homed, cut, restore_run, whole_views
from minigrad.distributed.sharded.runs import Ownership, own_by_shares
from minigrad.errors import ArgumentError, AutogradError
from minigrad.nn.clip import clip_divided_grad_norm_
from minigrad.nn.companions import attach, unshared_number
from minigrad.optim.attempts import Controls
from minigrad.optim.optimizer import Agree, Optimizer, all_parts, settled_parts
from minigrad.optim.state import load_optimizer_state, optimizer_state
from minigrad.optim.whole import WholeOptimizer
from minigrad.tensor import Tensor

_WHO = "ShardedOptimizer"


class ShardedOptimizer(Optimizer):
    """An optimizer of which each of W ranks does a part: a W-th of the state, the bits of `DistributedDataParallel`.

    From now on the wrapper sends each bucket by reduce_scatter, so that a rank gets the combined gradient of its own
    run. `step` updates that run, and an all_gather of each bucket brings the parameters together. A ring moves as many
    bytes as for the all-reduce, but for padding of at most W - 1 elements a bucket; 16-bit gradients travel as float32.
    The parameters have the bits that the optimizer alone would give them, where the communicator adds in a fixed order.

    The gradients of other runs are never there: reading `.grad`, and stepping, clipping or unscaling by anything else,
    raises AutogradError. So all parameters of the wrapper are to be trained by sharded optimizers: one, or several of
    a wrapper, of which each gathers the buckets that hold parameters of its own.

    Muon and LAMB need each parameter whole, so each of theirs has one owner, the least loaded one, who alone updates
    it; no part of a matrix is ever made orthogonal. Make theirs first: what they do not have is cut where it is large,
    and element by element it can be. A bucket that is cut otherwise than evenly, such as one of whole matrices, is sent
    by one reduce to the owner of each run and one broadcast from it: on a ring as many bytes as an all-reduce, added up
    over the ranks, in more calls. Without caps a rank then owns a W-th of the elements and one parameter at most, and
    for each bucket that is cut one element.

    Args:
        optimizer: Of parameters of the wrapper. It is cut to this rank's runs, with the state that it has, so do not
            use it any more; schedules made for it stay in force, as the groups are shared.
        ddp: The wrapper; without a comm hook. All ranks call this together.
        shares: What part of each bucket a rank owns, of sum 1, for ranks with unequal memory.
        caps: The most elements that each rank may own, None for no limit; the others own the rest.
        ownership: Which elements each rank owns, in place of both.

    Attributes:
        inner: What was given.
        gradients: What a wrapper's sharded optimizers have in common.
        param_groups: Those of the inner one, to be changed between steps as there.

    Raises:
        ArgumentError: no optimizer, or one that has other parameters than the wrapper's; a comm hook on the wrapper,
            shares that are none, or caps without room.
        LayoutError: a parameter that the optimizer needs whole was cut for the wrapper's first sharded one.
        ReplicaMismatchError: other shares on other ranks; on all ranks.

    Example:
        >>> from minigrad import nn, optim, ones
        >>> from minigrad.distributed import DDP, run
        >>> def body(comm):
        ...     ddp = DDP(nn.Linear(8, 4, bias=False), comm)
        ...     optimizer = ShardedOptimizer(optim.Adam(ddp.parameters(), lr=0.1), ddp)
        ...     ddp(ones(2, 8)).mean().backward()
        ...     optimizer.clip_grad_norm_(1.0)
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        ...     whole = optimizer.state_dict()["state"][0]["exp_avg"].shape
        ...     return optimizer.state_bytes(), whole
        >>> run(body, 4)[0]     # two averages of 32 / 4 elements of float32
        (64, (4, 8))
    """

    def __init__(
        self,
        optimizer: Optimizer,
        ddp: DistributedDataParallel,
        *,
        shares: Sequence[float] | None = None,
        caps: Sequence[int | None] | None = None,
        ownership: Ownership | None = None,
    ) -> None:
        _check(optimizer, ddp)
        there = _gradients_there(ddp)
        self.gradients = _gradients_of(there, ddp, _ownership(optimizer, ddp, there is None, shares, caps, ownership))
        self._check_homes(optimizer, optimizer.params())
        state = optimizer.state_dict()
        check_homed(_WHO, optimizer, self.gradients, state)
        if there is None:  # what was refused has left the wrapper as it was
            self.gradients.take_over(ddp)
        self.inner, self.name, self.defaults = optimizer, optimizer.name, optimizer.defaults
        self.master_weights, self.step_limit = optimizer.master_weights, optimizer.step_limit
        self.param_groups, self.parts = optimizer.param_groups, optimizer.parts
        self._state, self._attempts = optimizer._state, optimizer._attempts
        self._base = self._options_number = self._updates = 0
        self._options = ()
        cut(optimizer, self.gradients)
        self._load(state)
        self._stand_in()

    @property
    def moved_by(self) -> Any:
        """The schedule that has stepped the rates, which are those of the inner optimizer."""
        return self.inner.moved_by

    @moved_by.setter
    def moved_by(self, schedule: Any) -> None:
        self.inner.moved_by = schedule

    def _check_homes(self, optimizer: Optimizer, params: Sequence[Any]) -> None:
        """Refuse parameters that the wrapper does not have, and parts of what the optimizer needs whole."""
        for param in params:
            self.gradients.bucket_of(param)
        if isinstance(optimizer, WholeOptimizer):
            self.gradients.check_whole(f"{_WHO} of {optimizer.name}", params)

    def _stand_in(self) -> None:
        """Be seen beside the parameters, in the place of the inner optimizer."""
        flats = _flats_of(self)
        for flat in flats:
            flat.companions = tuple(each for each in flat.companions if each() is not self.inner)
        attach(self, flats)

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Those of the inner optimizer."""
        return self.inner.slots(group)

    def check(self, group: dict[str, Any]) -> None:
        """As the inner optimizer does."""
        self.inner.check(group)

    # -------------------------------------------------------------------------------------------------------- a step

    def step_unless_skipped(self, controls: Controls) -> None:
        """Update this rank's runs, and bring the parameters of all ranks together; see `Optimizer`. All ranks call it.

        Raises:
            AutogradError: gradients that were not combined, as those of `no_sync`.
            LayoutError: the wrapper was unwrapped, or has other trainable parameters than when this was made.
        """
        self.gradients.check_ready()
        self.gradients.reducer.layout.check()
        _check_combined(self.gradients, f"{_WHO}.step")
        params = self.params()
        due = [i for i, param in enumerate(params) if param.grad_array is not None]
        with self.gradients.guard.lifted():
            self.inner.step_unless_skipped(controls)
        self._updates = hash((self._updates, *due))
        self.gradients.gather(params[i] for i in due)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients; see `Optimizer.zero_grad`."""
        super().zero_grad(set_to_none)
        self.gradients.guard.release(self.params())

    @contextmanager
    def looking(self) -> Iterator[Agree]:
        """Around a look at the gradients of this rank's runs; a flag becomes the largest of all ranks, who all ask."""
        _check_combined(self.gradients, "GradScaler.unscale_")
        with self.gradients.guard.lifted():
            yield self._agreed

    def _agreed(self, flag: Array | None) -> Array | None:
        if flag is None:  # no gradient, and so on all ranks
            return None
        with self.gradients.comm.device.current():
            number = self.gradients.combined(flag.astype(np.float64), largest=True)
            flag[...] = number
        return flag

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False) -> Tensor:
        """Scale the gradients of this optimizer's parameters to max_norm; see `nn.utils.clip_grad_norm_`.

        All ranks call it: one number is summed over them.

        Args:
            max_norm, norm_type, error_if_nonfinite: See there.

        Returns:
            The norm before clipping, of the gradients of all ranks.

        Raises:
            ArgumentError, NonFiniteError: see there; on all ranks.
            AutogradError: gradients that were not combined.
        """
        who = f"{_WHO}.clip_grad_norm_"
        _check_combined(self.gradients, who)
        with self.gradients.guard.lifted():
            gradients = [
                part.buffer.grad[start:stop]
                for part in all_parts(self)
                for start, stop in part.buffer.runs([p for p in part.params if p.grad_array is not None])
            ]
            combined, device = self.gradients.combined, self.gradients.comm.device
            options = (max_norm, norm_type, error_if_nonfinite)
            return clip_divided_grad_norm_(who, gradients, _flats_of(self), device, combined, *options)

    # --------------------------------------------------------------------------------------------------------- state

    def state_bytes(self) -> int:
        """Bytes of the state that this rank keeps."""
        return sum(int(array.nbytes) for state in self._state.values() for array in state.values())

    @property
    def state(self) -> NoReturn:
        """A rank has its runs only; AttributeError would be taken for a missing name, so ArgumentError."""
        raise ArgumentError(
            f"{_WHO}.state: expected to be asked for the whole state, got this: call state_dict() on all ranks"
        )

    def state_dict(self) -> dict[str, Any]:
        """The whole state, in the form of the unsharded optimizer's, on all ranks, which all call it.

        It loads into the unsharded optimizer, and into a sharded one of any number of ranks. Tensors are copies.
        """
        settled_parts(self)
        return optimizer_state(self, whole_views(self, self.gradients))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned, here or of an unsharded optimizer: a rank keeps its own runs of it.

        Raises:
            StateDictError: see `Optimizer.load_state_dict`; or it has state of a parameter that was frozen.
        """
        settled_parts(self)
        self._load(state_dict)
        self.settle(unshared_number())

    def _load(self, state_dict: dict[str, Any]) -> None:
        check_homed(f"{self.name}.load_state_dict", self, self.gradients, state_dict)
        load_optimizer_state(self, state_dict, restore_run)

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Train more parameters of the wrapper; see `Optimizer.add_param_group`."""
        given = group.get("params") if isinstance(group, dict) else None
        params: list[Any] = [given] if isinstance(given, Tensor) else list(given or ())
        self._check_homes(self.inner, params)
        self.inner.add_param_group({**group, "params": params} if params else group)
        cut(self.inner, self.gradients)
        self._stand_in()

    def mark(self) -> int:
        """See `nn.companions.Companion`: the same on ranks that own other runs."""
        super().mark()
        if not any(self._state.values()):
            return self._options_number
        return hash((self._options_number, self._base, self._updates))

    def settle(self, number: int) -> None:
        """See `nn.companions.Companion`."""
        super().settle(number)
        self._updates = 0


def _check_combined(gradients: ShardedGradients, who: str) -> None:
    """Refuse to take a run of gradients that are this rank's alone for its run of the combined ones."""
    if gradients.reducer.own.weighed:
        raise AutogradError(
            f"{who}: expected combined gradients, got those of this rank alone, as after no_sync: let the last "
            "backward before a step synchronise, or call flush()"
        )


def _flats_of(optimizer: Optimizer) -> list[Any]:
    return list({id(param.flat): param.flat for param in optimizer.params()}.values())


def _check(optimizer: Any, ddp: Any) -> None:
    if not isinstance(ddp, DistributedDataParallel):
        raise ArgumentError(f"{_WHO}: expected a DistributedDataParallel, got {type(ddp).__name__}")
    if not isinstance(optimizer, Optimizer) or isinstance(optimizer, ShardedOptimizer):
        raise ArgumentError(f"{_WHO}: expected an optimizer that is not sharded, got {type(optimizer).__name__}")


def _ownership(
    optimizer: Optimizer,
    ddp: DistributedDataParallel,
    is_first: bool,
    shares: Sequence[float] | None,
    caps: Sequence[int | None] | None,
    ownership: Ownership | None,
) -> Ownership | None:
    """What the arguments say, of the first optimizer of a wrapper or of another; None where they say nothing."""
    if ownership is not None and not isinstance(ownership, Ownership):
        raise ArgumentError(f"{_WHO}: expected ownership to be an Ownership, got {type(ownership).__name__}")
    is_whole = isinstance(optimizer, WholeOptimizer)
    if shares is None and caps is None and (ownership is not None or not is_whole or not is_first):
        return ownership
    if ownership is not None:
        raise ArgumentError(f"{_WHO}: expected shares and caps, or an ownership, got both")
    if is_whole and shares is not None:
        raise ArgumentError(f"{_WHO}: expected caps of ranks for {optimizer.name}, which cuts nothing, got shares")
    world = ddp.comm.world_size
    for name, values in (("shares", shares), ("caps", caps)):
        if values is not None and len(as_list(_WHO, name, values)) != world:
            raise ArgumentError(f"{_WHO}: expected {name} of {world} ranks, got {values!r}")
    if is_whole:
        return own_whole(extents_of(ddp, optimizer.params()), world, caps)
    equal = [1.0 / world] * world
    return own_by_shares([b.stop - b.start for b in ddp.plan.buckets], equal if shares is None else shares, caps)


def _gradients_of(
    gradients: ShardedGradients | None, ddp: DistributedDataParallel, ownership: Ownership | None
) -> ShardedGradients:
    """Those of the wrapper, which are made where it has none yet."""
    if gradients is None:
        return ShardedGradients(ddp, ownership)
    if ownership not in (None, gradients.ownership):
        raise ArgumentError(f"{_WHO}: expected the shares of the wrapper's first sharded optimizer, got others")
    return gradients


def _gradients_there(ddp: DistributedDataParallel) -> ShardedGradients | None:
    state = None if ddp.reducer.hook is None else ddp.reducer.hook.state
    return state if isinstance(state, ShardedGradients) else None
