"""How PyTorch and NumPy write a call: what of it is read as ours, and what to write instead of the rest.

Signatures stay exactly what they are. A call that fits one never comes here; for another one the tables below say which
of our arguments is meant, and which keyword of PyTorch's asks for what we do anyway. All else is a CallError that shows
the signature.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

from minigrad.arguments import is_integer
from minigrad.errors import ArgumentError, CallError

_Class = TypeVar("_Class", bound=type)
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Fits = Callable[[Any, dict[str, Any]], bool]  # whether a value asks for what we do anyway, given the other arguments
_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_OPERATION = "operation"  # in a table: whatever its name is

# ------------------------------------------------------------------------------------------- arguments of ours

_SYNONYMS = {  # the names of ours that may be meant, of all operations
    "input": ("x", "tensors", "data"),
    "self": ("x",),
    "a": ("x",),
    "x1": ("x",),
    "arr": ("x",),
    "other": ("y", "value"),
    "x2": ("y",),
    "exponent": ("y",),
    "mat2": ("y",),
    "vec": ("y",),
    "axis": ("dim", "dims"),
    "axes": ("dims", "dim"),
    "dims": ("dim",),
    "dim": ("dims",),
    "keepdims": ("keepdim",),
    "size": ("shape", "sizes"),
    "shape": ("size", "sizes"),
    "a_min": ("min",),
    "a_max": ("max",),
    "generator": ("rng",),
}
_DRAWING = ("DataLoader", "random_split", "RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler")
_MEANT = {  # of one operation or class, before those
    ("DistributedSampler", "dataset"): ("source",),
    **{(name, "generator"): ("seed",) for name in _DRAWING},
    ("RandomSampler", "data_source"): ("source",),
    ("update", "weight"): ("n",),  # of a metric
    ("update", "preds"): ("value",),
    ("update", "target"): ("n",),
    **{("EveryK", name): ("k",) for name in ("period", "sync_every")},
    ("PostLocalSGD", "period"): ("k",),
    ("PostLocalSGD", "start_localSGD_iter"): ("switch",),
    ("SlowMo", "slowmo_factor"): ("momentum",),
    ("SlowMo", "slowmo_lr"): ("lr",),
    ("StreamingDiLoCo", "fragment_sync_delay"): ("delay",),
    ("StreamingDiLoCo", "fragment_update_alpha"): ("alpha",),
    **{("RunConfig", name): ("epochs",) for name in ("max_epochs", "num_epochs")},
    ("RunConfig", "gradient_clip_val"): ("max_grad_norm",),
    ("Checkpoint", "dirpath"): ("dir",),
    ("gradcheck", "func"): ("function",),
    ("gradcheck", "eps"): ("step",),
    ("gradcheck", "atol"): ("tolerance",),
    ("SequentialSampler", "data_source"): ("source",),
    ("DistributedSampler", "num_replicas"): ("world_size",),
    ("max", "other"): ("dim",),
    ("min", "other"): ("dim",),
}

# -------------------------------------------------------------------------------- keywords that we do not have


def _one_of(*values: Any) -> _Fits:
    return lambda value, given: any(
        value is known or (isinstance(value, (str, bool, int, float, np.generic)) and bool(value == known))
        for known in values
    )


def _never(value: Any, given: dict[str, Any]) -> bool:
    return False


def _always(value: Any, given: dict[str, Any]) -> bool:
    return True


def _own_device(value: Any, given: dict[str, Any]) -> bool:
    """None, or the device of the ranks, by itself or as the only one of a list: as it is, by name or index."""
    device = getattr(given.get("comm") or next(iter(given["module"].parameters()), None), "device", None)
    one = value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
    index = getattr(device, "index", None) if getattr(device, "type", "") == "cuda" else None
    return value is None or (device is not None and (one == device or one == str(device) or _is_index(one, index)))


def _is_index(value: Any, index: int | None) -> bool:
    return index is not None and is_integer(value) and value == index


def _same_end(value: Any, given: dict[str, Any]) -> bool:
    """`drop_last` of PyTorch's DistributedSampler: False is our mode "pad", True our mode "drop"."""
    return value is (given.get("mode", "pad") == "drop") and given.get("mode", "pad") != "exact"


