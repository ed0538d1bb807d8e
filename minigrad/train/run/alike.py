"""What has to be alike on all ranks of a run, by name."""

from __future__ import annotations

from typing import Any

from minigrad.backend.device import to_host
from minigrad.distributed.average.policies import facts_of
from minigrad.distributed.comm.differences import in_words
from minigrad.distributed.record.fingerprint import fingerprint
from minigrad.nn.module import Module
from minigrad.train.checkpoint import Checkpoint
from minigrad.train.run.config import RunConfig

_OWN = {"make_model", "make_optimizer", "train_fn", "dataset", "comm", "devices", "cluster", "callbacks", "timeline"}
_OWN |= {"progress", "guard", "policy", "timeout_s", "keep_memory"}  # a guard is compared where it is asked
_OWN |= {"has_drawn_seed"}


def options_of(config: RunConfig) -> dict[str, str]:
    """The options of a run: all but functions, of which the kind, and what is this rank's own."""
    told = {name: _said(value) for name, value in vars(config).items() if name not in _OWN}
    kept = next((each for each in config.callbacks if isinstance(each, Checkpoint)), None)
    folder = None if kept is None else (str(kept.dir), kept.every, kept.keep, kept.on, kept.background)
    told["scaler"] = "None" if config.scaler is None else str(config.scaler.state_dict())
    told |= {f"policy: {name}": value for name, value in facts_of(config.when).items()}
    return {**told, "Checkpoint": str(folder), "samples": str(len(config.dataset))}


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return str({name: in_words(value[name]) for name in sorted(value)})
    return type(value).__name__ if callable(value) else in_words(value)


def weights_of(model: Module) -> dict[str, str]:
    """The bits of a replica as it was made, in one number."""
    arrays = [tensor.data for tensor in (*model.parameters(), *model.buffers())]
    starts = [sum(array.size for array in arrays[:number]) for number in range(len(arrays))]
    total = sum(int(to_host(fingerprint(array, start))) for array, start in zip(arrays, starts))
    return {"fingerprint of what make_model made by this seed": f"{total % 2**64:016x}"}
