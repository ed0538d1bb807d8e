"""What the coordinator knows: who lives, what is dealt to whom, who was asked what, and what is committed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from minigrad.arguments import as_integer, as_real, check_choice
from minigrad.data.dispatch import Dispatch, Portion, throttled
from minigrad.data.sampler import check_keys
from minigrad.distributed.average.async_rounds import is_async
from minigrad.distributed.average.asynchronous import AsyncState
from minigrad.distributed.average.policies import Cadence, Policy, PolicyState, StepsMade, check_policy, facts_of
from minigrad.distributed.balance.cadence import ElChe
from minigrad.distributed.balance.state import reading_state
from minigrad.errors import ArgumentError, StateDictError
from minigrad.train.coordinator.messages import Contribution, plain, portions_from, taken_from

ON_FAILURE = ("stop", "shrink")
_MOST_STEPS = 100_000  # of a rank in a round; a policy that never combines is named, where it would hang


@dataclass(frozen=True)
class CoordinatorConfig:
    """What does not change in a run.

    Args:
        dispatch: Deals the samples of all epochs to all ranks; of a known number of epochs.
        policy: When ranks combine: `Async` lets them be `bound` rounds apart, any other waits for all in each round.
        on_failure: "stop": where a rank fails all others end, behind a checkpoint of the last committed round.
            "shrink": they do the round again without it.
        timeout_s: How long a rank is waited for that has been asked; one that trains, from its last report on.
        most_tries: How often a round is combined where that comes to nothing, and all ranks answer.
        rounds_by_shares: Whether a round has as many times more batches of a rank as `Dispatch.counts` says, which
            are in proportion to shares; else each rank has as many as the policy says, until its part is used up.

    Raises:
        ArgumentError: a value out of its range, or options that do not go together.
    """

    dispatch: Dispatch
    policy: Policy
    on_failure: str = "stop"
    timeout_s: float = 300.0
    most_tries: int = 3
    rounds_by_shares: bool = False

    def __post_init__(self) -> None:
        who = "Coordinator"
        if not isinstance(self.dispatch, Dispatch):
            raise ArgumentError(f"{who}: expected a Dispatch, got {self.dispatch!r:.100}")
        check_policy(who, self.policy)
        check_choice(who, ON_FAILURE, on_failure=self.on_failure)
        object.__setattr__(self, "timeout_s", as_real(who, "timeout_s", self.timeout_s, above=0.0, below=math.inf))
        as_integer(who, "most_tries", self.most_tries, 1)
        if self.dispatch.epochs is None:
            raise ArgumentError(f"{who}: expected a dispatch that knows its epochs, got epochs=None")
        if self.dispatch.mode == "progressive" and self.dispatch.shares is not None:
            raise ArgumentError(
                f'{who}: expected no shares with mode="progressive", where the policy says what ranks take, got '
                f"{list(self.dispatch.shares)}: leave them out, or deal in another mode"
            )

    @property
    def world_size(self) -> int:
        """Of all ranks, the dead ones too."""
        return self.dispatch.world_size

    @property
    def bound(self) -> int:
        """How many rounds a rank may be ahead of what is committed: so that it is at most max_batch_diff batches."""
        if not is_async(self.policy):
            return 0
        most = self.dispatch.max_batch_diff
        return self.policy.bound if most is None else min(self.policy.bound, most // self.policy.k)

    def shares_among(self, ranks: Sequence[int]) -> tuple[float, ...] | None:
        """The shares of some ranks, of sum 1 again; equal ones where they had none together."""
        if self.dispatch.shares is None:
            return None
        given = [self.dispatch.shares[rank] for rank in ranks]
        whole = math.fsum(given)
        return tuple(share / whole if whole else 1 / len(given) for share in given)

    def policy_among(self, ranks: Sequence[int]) -> Policy:
        """The policy where these ranks are left: a cadence begins anew, for what it knew was of all."""
        policy = self.policy
        if len(ranks) == self.world_size or not isinstance(policy, Cadence):
            return policy
        config = policy.config.config if isinstance(policy.config, ElChe) else policy.config
        return replace(policy, config=replace(config, speed_hint=None))

    def facts(self) -> dict[str, Any]:
        """What a state that is loaded must agree in."""
        return {"world_size": self.world_size, **facts_of(self.policy)}

    def check_facts(self, told: Any, differ: Sequence[str] = ()) -> None:
        """Refuse a state of other options, but for those that may differ; StateDictError."""
        for name, own in self.facts().items():
            if not isinstance(told, Mapping) or (name not in differ and told.get(name) != own):
                raise StateDictError(f"Coordinator: expected a state with {name} {own!r}, got {told!r:.200}")


@dataclass(frozen=True)
class Question:
    """What a rank was asked, and has not answered.

    Attributes:
        kind: The command's name.
        rank, round, ask: As in the command.
        timer: When it runs out, it is too late.
    """

    kind: str
    rank: int
    round: int
    ask: int
    timer: int


@dataclass(frozen=True)
class Assignment:
    """What a rank was dealt in a round that is not committed.

    Attributes:
        rank, round: Who, and when.
        portions: Its batches.
        samples: What they weigh; None while they are under way.
        batches, seconds: As the rank has reported.
    """

    rank: int
    round: int
    portions: tuple[Portion, ...]
    samples: float | None = None
    batches: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Coordinator:
    """The state; `step` gives the next.

    Attributes:
        config: Options.
        dispatch: What is not dealt yet, to the members.
        policy_state: Of the policy.
        members: Ranks that the rounds are of; those that have failed since are not in `living`.
        progress: How far each member has come, in rounds; `applied` is the last one that is committed.
        phase: "new", "running", "restoring" after a failure, "gathering" after that of the coordinator's own rank,
            "finishing" or "saving" before the end, "over".
        term: Of this coordinator.
        asked: The number of the last question, or timer.
        questions, assignments: What is on its way.
        did: What each rank did last, in words.
        taken: What the last committed round was made of.
        recalled: What ranks have told a new coordinator: rank, round, state.
        tries: How often the next round was combined in vain, though nobody had failed.
        stopping: Whether it is to end, and the state is not such that it can.
        error: Why it ends.
    """

    config: CoordinatorConfig
    dispatch: Dispatch
    policy_state: PolicyState
    members: tuple[int, ...]
    living: tuple[int, ...]
    progress: AsyncState
    did: tuple[str, ...]
    phase: str = "new"
    term: int = 1
    asked: int = 0
    questions: tuple[Question, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    taken: tuple[Contribution, ...] = ()
    recalled: tuple[tuple[int, int, Mapping[str, Any] | None], ...] = ()
    tries: int = 0
    stopping: bool = False
    error: str = ""

    @staticmethod
    def start(config: CoordinatorConfig) -> Coordinator:
        """The state before the first message."""
        ranks = tuple(range(config.world_size))
        progress = AsyncState.start(0, len(ranks), config.bound)
        nothing = ("has not begun",) * len(ranks)
        return Coordinator(
            config, config.dispatch, config.policy.start(len(ranks)), ranks, ranks, progress, nothing
        )

    @property
    def committed(self) -> int:
        """The last round that was committed; 0 before the first."""
        return self.progress.applied

    @property
    def is_over(self) -> bool:
        """Whether nothing more is commanded."""
        return self.phase == "over"

    @property
    def policy(self) -> Policy:
        """That of the members."""
        return self.config.policy_among(self.members)

    def next_combination(self, member: int) -> tuple[PolicyState, int, str]:
        """After how many batches the policy lets a member combine: the policy's state then, how many, and why.

        Raises:
            ArgumentError: the policy never does.
        """
        size = self.dispatch.pool.batch_size
        for batches in range(1, _MOST_STEPS):
            made = StepsMade(member, len(self.members), batches, float(batches * size))
            state, due, reason = self.policy.decide(self.policy_state, made)
            if due:
                return state, batches, reason
        raise ArgumentError(
            f"Coordinator: expected {type(self.policy).__name__} to combine within {_MOST_STEPS} batches, got no round"
        )

    def quotas(self) -> tuple[int, ...]:
        """The most batches of each member in a round."""
        counts = [self.next_combination(member)[1] for member in range(len(self.members))]
        if self.config.rounds_by_shares:
            counts = [count * times for count, times in zip(counts, self.dispatch.counts)]
        return throttled(counts, self.dispatch.max_batch_diff)[0]

    def settled(self) -> Coordinator:
        """The state of the last commit: what is on its way came to nothing, and its samples are to be dealt."""
        back = [
            [portion for each in self.assignments if each.rank == rank for portion in each.portions]
            for rank in self.members
        ]
        progress = AsyncState.start(0, len(self.members), self.config.bound, self.committed)
        dispatch = self.dispatch.give_back(back)
        return replace(self, dispatch=dispatch, progress=progress, questions=(), assignments=(), phase="new")

    def among_living(self) -> Coordinator:
        """The state of the last commit, for those who live."""
        state, places = self.settled(), [self.members.index(rank) for rank in self.living]
        if len(places) == len(self.members):
            return state
        policy, shares = self.config.policy_among(self.living), self.config.shares_among(self.living)
        return replace(
            state,
            members=self.living,
            dispatch=state.dispatch.among(places, shares),
            progress=AsyncState.start(0, len(places), self.config.bound, self.committed),
            policy_state=policy.start(len(places)) if policy.measures else self.policy_state,
        )

    def resumed(self, data: Mapping[str, Any]) -> Coordinator:
        """The state that a `Commit` brought, for all ranks of these options, which may be more or fewer than then.

        Where they are others, what was measured of them is forgotten, and so is how far each had run ahead.

        Raises:
            StateDictError: it is of other data, or no state of a coordinator.
        """
        check_keys("Coordinator", data, self.state_dict())
        self.config.check_facts(data["facts"], differ=("world_size",))
        config = self.config
        with reading_state("Coordinator"):
            before = list(data["members"])
            if before == list(range(config.world_size)):
                return self.loaded({**data, "facts": config.facts()})
            first = Coordinator.start(config)
            measured = config.policy.measures  # of ranks that are no longer these
            state = first.policy_state if measured else config.policy.restored(first.policy_state, data["policy_state"])
            progress = AsyncState.start(0, config.world_size, config.bound, int(data["committed"]))
            dispatch = config.dispatch.resumed(data["dispatch"])
            return replace(first, dispatch=dispatch, progress=progress, policy_state=state)

    def seen(self, rank: int, did: str) -> Coordinator:
        """The state where a rank did something last."""
        return replace(self, did=(*self.did[:rank], did, *self.did[rank + 1 :]))

    def state_dict(self) -> dict[str, Any]:
        """All of it but the options, as plain data for JSON."""
        told = {
            "facts": self.config.facts(),
            "dispatch": self.dispatch.state_dict(),
            "policy_state": self.policy.plain(self.policy_state),
            "members": self.members,
            "living": self.living,
            "came": self.progress.came,
            "committed": self.committed,
            "did": self.did,
            "phase": self.phase,
            "term": self.term,
            "asked": self.asked,
            "questions": [astuple(question) for question in self.questions],
            "assignments": [tuple(vars(each).values()) for each in self.assignments],
            "taken": self.taken,
            "recalled": self.recalled,
            "tries": self.tries,
            "stopping": self.stopping,
            "error": self.error,
        }
        data: dict[str, Any] = plain(told)
        return data

    def loaded(self, data: Mapping[str, Any]) -> Coordinator:
        """The state that a `state_dict` tells of, of these options.

        Raises:
            StateDictError: it is of other options, or no state of a coordinator.
        """
        who = "Coordinator"
        first = Coordinator.start(self.config)
        check_keys(who, data, first.state_dict())
        self.config.check_facts(data["facts"])
        with reading_state(who):
            world_size = self.config.world_size
            members = tuple(as_integer(who, "each member", rank, 0, world_size) for rank in data["members"])
            first = replace(first, living=members).among_living()
            came, committed = tuple(map(int, data["came"])), int(data["committed"])
            ended = (False,) * len(members)
            return replace(
                first,
                dispatch=first.dispatch.loaded(data["dispatch"]),
                policy_state=first.policy.restored(first.policy_state, data["policy_state"]),
                living=tuple(map(int, data["living"])),
                progress=AsyncState(0, self.config.bound, came, ended, committed),
                did=tuple(map(str, data["did"])),
                phase=str(data["phase"]),
                term=int(data["term"]),
                asked=int(data["asked"]),
                questions=tuple(Question(*each) for each in data["questions"]),
                assignments=tuple(Assignment(a, b, portions_from(c), *rest) for a, b, c, *rest in data["assignments"]),
                taken=taken_from(data["taken"]),
                recalled=tuple((rank, number, state) for rank, number, state in data["recalled"]),
                tries=int(data["tries"]),
                stopping=bool(data["stopping"]),
                error=str(data["error"]),
            )
