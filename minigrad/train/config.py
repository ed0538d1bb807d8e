"""What a rank's training loop is told: its options, each checked where it is given."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from minigrad.arguments import as_integer, as_real, check_switch, keep_as
from minigrad.distributed.comm.differences import gather_alike
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.ddp.hooks import CommHook
from minigrad.distributed.ddp.parallel import DistributedDataParallel
from minigrad.distributed.record.timeline import Timeline
from minigrad.errors import ArgumentError
from minigrad.nn.module import Module

Role = Literal["coordinator", "worker"]

_OURS = {  # options of DistributedDataParallel that a trainer sees to
    "module": "the trainer wraps its model",
    "comm": "give it to DistributedTrainer",
    "find_unused_parameters": "write find_unused_parameters= beside ddp_options",
    "batch_dim": "give samples_of to SingleDeviceTrainer, by which its samples are counted",
    "sync": "train_batch synchronises in backward",
    "reduce": "a loss is a mean, of as many samples as samples_of says",
    "timeline": "give it to DistributedTrainer, which notes data and optimizer too",
}
OF_A_RUN = {  # those that a run sees to
    **{name: "the run makes it" for name in ("module", "comm")},
    "batch_dim": "return (loss, n) from train_fn, by which samples are counted",
    "sync": "a step synchronises in the backward of its last batch",
    "reduce": "a loss is a mean, of as many samples as train_fn says",
    "check_replicas_every": "write check_replicas_every= beside ddp_options",
    "timeline": "write timeline= beside ddp_options",
}
_SAID = [name for name in inspect.signature(DistributedDataParallel.__init__).parameters if name != "self"]


@dataclass(frozen=True)
class DistributedTrainConfig:
    """One rank's options.

    Attributes:
        world_size: Number of ranks, >= 1.
        rank: This one, 0 <= rank < world_size.
        role: "coordinator" on rank 0, "worker" on the others; None takes the one that fits.
        accumulation_steps: Micro-batches into which each batch is cut, >= 1, so that less has to be kept at one time.
        max_steps: Steps after which `reached_max_steps` is true, >= 1; None for no end.
        max_grad_norm: Clip the combined gradient to this L2 norm, > 0.
        find_unused_parameters: Let a loss leave parameters out.
        ddp_options: More of `DistributedDataParallel`'s, by name: of buckets, buffers and checks, such as
            {"bucket_cap_mb": 5, "broadcast_buffers": "mean", "check_replicas_every": 100, "track_nonfinite": True}.
        comm_hook: Adds up each bucket of gradients, such as `fp16_compress_hook`; see `register_comm_hook`.
        hook_state: Passed on to the hook.

    Raises:
        ArgumentError: a value out of its range, a role that is not the rank's, an option that
            DistributedDataParallel has not, or one that would do nothing here; the message says what to write.
    """

    world_size: int
    rank: int = 0
    role: Role | None = None
    accumulation_steps: int = 1
    max_steps: int | None = None
    max_grad_norm: float | None = None
    find_unused_parameters: bool = False
    ddp_options: Mapping[str, Any] = field(default_factory=dict)
    comm_hook: CommHook | None = None
    hook_state: Any = None

    def __post_init__(self) -> None:
        who = "DistributedTrainConfig"
        keep_as(self, as_integer, "world_size", "accumulation_steps", least=1)
        keep_as(self, as_integer, "rank", least=0, end=self.world_size)
        keep_as(self, as_integer, "max_steps", least=1, optional=True)
        keep_as(self, as_real, "max_grad_norm", above=0.0, finite=True, optional=True)
        check_switch(who, find_unused_parameters=self.find_unused_parameters)
        object.__setattr__(self, "ddp_options", check_ddp_options(who, self.ddp_options))
        if self.comm_hook is not None and not callable(self.comm_hook):
            raise ArgumentError(f"{who}: expected comm_hook to be a function, got {self.comm_hook!r:.100}")
        if self.comm_hook is None and self.hook_state is not None:
            raise ArgumentError(f"{who}: expected no hook_state without a comm_hook, got {self.hook_state!r:.100}")
        fitting: Role = "worker" if self.rank else "coordinator"
        if self.role not in (None, fitting):
            raise ArgumentError(f"{who}: expected role {fitting!r} on rank {self.rank}, got {self.role!r}")
        object.__setattr__(self, "role", fitting)


def check_ddp_options(who: str, options: Any, ours: Mapping[str, str] = _OURS) -> dict[str, Any]:
    """Options of DistributedDataParallel, all of which it has.

    Args:
        ours: Those that who gives it are not among them, with what to write instead.

    Raises:
        ArgumentError: some are, or are none of its.
    """
    if not isinstance(options, Mapping):
        raise ArgumentError(f"{who}: expected ddp_options by name, got {options!r:.100}")
    for name in options:
        if name in ours:
            raise ArgumentError(f"{who}: expected no {name} in ddp_options, got {options[name]!r:.100}: {ours[name]}")
        if name not in _SAID:
            known = ", ".join(sorted(set(_SAID) - set(ours)))
            raise ArgumentError(f"{who}: expected ddp_options of DistributedDataParallel, {known}, got {name!r:.100}")
    return dict(options)


def wrapped(
    model: Module,
    comm: Communicator,
    config: DistributedTrainConfig,
    has_rounds: bool,
    timeline: Timeline | None = None,
) -> DistributedDataParallel:
    """The wrapper that a configuration asks for, of which ranks have the same."""
    hook = config.comm_hook
    alike: dict[str, Any] = {"max_steps": config.max_steps, "max_grad_norm": config.max_grad_norm, "rounds": has_rounds}
    alike["comm_hook"] = None if hook is None else getattr(hook, "__qualname__", type(hook).__name__)
    gather_alike("DistributedTrainer", "options", comm, alike)  # by which ranks stop, step and send
    unused = config.find_unused_parameters
    options = {"find_unused_parameters": unused, "timeline": timeline, **config.ddp_options}
    ddp = DistributedDataParallel(model, comm, **options)
    if hook is not None:
        ddp.register_comm_hook(config.hook_state, hook)
    return ddp
