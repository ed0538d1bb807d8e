"""What the checks share: a run of backwards on each rank, and what is then expected of the gradients."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.testing.conformance.adapter import Adapter, Arrays, Replica, Setup
from minigrad.testing.conformance.outcome import Outcome, fail, outcomes, told

Gradients = dict[str, "Array | None"]


@dataclass(frozen=True)
class Backward:
    """The arguments of one `Replica.backward`."""

    batch: Arrays
    samples: float | None = None
    scale: float = 1.0
    sync: bool = True

    def on(self, replica: Replica) -> None:
        """Make it."""
        replica.backward(self.batch, samples=self.samples, scale=self.scale, sync=self.sync)


def scalars(**values: float) -> dict[str, Array]:
    """float64 arrays of shape (1,) by name."""
    return {name: np.array([float(value)]) for name, value in values.items()}


def batch(**values: Sequence[float]) -> dict[str, Array]:
    """A batch for parameters of shape (1,): for each the gradient of every sample."""
    return {name: np.array(column, np.float64).reshape(-1, 1) for name, column in values.items()}


def random_batch(params: Arrays, samples: int, seed: int) -> dict[str, Array]:
    """A batch of normal values for all of these parameters, in their dtypes."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((samples, *p.shape)).astype(p.dtype) for name, p in params.items()}


def combined(
    adapter: Adapter, setup: Setup | Sequence[Setup], passes: Sequence[Sequence[Backward]]
) -> list[Gradients]:
    """The gradients of each rank after its backwards.

    Args:
        setup: One for all ranks, or one for each.
        passes: For each rank its backwards, one after the other.
    """
    setups = [setup] * len(passes) if isinstance(setup, Setup) else list(setup)
    return values(adapter, _combined, len(passes), setups, passes)


def _combined(
    place: Any, adapter: Adapter, setups: Sequence[Setup], passes: Sequence[Sequence[Backward]]
) -> Gradients:
    replica = adapter.wrap(place, setups[place.rank])
    for one in passes[place.rank]:
        one.on(replica)
    return replica.gradients()


def expect_on_all(results: Sequence[Mapping[str, Array | None]], tolerance: float = 1e-12, **expected: Any) -> None:
    """Require these values on every rank, to tolerance · max(1, |expected|).

    Raises:
        AssertionError: it names rank and parameter.
    """
    for rank, result in enumerate(results):
        for name, value in expected.items():
            actual, bound = result[name], tolerance * max(1.0, float(np.max(np.abs(value), initial=0.0)))
            if actual is None or not np.all(np.abs(np.asarray(actual, np.float64) - value) <= bound):
                raise AssertionError(f"rank {rank}, parameter {name!r}: expected {value}, got {actual}")


def expect_none(results: Sequence[Mapping[str, Array | None]], name: str) -> None:
    """Require that no rank has a gradient for a parameter.

    Raises:
        AssertionError: one has; it is named.
    """
    for rank, result in enumerate(results):
        if result[name] is not None:
            raise AssertionError(f"rank {rank}, parameter {name!r}: expected no gradient, got {result[name]}")


def expect_same_bits(results: Sequence[Mapping[str, Array | None]], of: str = "rank") -> None:
    """Require the same bits in all results.

    Raises:
        AssertionError: it names the first difference.
    """
    for number, result in enumerate(results):
        for name, value in results[0].items():
            other = result[name]
            if value is None or other is None or value.tobytes() != other.tobytes():
                raise AssertionError(
                    f"{name!r}: expected the same bits, got {value} in {of} 0 and {other} in {of} {number}"
                )


def expect_one_of(results: Sequence[Mapping[str, Array | None]], *alternatives: Mapping[str, Any]) -> None:
    """Require one of these sets of values, the same on every rank: where they differ is another check's matter.

    Raises:
        AssertionError: none of them fits.
    """
    problems = []
    for expected in alternatives:
        try:
            return expect_on_all(results, **expected)
        except AssertionError as error:
            problems.append(str(error))
    raise AssertionError("; or ".join(problems))


def values(adapter: Adapter, body: Callable[..., Any], world_size: int, *args: Any) -> list[Any]:
    """What body returned on each rank; see `returned`."""
    return returned(outcomes(adapter, body, world_size, *args))


def faulty(
    adapter: Adapter,
    body: Callable[..., Any],
    world_size: int,
    setup: Setup,
    fault: Any,
    *,
    without: Any,
    control: Mapping[str, Any],
    stay: bool = True,
) -> list[Outcome]:
    """What became of each rank of steps with a fault, once the same steps without it were right in the same run.

    Those are made twice, or as often as the adapter says; see `Adapter`.

    Args:
        body: body(place, adapter, setup, fault): steps of a new replica; a generator's yields are `Outcome.steps`.
        fault: What makes the fault; the steps with `without` in its place are those without it.
        control: What body returns without it.
        stay: See `outcomes`: that a rank ends shall not be what another one raises of.

    Raises:
        VerdictError: "not judged", since the control went wrong.
    """
    found = outcomes(adapter, _controlled, world_size, body, setup, without, fault, stay=stay)
    if not all(one.steps for one in found):
        fail("not judged", f"without the fault: {told(found)}")
    try:
        expect_on_all([one.steps[0] for one in found], **control)
    except AssertionError as error:
        fail("not judged", f"without the fault: {error}")
    return found


def _controlled(place: Any, adapter: Adapter, body: Callable[..., Any], setup: Setup, without: Any, fault: Any) -> Any:
    for _ in range(getattr(adapter, "controls", 2)):
        value = body(place, adapter, setup, without)
    yield value
    value = body(place, adapter, setup, fault)
    return (yield from value) if isinstance(value, Generator) else value


def offered(replica: Any, name: str) -> Callable[..., Any]:
    """The method of a replica that its adapter need not have.

    Raises:
        NotImplementedError: it has not.
    """
    if not hasattr(replica, name):
        raise NotImplementedError(f"the adapter's replica has no method {name}")
    method: Callable[..., Any] = getattr(replica, name)
    return method


def returned(found: Sequence[Outcome]) -> list[Any]:
    """What each rank returned.

    Raises:
        VerdictError: a rank did not; "died" before "fails" before "out of time".
    """
    kinds = {one.kind for one in found}
    if kinds != {"value"}:
        fail("died" if "died" in kinds else "fails" if "raised" in kinds else "out of time", told(found))
    return [one.value for one in found]


def expect_end(found: Sequence[Outcome]) -> None:
    """Require that each rank returned or raised.

    Raises:
        VerdictError: one died, or is out of time.
    """
    for kind in ("died", "out of time"):
        if any(one.kind == kind for one in found):
            fail(kind, told(found))


def expect_raised(found: Sequence[Outcome], fault: str) -> list[str]:
    """Require that a rank raised, and that no other was left waiting; return what was said, of each that raised.

    Raises:
        VerdictError: nobody raised, or a rank hangs or died, which is no refusal.
    """
    expect_end(found)
    said = [f"{one.error}: {one.message}" for one in found if one.kind == "raised"]
    if not said:
        fail("fails", f"{fault}: expected an error, got {told(found)}")
    return said


def expect_right_or_raised(found: Sequence[Outcome], fault: str, **expected: Any) -> None:
    """Require these values on every rank; or that a rank raised, and that no other was left waiting.

    Raises:
        AssertionError: other values. VerdictError: see `expect_raised`.
    """
    if all(one.kind == "value" for one in found):
        expect_on_all(returned(found), **expected)
    else:
        expect_raised(found, fault)
