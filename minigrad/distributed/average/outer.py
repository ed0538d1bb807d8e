"""Outer optimizers: what is done with the parameters that the ranks have come to, each on its own. Pure.

Between two combinations every rank trains by itself, with the optimizer that it has (the inner one). Then their mean,
weighted by samples, is formed over the ranks, and an outer optimizer says from which values each goes on:

    state = outer.start(values)                              before the first step
    state, values = outer.combine(state, local, average)     at each combination

values, local and average are 1-D arrays of one dtype, NumPy's or CuPy's: the parameters of one fragment of the flat
layout. average is Σ n_r·sent_r / Σ n_r over the ranks, with n_r the samples of rank r since the last combination and
sent_r its values `delay` steps ago; local are this rank's values now. Nothing is written into an argument, and no call
waits for a device. A state holds arrays of its own, for arguments are overwritten later; values that come back may be
an argument, or share their memory with the state: they are to be copied, and not to be written to.

With one step of plain SGD between two combinations, `Mean` is DistributedDataParallel, to rounding: Σ n_r·(θ - η·g_r) /
Σ n_r is θ - η·Σ n_r·g_r / Σ n_r. With more steps, or where the inner optimizer's step is not linear in the gradient, as
in Adam, it is another algorithm, and so are all the others here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from minigrad.arguments import as_integer, as_real, check_switch, keep_as
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.distributed.average.fragments import Fragments, as_fragments

# 1-D arrays of the fragment's length and dtype, by name; "global", where there is one, are values that all ranks share
OuterState = Mapping[str, Array]


class OuterOptimizer(Protocol):
    """What is done with the mean of the ranks' parameters; frozen, and without a state of its own."""

    @property
    def fragments(self) -> Fragments:
        """The parts that are combined at different steps of a period; see `average.fragments`."""

    @property
    def delay(self) -> int:
        """Steps between sending a fragment's values and combining them, which the ranks go on training in."""

    @property
    def makes_alike(self) -> bool:
        """Whether all ranks hold the same values after a combination."""

    def start(self, values: Array) -> OuterState:
        """The state of a fragment before the first step; all ranks have the same values there."""

    def combine(self, state: OuterState, local: Array, average: Array) -> tuple[OuterState, Array]:
        """The next state, the same on all ranks, and the values from which this rank goes on."""


@dataclass(frozen=True)
class Mean:
    """Go on from the weighted mean of the ranks: θ = Σ n_r·θ_r / Σ n_r.

    Local SGD (Stich, "Local SGD converges fast and communicates little", ICLR 2019), weighted by samples. Equal to
    DistributedDataParallel, to rounding, with one step of plain SGD between two combinations; see above.

    Example:
        >>> state, values = Mean().combine({}, np.zeros(2), np.ones(2))
        >>> values.tolist()
        [1.0, 1.0]
    """

    fragments: Fragments = 1
    delay: int = 0

    makes_alike = True

    def __post_init__(self) -> None:
        _check_timing(self)

    def start(self, values: Array) -> OuterState:
        """Nothing has to be remembered."""
        return {}

    def combine(self, state: OuterState, local: Array, average: Array) -> tuple[OuterState, Array]:
        """The mean itself."""
        return {}, average


@dataclass(frozen=True)
class DiLoCo:
    """A step of SGD with momentum, for which the way that the ranks have gone is the gradient.

        Δ = global - average;  v = momentum·v + Δ;  global -= lr·(Δ + momentum·v), without Nesterov lr·v

    and all ranks go on from global, which is what they last went on from. v begins with zeros. This is the form that
    Nesterov's momentum has in PyTorch's SGD, which the paper's results are of; in Sutskever's form, where the rate is
    part of v, the values differ when lr changes. Source: Douillard et al., "DiLoCo: Distributed low-communication
    training of language models", 2023, algorithm 1, weighted by samples here.

    With lr 1 and no momentum it is `Mean`, to rounding: global - (global - average). It is never
    DistributedDataParallel with any other setting, even with one step between two combinations.

    Args:
        lr: Outer learning rate, > 0.
        momentum: In [0, 1).
        nesterov: Look ahead, which without momentum is no different.

    Raises:
        ArgumentError: a value out of range.

    Example:
        >>> outer = DiLoCo(lr=1.0, momentum=0.5)
        >>> state, values = outer.combine(outer.start(np.zeros(1)), np.ones(1), np.ones(1))
        >>> values.tolist(), state["velocity"].tolist()
        ([1.5], [-1.0])
    """

    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True
    fragments: Fragments = 1
    delay: int = 0

    makes_alike = True

    def __post_init__(self) -> None:
        _check_descent(self, self.nesterov)

    def start(self, values: Array) -> OuterState:
        """Global are the values; velocity, where there is momentum, is zero."""
        return _start_of_descent(values, self.momentum)

    def combine(self, state: OuterState, local: Array, average: Array) -> tuple[OuterState, Array]:
        """See the class."""
        state = _descend(state, average, self.lr, self.momentum, self.nesterov)
        return state, state["global"]


