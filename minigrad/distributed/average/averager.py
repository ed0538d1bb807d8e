"""ParameterAverager: combines the parameters, or the gradients, of ranks that train on their own in between.

It holds no formula: a policy says when, an outer optimizer what then, `travelling` sends and waits. Here they meet, in
one order on all ranks: this rank's n-th combination meets the n-th of each other one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal

from minigrad.arguments import as_samples, check_switch
from minigrad.distributed.average.beside import combine_beside
from minigrad.distributed.average.exchange import DivergenceExchange
from minigrad.distributed.average.gradients import LocalGradients
from minigrad.distributed.average.options import AverageOptions, check_facts
from minigrad.distributed.average.outer import Mean, OuterOptimizer
from minigrad.distributed.average.policies import Policy, StepsMade, Sync
from minigrad.distributed.average.report import Arrived, AverageReport, Hears, Told, number_in
from minigrad.distributed.average.saved import check_length, origin_of, reading
from minigrad.distributed.average.shared import shared_values
from minigrad.distributed.average.subject import Subject
from minigrad.distributed.average.timing import RoundTimes
from minigrad.distributed.average.travelling import TravellingFragment
from minigrad.distributed.average.wrapped import EventListener, module_and_ranks, notes_of
from minigrad.distributed.comm.protocol import Communicator

_WHO = "ParameterAverager"
_NUMBERS = ("number", "turn", "batches", "age", "why", "counted")  # attributes that are plain data


class ParameterAverager:
    """Lets ranks train on their own, and combines what they have come to where a policy says so.

    With average="parameters" it is told of each step that this rank's optimizer has made:

        loss.backward(); optimizer.step(); optimizer.zero_grad(); averager.step(len(x))

    With average="gradients" it stands between backward and step. Gradients of steps that are not combined are kept
    inside, and are None outside, so that `optimizer.step()` does nothing then:

        loss.backward(); averager.step(len(x)); optimizer.step(); optimizer.zero_grad()

    Where that is data-parallel training, and where it is another algorithm, is said at `Sync` and `EveryK`.

    Ranks may make different numbers of steps between two combinations, and count by their samples. A rank that has
    no more data calls `finish()`; all do at the end of an epoch, which combines what is left.

    Args:
        ddp_or_module: This rank's replica, or its wrapper; trained parameters are combined, frozen ones are left alone.
        comm: The ranks; by default those of the wrapper, or of this context.
        policy: When to combine; see `Sync`, `EveryK`, `Cadence`, `PostLocalSGD`, `Async`, `Policy`.
        outer: What then; see `Mean`, `SlowMo`, `DiLoCo`, `StreamingDiLoCo`, `EASGD`. One with F fragments combines
            fragment i after steps k·(i+1)/F of each period of EveryK(k); what it sends it takes `delay` steps before.
        average: "parameters" or "gradients", which need `Mean()`.
        optimizer: The one that makes this rank's steps, where `optimizer_state` or `finish` has to know it.
        optimizer_state: What becomes of its moments in a combination: "keep" them, "average" them over the ranks, or
            "reset" them to those of a new one; see `average.moments`. With fragments, after the last one of a period.
        buffers: "merge": batch norm's statistics exactly, others as `average.buffers` says; with fragments as the
            moments. "keep": each rank's stay as they are.
        integer_buffers: What becomes of those that have no mean: "compare", "keep" or "refuse" them.
        guard: Asked before a `Cadence` combines more rarely; see `LevelGuard`.
        init_sync: Overwrite parameters and buffers by those of rank 0; False compares them instead.
        timeline: Hears of each combination by event("average"). A `Timeline` has the spans, too: forward by module and
            backward by leaf, and of what is combined the wire and the waiting; each step() ends a step.

    Attributes:
        module, comm: What was given.
        reason: Why the policy is as it is, where it changes.

    Raises:
        ReplicaMismatchError: modules or options differ between ranks, or, without init_sync, values; on all of them.
        ArgumentError: an option that is none, or options that do not go together.
        DeviceError: a parameter is not on the communicator's device.

    Example:
        >>> from minigrad import nn, distributed, optim, randn
        >>> from minigrad.distributed.average import EveryK
        >>> def train(comm):
        ...     model = nn.Linear(3, 1)
        ...     averager = ParameterAverager(model, comm, EveryK(2))
        ...     optimizer = optim.SGD(model.parameters(), lr=0.1)
        ...     reports = []
        ...     for _ in range(4):
        ...         optimizer.zero_grad()
        ...         model(randn(5, 3)).square().mean().backward()
        ...         optimizer.step()
        ...         reports.append(averager.step(5))
        ...     return [report and (report.reason, report.samples) for report in reports]
        >>> distributed.run(train, 2)[0]
        [None, ('2 steps are made', 20.0), None, ('2 steps are made', 20.0)]
    """

    def __init__(
        self,
        ddp_or_module: Any,
        comm: Communicator | None = None,
        policy: Policy = Sync(),
        outer: OuterOptimizer = Mean(),
        *,
        average: Literal["parameters", "gradients"] = "parameters",
        optimizer: Any = None,
        optimizer_state: Literal["keep", "average", "reset"] = "keep",
        buffers: Literal["merge", "keep"] = "merge",
        integer_buffers: Literal["compare", "keep", "refuse"] = "compare",
        guard: Callable[..., Any] | None = None,
        init_sync: bool = True,
        timeline: EventListener | None = None,
    ) -> None:
        self.module, self.comm = module_and_ranks(_WHO, ddp_or_module, comm)
        self._notes = notes_of(_WHO, timeline, self.comm, self.module)
        beside = (optimizer, optimizer_state, buffers, integer_buffers)
        self.options = AverageOptions(policy, outer, average, *beside, guard)
        check_switch(_WHO, init_sync=init_sync)
        self._subject = Subject(_WHO, self.module, self.comm)
        self.options.check_optimizer_of(self._subject.params)
        self._subject.meet({**self.options.facts(), "init_sync": str(init_sync)}, init_sync)
        self._times = RoundTimes(_WHO, self._notes.comm) if policy.measures else None
        self._by = by = self._times.comm if self._times is not None else self._notes.comm
        self._rounds = self._subject.async_rounds(by, policy)
        self._gradients: LocalGradients | None = None
        self._fragments: list[TravellingFragment] = []
        if average == "gradients":
            self._gradients = LocalGradients(by, self._subject.buffers, self._subject.params)
        elif self._rounds is None:
            self._fragments = self._subject.fragments(by, outer)
        self._exchange, self._told = DivergenceExchange(by), Told()
        self._state = policy.start(self.comm.world_size)
        if self.options.is_guarded:
            self._state = policy.guarded(self._state, self.options.guard)
        self.reason, self._origin = "no combination yet", "made"
        self._number = self._turn = self._batches = self._age = 0
        self._samples = [0.0] * len(self._fragments)  # since each fragment was sent last
        self._why = ""  # the fragment is away
        self._finished: Any = None  # how many ranks had, in the last combination
        self._ledger: Hears | None = None
        self._counted = 0.0  # samples that it was not told of

    @property
    def ended(self) -> int:
        """How many ranks had no more data in the last combination of parameters; waits for its device."""
        return 0 if self._finished is None else int(number_in(self._finished))

    @property
    def policy_state(self) -> Any:
        """The state of the policy, equal on all ranks after a combination; of `Cadence` it has `el_che`."""
        return self._state

    def keep(self, ledger: Hears) -> None:
        """Write what was dealt to this rank into its ledger when it has been combined; see `keep_ledger`."""
        self._ledger, ledger.keeps_pending = ledger, True  # their steps are in the parameters, which are saved
        if self._rounds is not None:
            self._rounds.ledger = ledger

    # ----------------------------------------------------------------------------------------------- training

    def step(self, n: float) -> AverageReport | None:
        """Count a step of this rank, and combine where the policy says so.

        Args:
            n: Samples of this step, tokens, or whatever its loss is a mean over; finite and >= 0. A rank whose steps
                since the last combination had none takes over the others' values (as much as an outer optimizer that
                keeps a part of its own lets it), and its own count nothing for others, not even NaN. Where that holds
                on all ranks, all stays as it is.

        Returns:
            A report where something was combined, else None.

        Raises:
            ArgumentError: n is no such number, or one that the dtype of parameters can't be weighted by (in float32
                above 4e12 or below 2e-13, not 0), or a parameter was unfrozen since. LayoutError: one was replaced.
            UnreducedGradientError: of gradients, where a rank with samples has none of a parameter.
            CollectiveMismatchError: the other ranks combine something else, or go on from another state.
        """
        samples = as_samples(f"{_WHO}.step", n, self._subject.limit)
        self._subject.check()
        with self._notes:
            return self._count(samples)

    def _count(self, samples: float) -> AverageReport | None:
        if self._rounds is not None:
            return self._rounds.step(samples)
        self._batches, self._counted = self._batches + 1, self._counted + samples
        if self._gradients is not None:
            due, why = self._due(self._gradients.samples + samples)
            if due:
                return self._report(why, self._combine_gradients(self._gradients, samples))
            self._gradients.take(samples)
            return None
        self._samples = [before + samples for before in self._samples]
        fragment = self._fragments[self._turn]
        if not fragment.is_away:
            due, why = self._due(self._samples[self._turn])
            if not due:
                return None
            self._send(why)
        if self._age == self.options.outer.delay:
            return self._land()
        self._age += 1
        return None

    def finish(self, landed: Callable[[AverageReport], object] | None = None) -> AverageReport:
        """Combine what is left, and take part in the combinations of ranks that still have data, until none has.

        All ranks call it at the end of their data, and then go on from equal values, where the outer optimizer makes
        values equal. With average="gradients" it also makes the steps of the optimizer, as the others do, but none of
        a schedule.

        Args:
            landed: Called with the report of what was on its way until now, which the others may still get in `step`.

        Returns:
            The report of the last combination.

        Raises:
            ArgumentError: with average="gradients", where no optimizer was given.
        """
        self._subject.check()
        with self._notes:
            return self._finish(landed)

    def _finish(self, landed: Callable[[AverageReport], object] | None) -> AverageReport:
        if self._rounds is not None:
            return self._rounds.finish()
        if self._gradients is not None:
            return self._finish_gradients(self._gradients)
        if self._fragments[self._turn].is_away:
            report = self._land()
            if landed is not None:
                landed(report)
        left = len(self._fragments)
        while left:  # each fragment once more when all have finished
            self._send("this rank has no more data", finished=True)
            report = self._land()
            if left < len(self._fragments) or number_in(self._finished) == self.comm.world_size:
                left -= 1
        self._turn = 0
        self._told.end()
        return report

    def shared(self) -> AbstractContextManager[None]:
        """Around an evaluation, or a checkpoint: the parameters are what all ranks share, such as the center of EASGD.

        Afterwards each rank has its own again. Buffers stay as they are.

        Raises:
            ArgumentError: the outer optimizer keeps nothing of the kind, or a parameter was changed inside.

        Example:
            >>> from minigrad.distributed import SoloCommunicator
            >>> from minigrad.distributed.average import EASGD
            >>> model = nn.Linear(2, 1)
            >>> averager = ParameterAverager(model, SoloCommunicator(), outer=EASGD(0.5))
            >>> with averager.shared():
            ...     y = model(minigrad.ones(3, 2))
        """
        return shared_values(f"{_WHO}.shared", self.options.outer, self._fragments)

    def _finish_gradients(self, gradients: LocalGradients) -> AverageReport:
        optimizer = self.options.optimizer_to_step()
        while True:
            arrived = self._combine_gradients(gradients, 0.0, finished=True)
            if number_in(arrived.total):
                optimizer.step()
                optimizer.zero_grad()
            report = self._report("this rank has no more data", arrived)
            if number_in(arrived.finished) == self.comm.world_size:
                return report

    # ------------------------------------------------------------------------------------------------- inside

    def _due(self, samples: float) -> tuple[bool, str]:
        """Whether something is combined, or sent, after this step, with so many samples since the last; and why."""
        options = self.options
        if options.spacing is None:
            made = StepsMade(self.comm.rank, self.comm.world_size, self._batches, samples)
            self._state, due, why = options.policy.decide(self._state, made)
            return due, why
        step, period = (self._turn + 1) * options.spacing, options.policy.period
        return self._batches + options.outer.delay >= options.spacing, f"step {step} of {period}"

    def _take_counted(self) -> float:
        """This rank's samples since the ledger was told last."""
        counted, self._counted = self._counted, 0.0
        return counted

    def _layout(self) -> str:
        """What all ranks have to agree on."""
        return f"{_WHO} of a {type(self.module).__name__}, {self._origin}, combination {self._number + 1}"

    def _send(self, why: str, finished: bool = False) -> None:
        samples, self._samples[self._turn] = self._samples[self._turn], 0.0
        if self._ledger is not None and self._turn + 1 == len(self._fragments):
            self._ledger.sent(self._take_counted())
        self._fragments[self._turn].send(samples, finished, self._layout())
        self._why, self._age = why, 0

    def _land(self) -> AverageReport:
        """Take in what was sent, and let this rank go on from what the outer optimizer makes of it."""
        fragment = self._fragments[self._turn]
        arrived = fragment.receive(measure=True)
        self._told.end()
        self._exchange.start(fragment.sums(arrived), self._batches)
        self._told = Told(self._exchange, keeps=self.comm.device.type == "cpu")
        fragment.apply(arrived)
        self._finished = arrived.finished
        turn, self._turn = self._turn, (self._turn + 1) % len(self._fragments)
        if not self._turn:
            combine_beside(_WHO, self.module, self.options, self._by, arrived)
        return self._report(self._why, arrived, turn, self._told)

    def _combine_gradients(self, gradients: LocalGradients, samples: float, finished: bool = False) -> Arrived:
        arrived = gradients.combine(samples, self._layout(), finished)
        combine_beside(_WHO, self.module, self.options, self._by, arrived)
        return arrived

    def _report(self, why: str, arrived: Arrived, turn: int = 0, told: Told | None = None) -> AverageReport:
        self._number += 1
        batches, self._batches = self._batches, 0
        if self._times is not None:
            divergence = told.read() if told is not None and self.options.is_guarded else None
            for times, apart in self._times.turn(batches, divergence):
                self._state, self.reason = self.options.policy.settle(self._state, times, apart)
        if self._turn == 0 and self._ledger is not None:
            self._ledger.combined(None if self._fragments else self._take_counted())  # of fragments it was sent
        self._by.event("average", number=self._number, fragment=turn, reason=why, state=self.reason)
        return AverageReport(self._number, why, turn, arrived.nbytes, arrived.total, told)

    # ------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """The state to resume a run with, bit for bit: plain data, and tensors that share memory with this.

        Each rank has its own: between two combinations ranks differ. What is on its way is waited for.

        Raises:
            StateDictError: of `Async`, where rounds of this rank are on their way: call `finish` on all ranks before.
        """
        told = {name: getattr(self, f"_{name}") for name in _NUMBERS}
        told |= {"reason": self.reason, "samples": list(self._samples), "options": self.options.facts()}
        told |= {"policy": self.options.policy.plain(self._state)}
        gathered = None if self._gradients is None else self._gradients.state()
        told |= {"gradients": gathered, "rounds": None if self._rounds is None else self._rounds.state()}
        return {**told, "fragments": [each.state() for each in self._fragments]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` told; all ranks do, each from its own.

        The parameters are the module's, and are loaded with it. Ranks that were given states of different combinations
        are told so in the next one.

        Raises:
            StateDictError: it is that of other options or parameters, or no such state; nothing was changed then.
        """
        with reading(_WHO):
            numbers = {name: state[name] for name in _NUMBERS}
            check_facts(_WHO, self.options.facts(), state["options"])
            policy = self.options.policy.restored(self._state, state["policy"])
            fragments = check_length(_WHO, "fragments", state["fragments"], self._fragments)
            gathered = state["gradients"]
            for each, saved in zip(self._fragments, fragments):
                each.check_state(_WHO, saved)
            if self._gradients is not None:
                self._gradients.check_state(_WHO, gathered)
            samples = [float(each) for each in check_length(_WHO, "fragments", state["samples"], self._samples)]
            reason, rounds = str(state["reason"]), state["rounds"]
            if self._rounds is not None:
                self._rounds.check_state(_WHO, rounds)
        for name, value in numbers.items():
            setattr(self, f"_{name}", value)
        self._state, self._samples, self.reason = policy, samples, reason
        for each, saved in zip(self._fragments, fragments):
            each.load_state(saved)
        if self._gradients is not None:
            self._gradients.load_state(gathered)
        if self._rounds is not None:
            self._rounds.load_state(rounds)
        if self._times is not None:
            self._times.forget()
        self._origin = origin_of([self._number, self._turn, *(each.number() for each in self._fragments)])
