"""Twin: rank 0 makes the step of all ranks alone, from their batches, and names the first tensor that differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from minigrad.arguments import as_integer
from minigrad.distributed.comm.context import communicator_for
from minigrad.distributed.inspect.twin.any_twin import AnyTwin, check_parts
from minigrad.distributed.inspect.twin.compare import Difference, TwinReport
from minigrad.distributed.inspect.twin.parcels import gather_arrays
from minigrad.distributed.inspect.twin.watch import RankWatch
from minigrad.errors import ArgumentError, RankFailedError, ReplicaMismatchError
from minigrad.nn.module import Module
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.scaler import GradScaler
from minigrad.tensor import Tensor


class Twin(AnyTwin):
    """A second training run, on one process, that is made from the same batches and compared with the ranks' own.

    Ranks that agree on a wrong number look alike to `replicas_agree`: a mean of means, a micro-batch that is missing,
    what is divided twice. The twin finds these. In each step that is due rank 0 gets the batches of all ranks and runs,
    from the state in which the step began, each rank's forward, `loss_fn` and backward, with that rank's random numbers
    and buffers, then the weighted mean and the optimizer: in the model's dtypes and in float64, which tells how much of
    a difference may be rounding. Gradients, parameters and buffers are compared; gradients as they are when `step` is
    called, so call it right behind `optimizer.step()`, before these are dropped or a schedule is stepped.

    Hooks on modules are called by the twin too. Those on parameters are not, since a wrapper may send by them; where
    they change a gradient, that is a difference, of which the report says so.

    It takes the place of nothing, and costs all ranks a step on one of them, twice: take it out of a run that is to be
    fast. No bit of the training changes.

    Args:
        model: The wrapper: `DistributedDataParallel`, or one of your own; its `module` is what is trained.
        optimizer: Of parameters of that module; None where nothing steps, and gradients alone are compared.
        loss_fn: loss_fn(module, batch), the mean loss over a batch, as the loop computes it; it calls the module that
            it is given, which is the twin's own. Mixed precision belongs into it: `with autocast(...)`. What it draws
            before that call is not drawn again: random numbers are replayed from the first forward of a batch on.
        every: Steps between two that are compared, >= 1: those of number every, 2·every, ...
        comm: The ranks; by default the wrapper's `comm`, else those of this context.
        reduce: "mean" of all samples, or "sum" of the ranks' gradients; by default as the wrapper has it, else "mean".
        batch_dim: The axis by which samples are counted; by default as the wrapper has it, else 0.
        before_step: before_step(module) does what the loop does to gradients between backward and step, such as
            `lambda module: nn.utils.clip_grad_norm_(module.parameters(), 1.0)`.
        scaler: The `GradScaler` that scales the loss; a step that it leaves out is left out here too.
        ulps: How many ulps may come of another order of sums; more where a hook compresses. An ulp is that of the
            largest number which was added up for a tensor.
        raises: Whether a difference is an error; else `step` returns it, and the run goes on.

    Attributes:
        steps: How many were made.
        first: The report of the first step that differed; None before.

    Raises:
        ArgumentError: a wrapper without module, an optimizer of other parameters, a SyncBatchNorm inside, whose
            statistics are those of all ranks, or another argument out of range.

    Example:
        >>> from minigrad import distributed, nn, optim, randn
        >>> def body(comm):
        ...     ddp = distributed.DDP(nn.Linear(3, 1), comm)
        ...     optimizer = optim.SGD(ddp.parameters(), lr=0.1)
        ...     twin = distributed.Twin(ddp, optimizer, lambda module, x: module(x).square().mean())
        ...     for n in (2, 5):
        ...         x = randn(n + comm.rank, 3)
        ...         optimizer.zero_grad()
        ...         ddp(x).square().mean().backward()
        ...         optimizer.step()
        ...         report = twin.step(x)
        ...     return report.agrees
        >>> distributed.run(body, 2)
        [True, True]
    """

    def __init__(
        self,
        model: Any,
        optimizer: Optimizer | None,
        loss_fn: Callable[[Any, Any], Tensor],
        every: int = 1,
        *,
        comm: Any = None,
        reduce: str | None = None,
        batch_dim: int | None = None,
        before_step: Callable[[Module], Any] | None = None,
        scaler: GradScaler | None = None,
        ulps: float = 8.0,
        raises: bool = True,
    ) -> None:
        module = _module_of(model)
        self._comm = communicator_for("Twin", getattr(model, "comm", None) if comm is None else comm)
        options: dict[str, Any] = {"before_step": before_step, "scaler": scaler, "ulps": ulps, "raises": raises}
        self._reducer: Any = getattr(model, "reducer", None)
        reduce = _reduce_of(model) if reduce is None else reduce
        super().__init__(module, self._comm.device, optimizer, loss_fn, every, reduce=reduce, **options)
        axis = getattr(model, "batch_dim", 0) if batch_dim is None else batch_dim
        axis = as_integer("Twin", "batch_dim", axis)
        self._watch = RankWatch(self._comm.rank, module, axis, None if self._comm.rank else self._take_state)
        self._watch.begin_step(self._is_due)

    # ------------------------------------------------------------------------------------------------- in the loop

    def accumulate(self, batch: Any, samples: float | None = None) -> None:
        """Say that a batch has been through backward under `no_sync`; `step` says it of the last one of a step.

        Args:
            batch, samples: See `step`.

        Raises:
            ArgumentError, DtypeError: see `step`.
        """
        self._watch.take(batch, samples)

    def step(self, batch: Any, samples: float | None = None) -> TwinReport | None:
        """Compare a step, where it is due; every rank calls it, behind `optimizer.step()`.

        Args:
            batch: What loss_fn gets: tensors, arrays and plain values, in dicts, lists and tuples. None on a rank that
                had none. Where several were accumulated, the last one.
            samples: What the loss is a mean over, as the wrapper counts it; by default the length of axis `batch_dim`
                of the first tensor in the batch, 0 without a batch.

        Returns:
            What was found, the same on all ranks; None where the step was not due.

        Raises:
            TwinMismatchError: on all ranks, where something differs, unless `raises` is False.
            ArgumentError: no forward of the module since the last call, samples that can't be counted, or ranks that
                have run out of data inside `join`, and so don't call this.
            DtypeError: something else in the batch.
            ReplicaMismatchError: ranks are at different steps. RankFailedError: rank 0 could not make the step alone,
                and raises what it failed of.
        """
        self._watch.take(batch, samples)
        is_due = self._is_due
        self.steps += 1
        report = self._compare() if is_due else None
        if self._comm.rank == 0:
            self._keep_gradients()
        self._watch.begin_step(self._is_due)
        return self._conclude(f"rank {self._comm.rank}: Twin", report)

    def close(self) -> None:
        """Listen no more."""
        self._watch.close()

    # ------------------------------------------------------------------------------------------------------- inside

    def _compare(self) -> TwinReport:
        comm = self._comm
        active = self._reducer.last_active if getattr(self._reducer, "joining", False) else []
        if active and len(active) < comm.world_size:
            raise ArgumentError(
                f"rank {comm.rank}: Twin: expected a step of all ranks, got one of ranks {active}, since the others "
                "wait at the end of join: leave the twin out, or give these batches of 0 samples in its place"
            )
        told = comm.all_gather_object({"step": self.steps, **self._watch.told()})
        if any(each["step"] != self.steps for each in told):
            raise ReplicaMismatchError(
                f"rank {comm.rank}: Twin: expected all ranks at one step, got {[each['step'] for each in told]}"
            )
        gathered = gather_arrays(comm, self._watch.arrays, [each["arrays"] for each in told])
        report, error = None, None
        if comm.rank == 0:
            try:
                report = self._judged([self._watch], told, gathered)
            except Exception as failure:
                error = failure
        words = f"{type(error).__name__}: {error}" if error is not None else None
        plain, words = comm.all_gather_object([_plain(report), words])[0]
        if error is not None:
            raise error
        if words is not None:
            raise RankFailedError(f"rank {comm.rank}: Twin: rank 0 could not make the step alone: {words}")
        return _report_of(plain)


def _module_of(model: Any) -> Module:
    module = getattr(model, "module", None)
    if not isinstance(module, Module):
        raise ArgumentError(f"Twin: expected a wrapper whose module is a Module, got {type(model).__name__}")
    check_parts(module)
    return module


def _reduce_of(model: Any) -> str:
    """How a wrapper of ours combines; others take the mean as a rule."""
    own = getattr(getattr(model, "reducer", None), "own", None)
    return "mean" if getattr(own, "mean", True) else "sum"


def _plain(report: TwinReport | None) -> Any:
    """A report as JSON data."""
    if report is None:
        return None
    plain = asdict(report)
    plain["differences"] = [{**each, "index": list(each["index"])} for each in plain["differences"]]
    return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def _report_of(plain: dict[str, Any]) -> TwinReport:
    differences = tuple(Difference(**{**each, "index": tuple(each["index"])}) for each in plain["differences"])
    tuples = {name: tuple(plain[name]) for name in ("apart", "notes")}
    return TwinReport(**{**plain, **tuples, "differences": differences})
