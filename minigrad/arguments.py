"""The checks of what users pass: one wording, one place, so that a mistake shows where it was made.

`as_...` gives the value as the plain Python type that the rest of the library works with; `check_...` only refuses.
NumPy's numbers count as Python's; a bool is no number, and a text is never read as one.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, TypeVar

import numpy as np

from minigrad.errors import ArgumentError

Pair = Any  # an int, or a pair of ints for height and width

MOST_PIXELS = 2**31  # along an axis, and more than any image has
_SHARES_TOLERANCE = 1e-6
PYTHON_NUMBERS = (float, int, bool)  # asked first: a look into the registry of an ABC costs 0.2 µs


def is_number(value: object) -> bool:
    """Whether a value is a Python or NumPy real scalar, a bool included."""
    return value.__class__ in PYTHON_NUMBERS or isinstance(value, (numbers.Real, np.bool_))


def is_real(value: object) -> bool:
    """Whether a value is a Python or NumPy real scalar, and no bool."""
    return is_number(value) and not isinstance(value, (bool, np.bool_))


def is_integer(value: object) -> bool:
    """Whether a value is a Python or NumPy integer, and no bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def as_real(
    who: str,
    name: str,
    value: Any,
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: float | None = None,
    below: float | None = None,
    finite: bool = False,
) -> float:
    """A number in [least, most] as a float; greater than `above`, less than `below` and finite where they say so.

    Raises:
        ArgumentError: another type, NaN, or out of range.
    """
    number = value if value.__class__ is float else _real(value)
    fits = least <= number <= most and (above is None or number > above) and (below is None or number < below)
    if not fits or (finite and math.isinf(number)):
        wanted = "a number" if math.isfinite(most) or below is not None or not finite else "a finite number"
        hint = ": write .item(), which reads its number" if hasattr(value, "item") and not is_number(value) else ""
        raise ArgumentError(
            f"{who}: expected {name} to be {wanted}{_range(least, most, above, below)}, got {value!r:.100}{hint}"
        )
    return number


def _real(value: Any) -> float:
    """A number as a float; NaN for what is none, which no range holds."""
    if not is_real(value):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _range(least: float, most: float, above: float | None, below: float | None) -> str:
    """A range in words, with a space before it; nothing where there is no bound."""
    lower, closed = (least, "[") if above is None else (above, "(")
    upper, end = (most, "]") if below is None else (below, ")")
    if math.isfinite(upper):
        return f" in {closed}{lower:g}, {upper:g}{end}"
    return f" {'>=' if closed == '[' else '>'} {lower:g}" if math.isfinite(lower) else ""


def as_amount(who: str, name: str, value: Any) -> float:
    """A finite number >= 0 as a float.

    Raises:
        ArgumentError: another type, NaN, infinite or negative.
    """
    if value.__class__ is float and 0.0 <= value < math.inf:  # as in every step of an optimizer
        return value
    return as_real(who, name, value, 0.0, finite=True)


def as_samples(who: str, samples: Any) -> float:
    """A number of samples, tokens or weights, >= 0, as a float; a tensor or an array of one element is read.

    Raises:
        ArgumentError: it is no finite number >= 0.
    """
    value = samples
    if not is_number(samples) and hasattr(samples, "item"):
        try:
            value = samples.item()
        except ValueError:  # of several elements
            value = None
    number = value if value.__class__ is float else _real(value)
    if not 0.0 <= number < math.inf:
        raise ArgumentError(f"{who}: expected a finite number of samples >= 0, got {samples!r:.100}")
    return number


def as_integer(who: str, name: str, value: Any, least: int | None = None, end: int | None = None) -> int:
    """An integer of at least `least`, and below `end`.

    Raises:
        ArgumentError: another type, or out of range.
    """
    if not is_integer(value) or (least is not None and value < least) or (end is not None and value >= end):
        bounds = "" if least is None else f" >= {least}" if end is None else f" in [{least}, {_limit(end)})"
        raise ArgumentError(f"{who}: expected {name} to be an integer{bounds}, got {value!r:.100}")
    return int(value)


def _limit(end: int) -> str:
    return f"2**{end.bit_length() - 1}" if end >= 2**31 and not end & (end - 1) else str(end)


def as_pair(who: str, name: str, value: Pair, least: int) -> tuple[int, int]:
    """An argument for height and width: one integer for both, or two.

    Raises:
        ArgumentError: something else, a value below `least`, or one beyond any image.
    """
    values = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(values) != 2 or not all(is_integer(v) and least <= v < MOST_PIXELS for v in values):
        raise ArgumentError(
            f"{who}: expected {name} to be an integer >= {least} and < 2**31, or two of them, got {value!r:.100}"
        )
    return int(values[0]), int(values[1])


def as_sequence(who: str, name: str, value: Any) -> Sequence[Any]:
    """A list or a tuple as it is.

    Raises:
        ArgumentError: something else.
    """
    if not isinstance(value, (list, tuple)):
        raise ArgumentError(f"{who}: expected {name} to be a list or a tuple, got {value!r:.100}")
    return value


