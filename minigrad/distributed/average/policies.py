"""When ranks combine: policies. Pure: a policy holds options, its state is passed in and comes back.

A rank asks its policy after each of its steps, `(state, made) -> (state, whether to combine, why)`. Its answer may
depend on what this rank has done since it combined last, and on what all ranks told each other then; on nothing that
other ranks can't foresee, for they wait. So the n-th combination of a rank meets the n-th of each other one, though
ranks may make different numbers of steps before it.

`Sync`, `EveryK` and `PostLocalSGD` count steps, `Cadence` lets each rank make as many as it has time for. One of your
own derives from `Policy`, as a frozen dataclass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from minigrad.arguments import as_integer, is_integer, keep_as
from minigrad.distributed.balance.cadence import CadenceConfig, ElChe
from minigrad.distributed.balance.divergence import Divergence
from minigrad.distributed.balance.guarded import GuardedCadence
from minigrad.distributed.balance.guards import Guard
from minigrad.distributed.balance.state import config_data, config_of
from minigrad.errors import ArgumentError, StateDictError

PolicyState = Any  # plain data, or what `plain` makes plain data of


@dataclass(frozen=True)
class StepsMade:
    """What a rank has done since it combined last.

    Attributes:
        rank, world_size: Which it is, and of how many.
        batches: Its steps, >= 1: of batches without samples too.
        samples: Of these.
    """

    rank: int
    world_size: int
    batches: int
    samples: float = 0.0


@dataclass(frozen=True)
class RoundTime:
    """How long a rank took from one combination to the next.

    Attributes:
        batches: Its steps.
        computed_ms: Milliseconds of computing; 0 where it was not measured.
        waited_ms: Of waiting for the others, and for what was combined.
    """

    batches: int
    computed_ms: float
    waited_ms: float


class Policy:
    """When to combine. A subclass is a frozen dataclass of its options, which have to be alike on all ranks.

    Attributes:
        measures: Whether it is told how long ranks took, see `settle`; that costs a small message a combination.
        takes_guard: Whether it does what a guard says, see `guarded`.
        period: Steps between two combinations where that never changes; None else.

    Example:
        >>> @dataclass(frozen=True)
        ... class Doubling(Policy):  # after 1, 2, 4, ... steps
        ...     def start(self, world_size):
        ...         return 1
        ...     def decide(self, state, made):
        ...         if made.batches < state:
        ...             return state, False, ""
        ...         return 2 * state, True, f"{state} steps are made"
        >>> Doubling().decide(4, StepsMade(0, 2, batches=4))
        (8, True, '4 steps are made')
    """

    measures: ClassVar[bool] = False
    takes_guard: ClassVar[bool] = False

    @property
    def period(self) -> int | None:
        """See the class."""
        return None

    def start(self, world_size: int) -> PolicyState:
        """The state to begin with; equal on all ranks."""
        return None

    def decide(self, state: PolicyState, made: StepsMade) -> tuple[PolicyState, bool, str]:
        """Whether to combine after this step, and why; asked after each.

        The state has to stay equal on all ranks: it may change only where the answer is yes.
        """
        raise NotImplementedError(f"{type(self).__name__} has no decide")

    def guarded(self, state: PolicyState, guard: Guard) -> PolicyState:
        """The state, watched by a guard; called once, at the beginning, where `takes_guard` says so."""
        return state

    def settle(
        self, state: PolicyState, times: Sequence[RoundTime], divergence: Divergence | None = None
    ) -> tuple[PolicyState, str]:
        """Take in how long each rank took for a round; called on all ranks alike where the policy measures.

        Args:
            divergence: How far the ranks were apart, where there is a guard.

        Returns:
            The new state, and what has changed and why.
        """
        return state, ""

    def plain(self, state: PolicyState) -> Any:
        """A state as plain data, for JSON."""
        return state

    def restored(self, state: PolicyState, data: Any) -> PolicyState:
        """The state that `plain` told, in the place of the present one.

        Raises:
            StateDictError: it is none, or one that does not fit.
        """
        return data


@dataclass(frozen=True)
class Sync(Policy):
    """Combine after every step.

    With gradients that is data-parallel training, bit for bit. With parameters it is that to rounding for plain SGD:
    what is linear in the gradients may be averaged before it or after. Momentum is linear too, but has a past: so it
    agrees while each rank's part of the samples stays the same, and where `optimizer_state="average"` makes one buffer
    of those of all ranks. Adam is not linear, and never agrees: its first step has the length of the rate whatever the
    gradient, so gradients 1 and -0.01 move a parameter by -0.1 where they are averaged, and by 0 where parameters are.

    Example:
        >>> Sync().decide(None, StepsMade(0, 2, batches=1))
        (None, True, 'every step')
    """

    @property
    def period(self) -> int | None:
        """One step."""
        return 1

    def decide(self, state: PolicyState, made: StepsMade) -> tuple[PolicyState, bool, str]:
        """Always."""
        return state, True, "every step"


@dataclass(frozen=True)
class EveryK(Policy):
    """Combine after every k-th step of a rank.

    With gradients: one step of the optimizer on the mean over the samples of k batches of all ranks. With parameters:
    local SGD, k steps of each rank's own, on gradients at places that are up to k - 1 steps apart; it is another
    algorithm than data-parallel training wherever k > 1, and costs 1/k of the messages. Stich, "Local SGD converges
    fast and communicates little", ICLR 2019.

    Args:
        k: Steps, >= 1.

    Example:
        >>> [EveryK(2).decide(None, StepsMade(0, 2, batches=i))[1:] for i in (1, 2)]
        [(False, ''), (True, '2 steps are made')]
    """

    k: int

    def __post_init__(self) -> None:
        keep_as(self, as_integer, "k", least=1)

    @property
    def period(self) -> int | None:
        """k steps."""
        return self.k

    def decide(self, state: PolicyState, made: StepsMade) -> tuple[PolicyState, bool, str]:
        """After k steps."""
        due = made.batches >= self.k
        return state, due, f"{self.k} steps are made" if due else ""


@dataclass(frozen=True)
class PostLocalSGD(Policy):
    """Combine after every step up to a switch, then after every k-th: post-local SGD.

    Training begins as `Sync`, whose noise is small, and goes on as `EveryK`. This says when, so it is a policy; what is
    done then is the outer optimizer's, `Mean` in the paper: Lin, Stich, Patel and Jaggi, "Don't use large mini-batches,
    use local SGD", ICLR 2020, section 3.

    Args:
        switch: Steps of a rank that are combined one by one, >= 0.
        k: Steps between two combinations afterwards, >= 1.

    Example:
        >>> policy = PostLocalSGD(switch=10, k=4)
        >>> policy.decide(9, StepsMade(0, 2, batches=1))  # the tenth step
        (10, True, 'step 10 of the 10 before the switch')
        >>> [policy.decide(10, StepsMade(0, 2, batches=i))[1] for i in (1, 4)]
        [False, True]
    """

    switch: int
    k: int

    def __post_init__(self) -> None:
        keep_as(self, as_integer, "switch", least=0)
        keep_as(self, as_integer, "k", least=1)

    def start(self, world_size: int) -> int:
        """Steps made until the last combination."""
        return 0

    def decide(self, state: int, made: StepsMade) -> tuple[int, bool, str]:
        """After each step up to the switch, then after k steps."""
        steps = state + made.batches
        if steps <= self.switch:
            return steps, True, f"step {steps} of the {self.switch} before the switch"
        return (steps, True, f"{self.k} steps are made") if made.batches >= self.k else (state, False, "")

    def restored(self, state: int, data: Any) -> int:
        """The steps again."""
        if not is_integer(data) or data < 0:
            raise StateDictError(f"PostLocalSGD: expected the steps made, an integer >= 0, got {data!r:.100}")
        return int(data)


@dataclass(frozen=True)
class Cadence(Policy):
    """Combine when each rank has made as many steps as El Che gives it: all are done at about one time.

    Rank r combines after its own counts[r] batches, reports how long they took, and all compute the next counts from
    what all reported; see `ElChe`.

    Args:
        config: Options, or a state to begin with.

    Example:
        >>> policy = Cadence(CadenceConfig(2, speed_hint=(1, 2.0)))  # rank 1 is half as fast
        >>> state = policy.start(2)
        >>> [policy.decide(state, StepsMade(rank, 2, batches=2))[1] for rank in (0, 1)]
        [False, True]
    """

    config: CadenceConfig | ElChe = field(default_factory=CadenceConfig)

    measures = takes_guard = True

    def __post_init__(self) -> None:
        if not isinstance(self.config, ElChe):
            config_of("Cadence", self.config, CadenceConfig)

    def start(self, world_size: int) -> GuardedCadence:
        """The state that was given, or the first.

        Raises:
            ArgumentError: one was given of another number of ranks.
        """
        if not isinstance(self.config, ElChe):
            return GuardedCadence(ElChe.start(world_size, self.config))
        if self.config.world_size != world_size:
            raise ArgumentError(
                f"Cadence: expected a state of {world_size} ranks, got one of {self.config.world_size}: start anew"
            )
        return GuardedCadence(self.config)

    def decide(self, state: GuardedCadence, made: StepsMade) -> tuple[GuardedCadence, bool, str]:
        """After this rank's count."""
        counts = state.el_che.batch_counts
        due = made.batches >= counts[made.rank]
        return state, due, f"counts {counts} are made" if due else ""

    def guarded(self, state: GuardedCadence, guard: Guard) -> GuardedCadence:
        """Let the guard be asked before the anchor moves."""
        return replace(state, guard=guard)

    def settle(
        self, state: GuardedCadence, times: Sequence[RoundTime], divergence: Divergence | None = None
    ) -> tuple[GuardedCadence, str]:
        """The next counts, and why; what the ranks wait for is what the last to come has waited."""
        walls, batches = [time.computed_ms for time in times], [time.batches for time in times]
        state, _, reason = state.report(walls, batches, min(time.waited_ms for time in times), divergence)
        return state, reason

    def plain(self, state: GuardedCadence) -> Any:
        """What its `state_dict` told."""
        return state.state_dict()

    def restored(self, state: GuardedCadence, data: Mapping[str, Any]) -> GuardedCadence:
        """The state again, where it is one of as many ranks, the same options and the same guard."""
        return state.resumed("ParameterAverager", data)


def facts_of(policy: Policy) -> dict[str, str]:
    """The options of a policy by name, in words that are the same where they are."""
    told = {"policy": type(policy).__name__}
    for name, value in vars(policy).items():
        if isinstance(value, CadenceConfig):
            told |= {f"{name}.{key}": str(each) for key, each in config_data(value).items()}
        else:
            told[name] = str(value.state_dict() if isinstance(value, ElChe) else value)
    return told


def check_policy(who: str, policy: Any) -> Policy:
    """A policy; ArgumentError where it is something else."""
    if not isinstance(policy, Policy):
        kind = policy.__name__ + ", the class" if isinstance(policy, type) else repr(policy)
        raise ArgumentError(
            f"{who}: expected a policy, such as Sync(), EveryK(4) or Cadence(), got {kind:.100}: one of your own "
            "derives from minigrad.distributed.average.Policy"
        )
    return policy
