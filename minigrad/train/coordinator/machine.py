"""The coordinator's steps: `(state, message) -> (state, commands)`. Pure: no clock, device or communicator.

A round: each member is dealt its batches (`Train`) and makes them (`Trained`); where all have made theirs, those who
have samples give and all combine (`Combine`), but keep what comes out apart (`Combined`); only where all have it does
it hold (`Commit`), and the samples count as taken. Under `Async` a rank begins its next rounds meanwhile, as far as the
bound lets it. A rank that fails before the commit takes the round with it: the living go back to the last commit
(`Restore`), and its samples, with those of all rounds after it, are dealt again; or they save and end (`Save`, `Stop`).

Every question has a time to be answered in (`Await`, `Expired`), so nothing waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from minigrad.distributed.average.policies import RoundTime
from minigrad.errors import ArgumentError
from minigrad.train.coordinator.messages import (
    Answer,
    Await,
    Began,
    Broken,
    Combine,
    Combined,
    Command,
    Commit,
    Contribution,
    Drop,
    Expired,
    Failed,
    Finish,
    Finished,
    Noted,
    Order,
    Recall,
    Recalled,
    CoordinatorMessage,
    Restore,
    Restored,
    Save,
    Saved,
    Stop,
    StopAsked,
    Train,
    Trained,
    Working,
)
from minigrad.train.coordinator.state import Assignment, Coordinator, Question

Commands = list[Command]


def step(state: Coordinator, message: CoordinatorMessage) -> tuple[Coordinator, tuple[Command, ...]]:
    """The state after a message, and what is to be done, in this order.

    Args:
        message: See `messages`. Those of one rank may come in any order, late, or twice.

    Raises:
        ArgumentError: it is no message.

    Example:
        >>> from minigrad.data import ChunkPool
        >>> from minigrad.data.dispatch import Dispatch
        >>> from minigrad.distributed.average import EveryK
        >>> from minigrad.train.coordinator import CoordinatorConfig
        >>> dispatch = Dispatch(ChunkPool(6, batch_size=2), world_size=2, epochs=1)
        >>> state = Coordinator.start(CoordinatorConfig(dispatch, EveryK(1)))
        >>> state, commands = step(state, Began())
        >>> [type(command).__name__ for command in commands]
        ['Train', 'Train', 'Await']
        >>> state, commands = step(state, Failed(1, "killed"))
        >>> commands[0].error
        'rank 1 has failed: killed; it was dealt batches of round 1 last'
    """
    out: Commands = []
    if state.is_over:
        return state, (Noted(state.term, f"all is over, so {_told(message)} counts for nothing"),)
    if isinstance(message, Answer):
        return _answered(state, message, out), tuple(out)
    if type(message) not in _OTHERS:
        raise ArgumentError(f"coordinator: expected a message, got {message!r:.200}")
    return _OTHERS[type(message)](state, message, out), tuple(out)


def take_over(
    own: Coordinator, living: Iterable[int], *, state: Mapping[str, Any] | None, term: int, error: str
) -> tuple[Coordinator, tuple[Command, ...]]:
    """A new coordinator, on the lowest rank that lives, where the rank of the one before has died; its first commands.

    It asks all who live which round they have a commit of. Who has the last one proves that all had combined it: so it
    holds for all. Then it is as with any rank that fails.

    Args:
        own: `Coordinator.start` of the options.
        living: Ranks that are alive as far as is known.
        state: That of the last `Commit` which this rank got; None where there was none.
        term: Above that of all commands which ranks have got; one more for each coordinator that has died.
        error: How the last one died, in words.
    """
    known = own if state is None else own.loaded(state)
    alive = tuple(sorted({*living} & {*known.members}))
    if not alive:
        raise ArgumentError(f"take_over: expected a rank of {known.members} that lives, got {tuple(living)}")
    if term <= known.term:
        raise ArgumentError(f"take_over: expected a term above {known.term}, which has been, got {term}")
    out: Commands = []
    known = replace(known, living=alive, term=term, phase="gathering", error=error)
    reason = f"rank {alive[0]} coordinates from now on: {error}"
    return _ask(known, [Recall(term, reason, rank, known.committed) for rank in alive], out), tuple(out)


# --------------------------------------------------------------------------------------------------------- answers


def _answered(state: Coordinator, message: Answer, out: Commands) -> Coordinator:
    """Take in an answer, where it is that to a question which is open."""
    kind = _ANSWERS[type(message)][0]
    asked = (kind, message.rank, message.round, message.ask)
    found = [each for each in state.questions if (each.kind, each.rank, each.round, each.ask) == asked]
    if message.term != state.term or not found:
        return _ignored(state, message, out)
    return _ANSWERS[type(message)][1](state, found[0], message, out)


def _ignored(state: Coordinator, message: Answer, out: Commands) -> Coordinator:
    mine = [each for each in state.questions if each.rank == message.rank]
    opened = [f"{each.ask} ({each.kind} of round {each.round})" for each in mine]
    if message.term != state.term:
        why = f"it is term {state.term}"
    else:
        why = f"rank {message.rank} has to answer {' and '.join(opened) or 'nothing'}"
    out.append(Noted(state.term, f"{_told(message)} is late, or came twice: {why}"))
    return state


def _working(state: Coordinator, question: Question, message: Working, out: Commands) -> Coordinator:
    state = replace(state, asked=state.asked + 1)
    others = tuple(each for each in state.questions if each != question)
    waiting = replace(question, timer=state.asked)
    reason = f"rank {message.rank} goes on: {message.batches} batches of round {message.round}"
    out.append(Await(state.term, reason, state.asked, state.config.timeout_s, (message.rank,)))
    state = state.seen(message.rank, f"was at batch {message.batches} of round {message.round}")
    return replace(state, questions=(*others, waiting))


def _trained(state: Coordinator, question: Question, message: Trained, out: Commands) -> Coordinator:
    made = [
        replace(each, samples=float(message.samples), batches=message.batches, seconds=float(message.seconds))
        if (each.rank, each.round) == (message.rank, message.round)
        else each
        for each in state.assignments
    ]
    state = _closed(state, question, f"trained {message.batches} batches of round {message.round}")
    member = state.members.index(message.rank)
    return _advance(
        replace(state, assignments=tuple(made), progress=state.progress.took(member, message.round)), out
    )


def _combined(state: Coordinator, question: Question, message: Combined, out: Commands) -> Coordinator:
    state = _closed(state, question, f"combined round {message.round}")
    if any(each.kind == "Combine" for each in state.questions):
        return state
    return _advance(_commit(state, message.seconds, out), out)


def _broken(state: Coordinator, question: Question, message: Broken, out: Commands) -> Coordinator:
    state = state.seen(message.rank, f"could not combine round {message.round}")
    return _try_again(state, f"rank {message.rank} could not combine round {message.round}: {message.error}", out)


def _try_again(state: Coordinator, why: str, out: Commands) -> Coordinator:
    """A round could not be combined, and nobody can say whose fault it is: who does not go back, is not there."""
    state = replace(state, tries=state.tries + 1)
    if state.tries < state.config.most_tries:
        return _restore(state, f"{why}; try {state.tries} of {state.config.most_tries}", out)
    named = "; ".join(f"rank {rank} {state.did[rank]} last" for rank in state.living)
    error = f"coordinator: expected round {state.committed + 1} to be combined, got no end {state.tries} times: {why}"
    return _save(replace(state, error=f"{error}: {named}"), error, out)


def _restored(state: Coordinator, question: Question, message: Restored, out: Commands) -> Coordinator:
    state = _closed(state, question, f"went back to round {message.round}")
    return state if state.questions else _advance(replace(state, phase="running"), out)


def _saved(state: Coordinator, question: Question, message: Saved, out: Commands) -> Coordinator:
    state = _closed(state, question, f"saved round {message.round}")
    return state if state.questions else _stop(state, out)


def _finished(state: Coordinator, question: Question, message: Finished, out: Commands) -> Coordinator:
    state = _closed(state, question, f"had all {message.round} rounds")
    return state if state.questions else _stop(state, out)


def _closed(state: Coordinator, question: Question, did: str) -> Coordinator:
    left = tuple(each for each in state.questions if each != question)
    return replace(state.seen(question.rank, did), questions=left)


# ------------------------------------------------------------------------------------------------------ other messages


def _began(state: Coordinator, message: Began, out: Commands) -> Coordinator:
    if state.phase != "new":
        out.append(Noted(state.term, f"it has begun already, and is {state.phase}"))
        return state
    return _advance(replace(state, phase="running"), out)


def _failed(state: Coordinator, message: Failed, out: Commands) -> Coordinator:
    if message.rank not in state.living:
        out.append(Noted(state.term, f"rank {message.rank} has left already: {message.error}"))
        return state
    error = f"rank {message.rank} has failed: {message.error}; it {state.did[message.rank]} last"
    return _lose(state.seen(message.rank, "failed"), (message.rank,), error, out)


def _expired(state: Coordinator, message: Expired, out: Commands) -> Coordinator:
    late = [each for each in state.questions if each.timer == message.timer and state.term == message.term]
    if not late:
        out.append(Noted(state.term, f"all whom timer {message.timer} was for have come"))
        return state
    ranks = tuple(sorted(each.rank for each in late))
    if late[0].kind == "Combine":  # those who wait in it for one that is missing are no different from that one
        seconds = f"{state.config.timeout_s:g} s"
        return _try_again(state, f"round {late[0].round} is not combined on {_named(ranks)} after {seconds}", out)
    named = "; ".join(f"rank {rank} {state.did[rank]} last" for rank in ranks)
    wanted = f"{late[0].kind} of round {late[0].round}"
    error = (
        f"coordinator: expected an answer to {wanted} within {state.config.timeout_s:g} s, got none of "
        f"{_named(ranks)}: {named}"
    )
    out.extend(Drop(state.term, error, rank, state.committed) for rank in ranks)
    for rank in ranks:
        state = state.seen(rank, "was dropped")
    return _lose(state, ranks, error, out)


def _stop_asked(state: Coordinator, message: StopAsked, out: Commands) -> Coordinator:
    if state.phase in ("gathering", "saving", "finishing"):
        out.append(Noted(state.term, f"{message.why}: it ends after what is under way, {state.phase}"))
        return replace(state, stopping=True)
    return _save(state, message.why, out)


# ------------------------------------------------------------------------------------------------------------ a round


def _advance(state: Coordinator, out: Commands) -> Coordinator:
    """Deal, and combine or commit what all have made, until that leads to nothing more; end where all is committed."""
    moved = True
    while moved:
        state = _deal(_on_to_next_epoch(state), out)
        state, moved = _complete(state, out)
    dispatch = state.dispatch
    if state.assignments or dispatch.remaining or dispatch.epoch + 1 < (dispatch.epochs or 0):
        return state
    reason = f"all {dispatch.epochs} epochs are committed, in {state.committed} rounds"
    orders = [Finish(state.term, reason, rank, state.committed) for rank in state.living]
    return _ask(replace(state, phase="finishing"), orders, out)


def _on_to_next_epoch(state: Coordinator) -> Coordinator:
    """The next epoch, where all of this one is committed."""
    while (
        not state.dispatch.remaining
        and state.dispatch.epoch + 1 < (state.dispatch.epochs or 0)
        and not any(portion.epoch == state.dispatch.epoch for each in state.assignments for portion in each.portions)
    ):
        state = replace(state, dispatch=state.dispatch.next_epoch())
    return state


def _deal(state: Coordinator, out: Commands) -> Coordinator:
    """Give work to those who have none, and may begin their next round."""
    came, busy = state.progress.came, {each.rank for each in state.assignments if each.samples is None}
    idle = [member for member, rank in enumerate(state.members) if rank not in busy]
    if not state.config.bound:
        if len(idle) < len(came) or max(came) > state.committed or not state.dispatch.remaining:
            return state
        dispatch, batches = state.dispatch.round(state.quotas())
        dealt = {member: portions for member, portions in enumerate(batches.of_ranks) if portions}
        return _assigned(replace(state, dispatch=dispatch), dealt, batches.reason, out)
    for member in sorted(idle, key=lambda member: (came[member], member)):
        if came[member] - state.committed > state.config.bound:
            continue
        quotas = state.quotas()
        dispatch, portions, reason = state.dispatch.take(member, quotas, quotas[member])
        if portions:
            _, ahead = replace(state.progress, rank=member).waits_for()
            state = _assigned(replace(state, dispatch=dispatch), {member: portions}, f"{reason}; {ahead}", out)
    return state


def _assigned(state: Coordinator, dealt: Mapping[int, tuple[Any, ...]], reason: str, out: Commands) -> Coordinator:
    orders: list[Order] = []
    for member, portions in dealt.items():
        rank, number = state.members[member], state.progress.came[member] + 1
        orders.append(Train(state.term, reason, rank, number, portions=portions))
        state = state.seen(rank, f"was dealt batches of round {number}")
        state = replace(state, assignments=(*state.assignments, Assignment(rank, number, portions)))
    return _ask(state, orders, out)


def _complete(state: Coordinator, out: Commands) -> tuple[Coordinator, bool]:
    """Combine the next round where all have made it; those whom nothing is left for take part without samples.

    Returns:
        The state, and whether a round was committed here, since nobody had samples.
    """
    number = state.committed + 1
    parts = [each for each in state.assignments if each.round == number]
    if not parts or any(each.samples is None for each in parts):
        return state, False
    if any(each.kind == "Combine" for each in state.questions):
        return state, False
    for member, last in enumerate(state.progress.came):
        if last < number:
            state = replace(state, progress=state.progress.took(member, number))
    givers = [each for each in sorted(parts, key=lambda each: each.rank) if each.samples]
    if not givers:
        return _commit(state, 0.0, out), True
    samples = tuple(float(each.samples or 0) for each in givers)
    ranks = tuple(each.rank for each in givers)
    reason = f"round {number} is made by all: {_named(ranks)} give {samples} samples"
    orders = [
        Combine(state.term, reason, rank, number, members=state.living, givers=ranks, samples=samples)
        for rank in state.living
    ]
    return _ask(state, orders, out), False


def _commit(state: Coordinator, seconds: float, out: Commands) -> Coordinator:
    """All have the round: it holds."""
    number = state.committed + 1
    parts = {each.rank: each for each in state.assignments if each.round == number}
    taken = tuple(Contribution(rank, parts[rank].samples or 0.0, parts[rank].portions) for rank in sorted(parts))
    policy_state, why = state.next_combination(0)[0], ""
    if state.policy.measures:
        none = Assignment(0, number, ())
        made = [parts.get(rank, none) for rank in state.members]
        times = [RoundTime(each.batches, 1e3 * each.seconds, 1e3 * seconds) for each in made]
        policy_state, why = state.policy.settle(policy_state, times)
    left = tuple(each for each in state.assignments if each.round != number)
    progress = state.progress.applied_next()
    state = replace(state, assignments=left, progress=progress, taken=taken, policy_state=policy_state, tries=0)
    data = state.settled().state_dict()
    weight = sum(each.samples for each in taken)
    reason = f"all have round {number}, of {weight:g} samples" + (f"; {why}" if why else "")
    orders = [Commit(state.term, reason, rank, number, taken=taken, state=data) for rank in state.living]
    out.extend(orders)
    return state


# ------------------------------------------------------------------------------------------------------------ failure


def _lose(state: Coordinator, ranks: tuple[int, ...], error: str, out: Commands) -> Coordinator:
    """Ranks are gone."""
    living = tuple(rank for rank in state.living if rank not in ranks)
    questions = tuple(each for each in state.questions if each.rank not in ranks)
    state = replace(state, living=living, questions=questions)
    if not living:
        out.append(Noted(state.term, f"nobody is left: {error}"))
        return replace(state, phase="over", error="; ".join(filter(None, (state.error, error))))
    if state.phase == "gathering":
        return state if questions else _gather_over(state, out)
    if state.phase == "new" and state.config.on_failure == "shrink":
        return state.among_living()
    if state.phase == "saving":
        if state.config.on_failure == "shrink" and not state.error:  # it was asked to end: the others do so well
            return _save(state, error, out)
        state = replace(state, error=state.error or error)
        return state if questions else _stop(state, out)
    if state.config.on_failure == "stop":
        return _save(replace(state, error=error), error, out)
    if state.phase == "finishing":
        return state if questions else _stop(state, out)
    return _restore(state, error, out)


def _restore(state: Coordinator, reason: str, out: Commands) -> Coordinator:
    """Back to the last commit, with those who live."""
    state = replace(state.among_living(), phase="restoring", error="")
    number, members = state.committed, state.members
    why = f"{reason}; {_named(members)} go on from round {number}, and do the next again"
    return _ask(state, [Restore(state.term, why, rank, number, members=members) for rank in members], out)


def _save(state: Coordinator, reason: str, out: Commands) -> Coordinator:
    """Write down the last commit, then end."""
    state = replace(state.settled(), phase="saving")
    number, living = state.committed, state.living
    why = f"{reason}; a checkpoint of round {number}, then the end"
    orders = [Save(state.term, why, rank, number, members=living, error=state.error) for rank in living]
    return _ask(state, orders, out)


def _stop(state: Coordinator, out: Commands) -> Coordinator:
    reason = state.error or f"all have what is committed, up to round {state.committed}"
    out.extend(Stop(state.term, reason, rank, state.committed, error=state.error) for rank in state.living)
    return replace(state, phase="over")


def _recalled(state: Coordinator, question: Question, message: Recalled, out: Commands) -> Coordinator:
    """What a rank knows of the last commit."""
    state = _closed(state, question, f"told that round {message.last} was committed last")
    state = replace(state, recalled=(*state.recalled, (message.rank, message.last, message.state)))
    return state if state.questions else _gather_over(state, out)


def _gather_over(state: Coordinator, out: Commands) -> Coordinator:
    """All who live have told: go on from the last commit that one of them has, which the others get now."""
    last, data = max(((number, data) for _, number, data in state.recalled), key=lambda each: each[0])
    best = state if data is None or last <= state.committed else state.loaded(data)
    found = replace(
        best,
        living=state.living,
        did=state.did,
        term=state.term,
        asked=max(best.asked, state.asked),
        recalled=(),
        stopping=state.stopping,
        error=state.error,
    )
    reason = f"round {found.committed} was committed before the coordinator died: another rank has got it"
    for rank, number, _ in state.recalled:
        if rank in found.living and number < found.committed:
            out.append(Commit(found.term, reason, rank, found.committed, taken=found.taken, state=data))
    if found.stopping or found.config.on_failure == "stop":
        return _save(found, found.error, out)
    return _restore(found, found.error, out)


# ------------------------------------------------------------------------------------------------------------- helpers


def _ask(state: Coordinator, orders: Iterable[Order], out: Commands) -> Coordinator:
    """Command what is to be answered, within the time that there is."""
    asked = [replace(order, ask=state.asked + 1) for order in orders]
    if not asked:
        return state
    number, ranks = state.asked + 1, tuple(order.rank for order in asked)
    questions = [Question(type(order).__name__, order.rank, order.round, number, number) for order in asked]
    out.extend(asked)
    reason = f"an answer to {type(asked[0]).__name__} of round {asked[0].round} by {_named(ranks)}"
    out.append(Await(state.term, reason, number, state.config.timeout_s, ranks))
    return replace(state, asked=number, questions=(*state.questions, *questions))


def _named(ranks: tuple[int, ...]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + " and ".join(map(str, ranks))


def _told(message: CoordinatorMessage) -> str:
    what = type(message).__name__
    if isinstance(message, Answer):
        return f"{what} of rank {message.rank} to question {message.ask} of round {message.round}, term {message.term},"
    return f"{what} of rank {message.rank}" if isinstance(message, Failed) else what


_ANSWERS: dict[type[CoordinatorMessage], tuple[str, Callable[..., Coordinator]]] = {
    Working: ("Train", _working),
    Trained: ("Train", _trained),
    Combined: ("Combine", _combined),
    Broken: ("Combine", _broken),
    Restored: ("Restore", _restored),
    Recalled: ("Recall", _recalled),
    Saved: ("Save", _saved),
    Finished: ("Finish", _finished),
}
_OTHERS: dict[type[CoordinatorMessage], Callable[..., Coordinator]] = {
    Began: _began,
    Failed: _failed,
    Expired: _expired,
    StopAsked: _stop_asked,
}