def as_list(who: str, what: str, values: Any) -> list[Any]:
    """Values for each rank as a list.

    Raises:
        ArgumentError: they are no values one after the other.
    """
    unordered = isinstance(values, (str, bytes, Mapping, Set))
    if unordered or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        raise ArgumentError(f"{who}: expected {what} as a sequence with a value for each rank, got {values!r:.100}")
    return list(values)


def keep_as(config: Any, check: Callable[..., Any], *names: str, optional: bool = False, **bounds: Any) -> None:
    """Put what an `as_...` made of them in the place of attributes, also of a frozen dataclass.

    Args:
        optional: None stays.

    Raises:
        ArgumentError: see the check.
    """
    for name in names:
        value = getattr(config, name)
        if value is not None or not optional:
            object.__setattr__(config, name, check(type(config).__name__, name, value, **bounds))


def check_generator(who: str, rng: Any) -> None:
    """Refuse a source of random numbers that is neither a NumPy generator nor None.

    Raises:
        ArgumentError: it is something else.
    """
    if rng is not None and not isinstance(rng, np.random.Generator):
        raise ArgumentError(f"{who}: expected rng to be a numpy.random.Generator, got {type(rng).__name__}")


def check_counts(who: str, least: int = 1, **counts: Any) -> None:
    """Refuse anything but integers of at least `least`; the keywords name them.

    Raises:
        ArgumentError: another type, or too small.
    """
    for name, count in counts.items():
        as_integer(who, name, count, least)


def check_sizes(who: str, least: int = 1, **sizes: Any) -> None:
    """Refuse anything but integers, or tuples of them, of at least `least`; the keywords name them.

    Raises:
        ArgumentError: another type, or too small.
    """
    for name, size in sizes.items():
        values = size if isinstance(size, (tuple, list)) else (size,)
        if not values or not all(is_integer(value) and value >= least for value in values):
            raise ArgumentError(f"{who}: expected {name} of at least {least}, got {size!r:.100}")


def check_real(who: str, least: float = -math.inf, most: float = math.inf, **values: Any) -> None:
    """Refuse anything but a finite number in [least, most]; the keywords name them.

    Raises:
        ArgumentError: another type, or out of range.
    """
    for name, value in values.items():
        as_real(who, name, value, least, most, finite=True)


def check_choice(who: str, choices: tuple[str, ...], **values: Any) -> None:
    """Refuse anything but one of the choices; the keywords name them.

    Raises:
        ArgumentError: something else; the choices are listed.
    """
    for name, value in values.items():
        if not isinstance(value, str) or value not in choices:
            listed = ", ".join(repr(choice) for choice in choices)
            raise ArgumentError(f"{who}: expected {name} to be one of {listed}, got {value!r:.100}")


def check_shares(who: str, shares: Any) -> None:
    """Refuse shares that are not finite fractions >= 0 of sum 1.

    Raises:
        ArgumentError: they are not; the message holds them.
    """
    given: list[float] = as_list(who, "shares", shares)
    good = all(0.0 <= _real(share) < math.inf for share in given)
    if not good or not abs(math.fsum(given) - 1.0) <= _SHARES_TOLERANCE:
        total = f" of sum {math.fsum(given):.9g}" if good else ""
        raise ArgumentError(f"{who}: expected shares as finite numbers >= 0 of sum 1, got {given!r}{total}")


def check_switch(who: str, **values: Any) -> None:
    """Refuse anything but True and False; the keywords name them.

    Raises:
        ArgumentError: something else.
    """
    for name, value in values.items():
        if value is not True and value is not False:
            raise ArgumentError(f"{who}: expected {name} to be True or False, got {value!r:.100}")


# ------------------------------------------------------------------------------------- forms that we do not have

_Class = TypeVar("_Class", bound=type)
_Fits = Callable[[Any, dict[str, Any]], bool]  # whether a value asks for what we do anyway, given the other arguments


def _one_of(*values: Any) -> _Fits:
    return lambda value, given: any(
        value is known or (isinstance(value, (str, bool, int, float, np.generic)) and bool(value == known))
        for known in values
    )


def _own_device(value: Any, given: dict[str, Any]) -> bool:
    """None, or the device of the communicator, by itself or as the only one of a list: as it is, by name or index."""
    device = getattr(given.get("comm"), "device", None)
    one = value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
    index = getattr(device, "index", None) if getattr(device, "type", "") == "cuda" else None
    return value is None or (device is not None and (one == device or one == str(device) or _is_index(one, index)))


def _is_index(value: Any, index: int | None) -> bool:
    return index is not None and is_integer(value) and value == index


def _same_world(value: Any, given: dict[str, Any]) -> bool:
    return is_integer(value) and value == given.get("world_size")


def _same_end(value: Any, given: dict[str, Any]) -> bool:
    """`drop_last` of PyTorch's DistributedSampler: False is our mode "pad", True our mode "drop"."""
    return value is (given.get("mode", "pad") == "drop") and given.get("mode", "pad") != "exact"