_DDP, _LOADER, _SAMPLER = "DistributedDataParallel", "DataLoader", "DistributedSampler"
_OPTIMIZERS = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "LAMB", "Muon")
_CLIPPING = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm")
_IMPLEMENTATIONS: dict[str, tuple[str, _Fits]] = {  # of a step, among which PyTorch lets one choose
    "foreach": ("a step always updates all parameters in one pass", _one_of(None, True, False)),
    "fused": ("a step always is one kernel on a GPU where there is one", _one_of(None, True, False)),
    "capturable": ("a step is not captured: leave it out", _one_of(False)),
    "differentiable": ("there are no gradients of gradients: leave it out", _one_of(False)),
}
_WORKERS = "write prefetch=2, which makes batches ahead in a thread"
_PROJECTED = "write scaled_dot_product_attention, which takes what is projected already"
_EVERY = "write ParameterAverager(model, comm, EveryK(sync_every), this)"
_REDUCTION = "write reduction="
_PLACES = "write ranks=, devices=, comm= or cluster=, or start it under a launcher"
KEYWORDS: dict[tuple[str, str], tuple[str, _Fits]] = {  # of PyTorch's: what to do here, and what is taken
    (_OPERATION, "out"): ("use the result, or write y.copy_(result)", _one_of(None)),
    (_OPERATION, "layout"): ("there are dense tensors only", _one_of(None)),
    (_OPERATION, "memory_format"): ("leave it out: on a GPU the layers lay images out as it likes them", _one_of(None)),
    (_OPERATION, "non_blocking"): ("a copy is in the order of its stream", _one_of(True, False)),
    (_OPERATION, "copy"): ("write .clone()", _one_of(None, False)),
    (_OPERATION, "pin_memory"): ("leave it out", _one_of(None, False)),
    (_OPERATION, "names"): ("axes have no names here", _one_of(None)),
    (_OPERATION, "requires_grad"): ("only floats have a gradient: write .requires_grad_()", _one_of(False)),
    (_OPERATION, "sparse_grad"): ("gradients are dense", _one_of(False)),
    (_OPERATION, "size_average"): (_REDUCTION, _one_of(None)),
    (_OPERATION, "reduce"): (_REDUCTION, _one_of(None)),
    (_OPERATION, "return_indices"): ("indices are not given", _one_of(False)),
    (_OPERATION, "divisor_override"): ("scale the result", _one_of(None)),
    (_OPERATION, "where"): ("write ops.where(mask, x, y)", _one_of(True, None)),
    ("searchsorted", "sorter"): ("write sorted_sequence[sorter]", _one_of(None)),
    ("scatter", "reduce"): ("write scatter_add() for a sum", _one_of(None)),
    ("scatter_", "reduce"): ("write scatter_add_() for a sum", _one_of(None)),
    ("gradcheck", "rtol"): ("tolerance is relative above 1", _always),
    ("gradcheck", "raise_exception"): ("catch the AssertionError", _one_of(True)),
    ("gradcheck", "fast_mode"): ("it always is one direction for each input", _one_of(True, False)),
    ("gradcheck", "nondet_tol"): ("a function has to give the same numbers again", _one_of(0.0)),
    ("save", "pickle_protocol"): ("nothing is pickled: leave it out", _never),
    ("load", "pickle_module"): ("nothing is pickled: leave it out", _one_of(None)),
    ("load", "mmap"): ("leave it out", _one_of(None, False)),
    ("cov", "fweights"): ("repeat the columns: write x.repeat_interleave(fweights, 1)", _one_of(None)),
    ("cov", "aweights"): ("write ((x - m) * aweights) @ (x - m).T of the weighted mean m", _one_of(None)),
    ("wait", "timeout"): ("write init_process_group(timeout=...), which holds for every call", _one_of(None)),
    **{("multi_head_attention_forward", name): (_PROJECTED, _one_of(None)) for name in ("static_k", "static_v")},
    ("embedding", "max_norm"): ("clip the weight after the step", _one_of(None)),
    ("embedding", "norm_type"): ("there is no max_norm", _always),
    ("embedding", "scale_grad_by_freq"): ("gradients are not scaled by counts", _one_of(False)),
    ("embedding", "sparse"): ("gradients are dense", _one_of(False)),
    ("Embedding", "max_norm"): ("clip the weight after the step", _one_of(None)),
    ("Embedding", "norm_type"): ("there is no max_norm", _always),
    ("Embedding", "scale_grad_by_freq"): ("gradients are not scaled by counts", _one_of(False)),
    ("Embedding", "sparse"): ("gradients are dense", _one_of(False)),
    ("Convolution", "padding_mode"): (
        "write nn.functional.pad(x, pad, mode) before it, and padding=0", _one_of("zeros")
    ),
    ("ConvolutionBack", "padding_mode"): ("leave it out: what is cut off has no other mode", _one_of("zeros")),
    ("MaxPool", "return_indices"): ("indices are not given", _one_of(False)),
    ("AvgPool", "divisor_override"): ("scale the result", _one_of(None)),
    ("Module", "size_average"): (_REDUCTION, _one_of(None)),
    ("Module", "reduce"): (_REDUCTION, _one_of(None)),
    **{(kind, "proj_size"): ("write an LSTM, which has projections", _one_of(0)) for kind in ("RNN", "GRU")},
    (_DDP, "device_ids"): ("move the module to comm.device, which is where it trains", _own_device),
    (_DDP, "output_device"): ("outputs are on comm.device", _own_device),
    (_DDP, "dim"): ("write batch_dim=", _one_of(0)),
    (_DDP, "process_group"): ("leave it out, or give a communicator as second argument", _one_of(None)),
    (_DDP, "check_reduction"): ("an unfinished bucket raises in backward", _one_of(True, False)),
    (_DDP, "gradient_as_bucket_view"): ("gradients are views of the buckets", _one_of(True, False)),
    (_DDP, "static_graph"): ("write find_unused_parameters=True where the graph may leave some out", _one_of(False)),
    (_DDP, "delay_all_reduce_named_params"): ('write sync="manual" and call sync_gradients()', _one_of(None)),
    (_DDP, "param_to_hook_all_reduce"): ('write sync="manual" and call sync_gradients()', _one_of(None)),
    (_DDP, "mixed_precision"): ("call the model within minigrad.autocast(), or register a comm hook", _one_of(None)),
    (_DDP, "device_mesh"): ("leave it out, or give a communicator as second argument", _one_of(None)),
    (_DDP, "skip_all_reduce_unused_params"): ("write find_unused_parameters=True", _one_of(False)),
    (_LOADER, "num_workers"): (_WORKERS, _one_of(0)),
    (_LOADER, "prefetch_factor"): (_WORKERS, _one_of(None)),
    (_LOADER, "persistent_workers"): (_WORKERS, _one_of(False)),
    (_LOADER, "pin_memory"): ("write device=comm.device, which copies each batch", _one_of(False)),
    (_LOADER, "pin_memory_device"): ("write device=comm.device, which copies each batch", _one_of("")),
    (_LOADER, "timeout"): ("a dataset that raises ends the iteration", _one_of(0)),
    (_LOADER, "worker_init_fn"): ("there are no worker processes, and each batch has its seed", _one_of(None)),
    (_LOADER, "multiprocessing_context"): ("there are no worker processes", _one_of(None)),
    (_LOADER, "in_order"): ("batches come in order", _one_of(True)),
    ("Accuracy", "task"): ("write accuracy.update(x > 0, labels)", _one_of("multiclass")),
    ("Accuracy", "num_classes"): ("logits or classes say it", _always),
    ("Accuracy", "top_k"): ("write accuracy.update(fraction, n)", _one_of(1)),
    ("Accuracy", "average"): ("it is that over all samples: write an Accuracy for each class", _one_of("micro")),
    ("Metric", "dist_sync_on_step"): ("write result(comm) where all ranks are to meet", _one_of(False)),
    ("Metric", "sync_on_compute"): ("write result(SoloCommunicator()) for one rank's own", _one_of(True)),
    ("Metric", "nan_strategy"): ("a metric that met a NaN is NaN: leave the value out of update", _never),
    ("EveryK", "warmup_steps"): ("write PostLocalSGD(switch, k), which begins apart after switch steps", _one_of(0)),
    **{(kind, "sync_every"): (_EVERY, _never) for kind in ("DiLoCo", "StreamingDiLoCo", "SlowMo")},
    **{(kind, "outer_optimizer"): ("write its lr and momentum", _never) for kind in ("DiLoCo", "StreamingDiLoCo")},
    ("RunConfig", "ckpt_path"): ("write resume=True, and a Checkpoint(folder) among the callbacks", _one_of(None)),
    ("RunConfig", "precision"): ("write autocast='bfloat16', or 'float16' with a scaler", _one_of(None)),
    ("RunConfig", "accumulate_grad_batches"): ("write policy=EveryK(k) for k batches a step", _one_of(1)),
    **{("RunConfig", name): (_PLACES, _never) for name in ("strategy", "accelerator", "num_nodes")},
    ("Checkpoint", "monitor"): ("keep= keeps the newest: save the best by a callback of its own", _one_of(None)),
    ("Checkpoint", "save_top_k"): ("write keep=, of the newest", _never),
    ("Checkpoint", "every_n_epochs"): ("write every=", _never),
    ("Checkpoint", "every_n_train_steps"): ("write every=, and on='step'", _never),
    (_SAMPLER, "drop_last"): ('write mode="drop" for True, mode="pad" for False', _same_end),
    **{(name, "foreach"): ("all gradients are taken as few arrays", _one_of(None, True, False)) for name in _CLIPPING},
    **{(kind, name): entry for kind in _OPTIMIZERS for name, entry in _IMPLEMENTATIONS.items()},
}
FORMS = {  # how a call that does not fit the signature at all is written
    _DDP: "DistributedDataParallel(module, comm), with comm = distributed.init()",
    _SAMPLER: "DistributedSampler(dataset), with the ranks of distributed.init() or run, or rank= and world_size=",
    "ElChe": "ElChe.start(world_size, CadenceConfig(anchor=10))",
    "RunConfig": "Trainer.start(make_model, make_optimizer, train_fn, dataset, batch_size=32, epochs=10), and more "
    "options of train.RunConfig",
}