@dataclass(frozen=True)
class SlowMo:
    """A slow momentum over the ways that the ranks have gone.

        Δ = global - average;  v = momentum·v + Δ;  global -= lr·v

    and all ranks go on from global. The paper divides Δ by the inner learning rate γ and multiplies the step by it: v
    is γ·u here. While γ stays the same that is the same algorithm; where a schedule changes it, v keeps the length that
    it has in parameters. Source: Wang, Tantia, Ballas and Rabbat, "SlowMo: Improving communication-efficient
    distributed SGD with slow momentum", ICLR 2020, algorithm 1, weighted by samples here; what becomes of the inner
    optimizer's own buffers, its line 2, is `optimizer_state` of the averager.

    With lr 1 and no momentum it is `Mean`, to rounding; else never DistributedDataParallel.

    Args:
        lr: The slow learning rate α, > 0.
        momentum: The slow momentum β, in [0, 1).

    Raises:
        ArgumentError: a value out of range.

    Example:
        >>> outer = SlowMo(momentum=0.5)
        >>> state, values = outer.combine(outer.start(np.zeros(1)), np.ones(1), np.ones(1))
        >>> state, values = outer.combine(state, np.ones(1), np.full(1, 2.0))
        >>> values.tolist()
        [2.5]
    """

    lr: float = 1.0
    momentum: float = 0.5
    fragments: Fragments = 1
    delay: int = 0

    makes_alike = True

    def __post_init__(self) -> None:
        _check_descent(self)

    def start(self, values: Array) -> OuterState:
        """Global are the values; velocity, where there is momentum, is zero."""
        return _start_of_descent(values, self.momentum)

    def combine(self, state: OuterState, local: Array, average: Array) -> tuple[OuterState, Array]:
        """See the class."""
        state = _descend(state, average, self.lr, self.momentum, nesterov=False)
        return state, state["global"]


@dataclass(frozen=True)
class StreamingDiLoCo:
    """DiLoCo by fragments, each at a step of its own, while the ranks go on training.

    Fragment i of F is combined at the inner steps every·(i+1)/F of each period of `every` steps; what is combined was
    sent `delay` steps earlier, so that its way through the network is hidden behind these:

        global as in `DiLoCo`, from the average of what was sent;  θ = α·local + (1 - α)·global

    local are the rank's values now: of the steps that it made after sending, α of their way stays, and 1 - α is given
    up. So with α > 0 the ranks differ after a combination, by α times what they differed before; global is the same on
    all of them. Source: Douillard et al., "Streaming DiLoCo with overlapping communication: Towards a distributed free
    lunch", 2025, algorithm 2, weighted by samples here.

    With one fragment, no delay and α = 0 it is `DiLoCo`. With α = 1 nothing ever arrives at a rank.

    Args:
        lr, momentum, nesterov: See `DiLoCo`.
        fragments: How many equal parts of the flat layout, which has the last parameter first; or for each fragment the
            names of its parameters, or of modules that hold them, such as (("layers.0",), ("layers.1", "head")).
        delay: Steps between sending and combining, >= 0.
        alpha: α, in [0, 1].

    Raises:
        ArgumentError: a value out of range.

    Example:
        >>> outer = StreamingDiLoCo(lr=1.0, momentum=0.0, alpha=0.25)
        >>> state, values = outer.combine(outer.start(np.zeros(1)), np.full(1, 4.0), np.full(1, 2.0))
        >>> values.tolist(), state["global"].tolist()
        ([2.5], [2.0])
    """

    lr: float = 0.7
    momentum: float = 0.9
    fragments: Fragments = 2
    delay: int = 0
    alpha: float = 0.0
    nesterov: bool = True

    def __post_init__(self) -> None:
        _check_descent(self, self.nesterov)
        keep_as(self, as_real, "alpha", least=0.0, most=1.0)

    @property
    def makes_alike(self) -> bool:
        """Only where nothing of local values stays."""
        return self.alpha == 0.0

    def start(self, values: Array) -> OuterState:
        """See `DiLoCo`."""
        return _start_of_descent(values, self.momentum)

    def combine(self, state: OuterState, local: Array, average: Array) -> tuple[OuterState, Array]:
        """See the class."""
        state = _descend(state, average, self.lr, self.momentum, self.nesterov)
        if self.alpha == 0.0:  # not even NaN is taken over of what counts nothing
            return state, state["global"]
        return state, local * self.alpha + state["global"] * (1.0 - self.alpha)