_DDP, _LOADER, _SAMPLER = "DistributedDataParallel", "DataLoader", "DistributedSampler"
_OPTIMIZERS = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta")
_IMPLEMENTATIONS: dict[str, tuple[str, _Fits]] = {  # of a step, among which PyTorch lets one choose
    "foreach": ("a step always updates all parameters in one pass", _one_of(None, True, False)),
    "fused": ("a step always is one kernel on a GPU where there is one", _one_of(None, True, False)),
    "capturable": ("a step is not captured: leave it out", _one_of(False)),
    "differentiable": ("there are no gradients of gradients: leave it out", _one_of(False)),
}
_WORKERS = "write prefetch=2, which makes batches ahead in a thread"
KEYWORDS: dict[tuple[str, str], tuple[str, _Fits]] = {  # of PyTorch's: what to do here, and what is taken
    (_DDP, "device_ids"): ("move the module to comm.device, which is where it trains", _own_device),
    (_DDP, "output_device"): ("outputs are on comm.device", _own_device),
    (_DDP, "dim"): ("write batch_dim=", _one_of(0)),
    (_DDP, "process_group"): ("give comm, from distributed.init(), as second argument", _one_of(None)),
    (_DDP, "check_reduction"): ("an unfinished bucket raises in backward", _one_of(True, False)),
    (_DDP, "gradient_as_bucket_view"): ("gradients are views of the buckets", _one_of(True, False)),
    (_DDP, "static_graph"): ("write find_unused_parameters=True where the graph may leave some out", _one_of(False)),
    (_DDP, "delay_all_reduce_named_params"): ('write sync="manual" and call sync_gradients()', _one_of(None)),
    (_DDP, "param_to_hook_all_reduce"): ('write sync="manual" and call sync_gradients()', _one_of(None)),
    (_DDP, "mixed_precision"): ("call the model within minigrad.autocast(), or register a comm hook", _one_of(None)),
    (_DDP, "device_mesh"): ("give comm, from distributed.init(), as second argument", _one_of(None)),
    (_DDP, "skip_all_reduce_unused_params"): ("write find_unused_parameters=True", _one_of(False)),
    (_LOADER, "num_workers"): (_WORKERS, _one_of(0)),
    (_LOADER, "prefetch_factor"): (_WORKERS, _one_of(None)),
    (_LOADER, "persistent_workers"): (_WORKERS, _one_of(False)),
    (_LOADER, "pin_memory"): ("write device=comm.device, which copies each batch", _one_of(False)),
    (_LOADER, "pin_memory_device"): ("write device=comm.device, which copies each batch", _one_of("")),
    (_LOADER, "timeout"): ("a dataset that raises ends the iteration", _one_of(0)),
    (_LOADER, "worker_init_fn"): ("there are no worker processes, and each batch has its seed", _one_of(None)),
    (_LOADER, "multiprocessing_context"): ("there are no worker processes", _one_of(None)),
    (_LOADER, "generator"): ("write seed=", _one_of(None)),
    (_LOADER, "in_order"): ("batches come in order", _one_of(True)),
    (_SAMPLER, "dataset"): ("give it as first argument, source", lambda value, given: False),
    (_SAMPLER, "num_replicas"): ("write world_size=", _same_world),
    (_SAMPLER, "drop_last"): ('write mode="drop" for True, mode="pad" for False', _same_end),
    **{(kind, name): entry for kind in _OPTIMIZERS for name, entry in _IMPLEMENTATIONS.items()},
}
FORMS = {  # how a call that does not fit the signature at all is written
    _DDP: "DistributedDataParallel(module, comm), with comm = distributed.init()",
    _SAMPLER: "DistributedSampler(dataset, rank=comm.rank, world_size=comm.world_size)",
    "ElChe": "ElChe.start(world_size, CadenceConfig(anchor=10))",
}


def foreign_forms(kind: _Class) -> _Class:
    """Let a class say what to write where it is made in the way of PyTorch or of an earlier form; see `KEYWORDS`.

    Its signature stays what it is. A keyword whose value asks for what we do anyway is taken.
    """
    init, who = vars(kind)["__init__"], kind.__name__
    names = inspect.signature(init)
    required = [name for name, parameter in names.parameters.items() if parameter.default is parameter.empty]
    known = {name: entry for (owner, name), entry in KEYWORDS.items() if owner == who}

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        foreign = {name: options.pop(name) for name in known.keys() & options.keys()}
        given = {**dict(zip(names.parameters, (self, *args))), **options}
        for name in sorted(foreign):
            advice, fits = known[name]
            if not fits(foreign[name], given):
                raise ArgumentError(f"{who}: expected no {name}, got {foreign[name]!r:.100}: {advice}")
        missing = [name for name in required if name not in given]
        if missing and who in FORMS:
            raise ArgumentError(f"{who}: expected {FORMS[who]}, got no {', '.join(missing)}")
        init(self, *args, **options)

    setattr(kind, "__init__", checked)
    return kind