# ------------------------------------------------------------------------------------------------ how it is read


def spoken(function: _Function) -> _Function:
    """An operation as users call it, which takes PyTorch's and NumPy's keywords too; one call more than itself."""
    found = _spoken.get(function)
    if found is not None:
        return found  # type: ignore[return-value]

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except TypeError:
            if _fits(function, args, options):  # an error of the operation itself
                raise
        bound = _reread(function, function.__name__, (function.__name__, _OPERATION), args, options)
        return function(*bound.args, **bound.kwargs)

    _spoken[function] = _spoken[call] = call
    return call  # type: ignore[return-value]


_spoken: dict[Callable[..., Any], Callable[..., Any]] = {}  # what users call, by itself and by what it calls


def foreign_forms(kind: _Class) -> _Class:
    """Let a class say what to write where it is made in the way of PyTorch or of an earlier form; see `KEYWORDS`."""
    init = vars(kind)["__init__"]

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        try:
            return init(self, *args, **options)  # type: ignore[no-any-return]
        except TypeError:
            if _fits(init, (self, *args), options):
                raise
        made = type(self) if type(self).__init__ is checked else kind  # a class without an __init__ of its own
        bound = _reread(init, made.__name__, tuple(c.__name__ for c in made.__mro__), (self, *args), options)
        init(*bound.args, **bound.kwargs)

    setattr(kind, "__init__", checked)
    return kind