@dataclass(frozen=True)
class EASGD:
    """Elastic averaging: every rank is drawn to a center, and the center to the ranks; they stay apart.

        θ_r -= alpha·(θ_r - center);  center += beta·(average - center)

    both from the center before, which is "global" in the state. It is the model that is trained: ranks explore around
    it, and differ. The paper's elastic symmetry, where what a rank is moved by is what it moves the center by, is
    beta = world_size·alpha; it takes beta = 0.9. Source: Zhang, Choromanska and LeCun, "Deep learning with elastic
    averaging SGD", NIPS 2015, equations 5 and 6, made every so many steps as in its algorithm 1, and with the mean
    weighted by samples here.

    Never DistributedDataParallel: even where a step is combined at once, ranks keep 1 - alpha of their own way.

    Args:
        alpha: How much of its way to the center a rank is moved, in (0, 1].
        beta: How much of its way to the average the center is moved, in (0, 1].

    Raises:
        ArgumentError: a value out of range.

    Example:
        >>> outer = EASGD(alpha=0.25, beta=0.5)
        >>> state, values = outer.combine(outer.start(np.zeros(1)), np.full(1, 4.0), np.full(1, 2.0))
        >>> values.tolist(), state["global"].tolist()
        ([3.0], [1.0])
    """

    alpha: float
    beta: float = 0.9
    fragments: Fragments = 1
    delay: int = 0

    makes_alike = False

    def __post_init__(self) -> None:
        _check_timing(self)
        keep_as(self, as_real, "alpha", "beta", most=1.0, above=0.0)

    def start(self, values: Array) -> OuterState:
        """The center are the values."""
        return {"global": values.copy()}

    def combine(self, state: OuterState, local: Array, average: Array) -> tuple[OuterState, Array]:
        """See the class."""
        center = state["global"]
        return {"global": center + (average - center) * self.beta}, local - (local - center) * self.alpha


# ------------------------------------------------------------------------------------------------------ what they share


def _check_timing(outer: OuterOptimizer) -> None:
    keep_as(outer, as_fragments, "fragments")
    keep_as(outer, as_integer, "delay", least=0)


def _check_descent(outer: OuterOptimizer, nesterov: bool = False) -> None:
    _check_timing(outer)
    keep_as(outer, as_real, "lr", above=0.0, finite=True)
    keep_as(outer, as_real, "momentum", least=0.0, below=1.0)
    check_switch(type(outer).__name__, nesterov=nesterov)


def _start_of_descent(values: Array, momentum: float) -> OuterState:
    state = {"global": values.copy()}
    return {**state, "velocity": array_module(values).zeros_like(values)} if momentum else state


def _descend(state: OuterState, average: Array, lr: float, momentum: float, nesterov: bool) -> OuterState:
    """The state after a step from global against global - average."""
    start = state["global"]
    change = start - average
    if not momentum:
        return {"global": start - change * lr}
    velocity = state["velocity"] * momentum + change
    direction = change + velocity * momentum if nesterov else velocity
    return {"global": start - direction * lr, "velocity": velocity}
