"""How a run goes on with another number of ranks than has saved it: what becomes of the state of each part.

What is alike on all ranks goes to all. What each has counted is put together, and what is left of the samples is dealt
to those who are there, so that each counts once in its epoch. In figures, which tell of steps, samples count twice that
a rank had stepped by on its own and that are dealt again. What was measured of ranks is forgotten: they are others.
The noise of a rank goes on from as far as that of rank 0 had come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minigrad.data.dispatch import Portion
from minigrad.data.intervals import Interval, united
from minigrad.data.ledger import SampleLedger, joined as joined_ledger
from minigrad.distributed.average.averager import ParameterAverager
from minigrad.distributed.balance.dispatcher import Dispatcher
from minigrad.distributed.balance.rounds import Rounds
from minigrad.recording import no_grad
from minigrad.train.epoch import EpochMeter, joined as joined_epoch
from minigrad.train.run.same_run import check_names

States = Sequence[Mapping[str, Any]]  # of each rank that has saved, by name


def adopt(objects: Mapping[str, Any], states: States, rank: int) -> None:
    """Fill a run's objects from what other ranks have saved.

    Args:
        objects: By name.
        states: What each of those had under these names.
        rank: This one.

    Raises:
        StateDictError: it is the state of another run, or does not fit.
    """
    check_names(objects, states[0])
    for name, thing in objects.items():
        if isinstance(thing, Mapping):
            adopt(thing, [each[name] for each in states], rank)
            continue
        load = next((load for kind, load in _LOADS.items() if isinstance(thing, kind)), _as_first)
        load(thing, [each[name] for each in states], rank)
    _deal_again(objects, states)
    _go_on_from_shared(objects)


def _as_first(thing: Any, states: States, rank: int) -> None:
    thing.load_state_dict(states[0])


def _forget(thing: Any, states: States, rank: int) -> None:
    """Begin anew."""


def _load_ledger(ledger: SampleLedger, states: States, rank: int) -> None:
    ledger.load_state_dict(joined_ledger(states))


def _load_meter(meter: EpochMeter, states: States, rank: int) -> None:
    """The first rank counts for all of those."""
    if rank == 0:
        meter.load_state_dict(joined_epoch(states))
    else:
        meter.start(states[0]["epoch"])


def _load_dispatcher(dispatcher: Dispatcher, states: States, rank: int) -> None:
    dispatcher.load_state_dict(dispatcher.dispatch.resumed(states[0]).state_dict())


def _load_averager(averager: ParameterAverager, states: States, rank: int) -> None:
    """What the outer optimizer remembers, which is alike; what this policy measured is not."""
    own = averager.state_dict()
    kept = {name: own[name] for name in ("policy", "samples", "gradients", "batches", "counted", "rounds")}
    averager.load_state_dict({**states[0], **kept})


_LOADS: dict[type, Callable[[Any, States, int], None]] = {
    SampleLedger: _load_ledger,
    EpochMeter: _load_meter,
    Dispatcher: _load_dispatcher,
    ParameterAverager: _load_averager,
    Rounds: _forget,
}


def _deal_again(objects: Mapping[str, Any], states: States) -> None:
    """Of samples that ranks had stepped by, and not combined, nothing is left: they are dealt again."""
    dispatcher, ledger = objects.get("dispatcher"), objects.get("ledger")
    if not isinstance(dispatcher, Dispatcher) or not isinstance(ledger, SampleLedger):
        return
    back: dict[int, list[Interval]] = {}
    for epoch, start, samples, stride in (r for each in states for runs, _ in each["ledger"]["waiting"] for r in runs):
        back.setdefault(epoch, []).extend((start + i * stride, start + i * stride + 1) for i in range(samples))
    if back:
        portions = [Portion(epoch, united(places)) for epoch, places in back.items()]
        nothing = [()] * (dispatcher.dispatch.world_size - 1)
        dispatcher.load_state_dict(dispatcher.dispatch.give_back([portions, *nothing]).state_dict())


def _go_on_from_shared(objects: Mapping[str, Any]) -> None:
    """Where each rank had values of its own, all begin from those that they share."""
    for averager in objects.values():
        if isinstance(averager, ParameterAverager) and not averager.options.outer.makes_alike:
            params = [*averager.module.parameters()]
            with averager.shared():
                shared = [param.detach().clone() for param in params]
            with no_grad():
                for param, value in zip(params, shared):
                    param.copy_(value)