def offer_operations(module: dict[str, Any]) -> None:
    """Let the operations that a module has gathered be called as PyTorch and NumPy write it, and pickled by name."""
    for name, value in module.items():
        if isinstance(value, FunctionType) and value.__module__.startswith("minigrad.ops."):
            module[name] = call = spoken(value)
            if name == value.__name__ and call.__module__ == value.__module__:
                call.__module__ = module["__name__"]


def offer_classes(module: dict[str, Any]) -> None:
    """The same for the classes that a package has gathered from its files, and those that they are made of."""
    kinds = [kind for value in module.values() if isinstance(value, type) for kind in value.__mro__]
    for kind in kinds:
        init = vars(kind).get("__init__")
        ours = kind.__module__.startswith(f"{module['__name__']}.") and not getattr(kind, "_is_protocol", False)
        if ours and isinstance(init, FunctionType) and not hasattr(init, "__wrapped__"):
            foreign_forms(kind)


def _fits(function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    try:
        inspect.signature(function).bind(*args, **options)
    except TypeError:
        return False
    return True


def _reread(
    function: Callable[..., Any], who: str, known_as: tuple[str, ...], args: tuple[Any, ...], options: dict[str, Any]
) -> inspect.BoundArguments:
    """The arguments of a call that does not fit the signature, as it has them.

    Args:
        known_as: The names under which the tables may have something of it.

    Raises:
        CallError: the call can't be read.
        ArgumentError: a keyword of PyTorch's asks for something that we do not do.
    """
    signature = inspect.signature(function)
    names = list(signature.parameters)
    rest = next((n for n, p in signature.parameters.items() if p.kind is p.VAR_POSITIONAL), None)
    by_place = names if rest is None else names[: names.index(rest) + 1]  # what comes behind has no place
    used, own, foreign = set(by_place[: len(args)]), dict[str, Any](), dict[str, Any]()
    for name, value in options.items():
        meant = _meaning(name, known_as, [n for n in names if n not in used and (n not in options or n == rest)])
        if name in names and name != rest:
            own[name] = value
        elif meant is not None:
            own[meant] = value
            used.add(meant)
        else:
            foreign[name] = value
    spread = own.pop(rest) if rest is not None and rest in own else ()
    entries = {name: next((KEYWORDS[k, name] for k in known_as if (k, name) in KEYWORDS), None) for name in foreign}
    unknown = [name for name, entry in entries.items() if entry is None]
    given = {**dict(zip(by_place, args)), **own}
    for name in sorted(foreign.keys() - set(unknown)):
        advice, fits = entries[name]  # type: ignore[misc]
        if not fits(foreign[name], given):
            raise ArgumentError(f"{who}: expected no {name}, got {foreign[name]!r:.100}: {advice}")
    needed = [n for n, p in signature.parameters.items() if p.default is p.empty and p.kind not in _REST]
    missing = [name for name in needed if name not in given]
    if missing and who in FORMS:
        raise CallError(f"{who}: expected {FORMS[who]}, got no {', '.join(missing)}")
    try:
        bound = signature.bind(*args, **own, **{name: foreign[name] for name in unknown})
    except TypeError as error:
        fault = _fault(error, names, [_meaning(name, known_as, names) for name in unknown])
        raise CallError(f"{who}: expected {who}{_shown(signature)}, got a call with {fault}") from None
    if rest is not None and spread != ():
        bound.arguments[rest] = tuple(spread) if isinstance(spread, (tuple, list)) else (spread,)
    return bound


def _meaning(name: str, known_as: tuple[str, ...], free: list[str]) -> str | None:
    """Which of our arguments that nobody has given yet is meant."""
    meant = next((_MEANT[who, name] for who in known_as if (who, name) in _MEANT), _SYNONYMS.get(name, ()))
    return name if name in free else next((own for own in meant if own in free), None)


def _shown(signature: inspect.Signature) -> str:
    """A signature without its annotations."""
    plain = [p.replace(annotation=p.empty) for name, p in signature.parameters.items() if name != "self"]
    return re.sub(r"<class '(\w+)'>", r"\1", str(inspect.Signature(plain)))


def _fault(error: TypeError, names: list[str], meant: list[str | None]) -> str:
    """What Python says is wrong with a call, and which argument may be meant, or was given under two names."""
    import difflib

    text = str(error).removeprefix("got ")
    if "unexpected keyword" not in text:
        return text
    if meant[0] is not None:
        return f"two values for {meant[0]}"
    near = difflib.get_close_matches(text.rpartition(" '")[2].rstrip("'"), names, 1)
    return f"{text}: did you mean {near[0]}?" if near else text
