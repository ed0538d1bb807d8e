"""Put each of ONNX's node tests to minigrad: it agrees, fails, or can't be expressed, with the reason."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import minigrad
from tests.onnx import attention, elementwise, networks, recurrent, reduce, shape
from tests.onnx.node import Function, Inexpressible, Node
from tests.onnx.reasons import REASONS

FUNCTIONS: dict[str, Function] = {
    **attention.FUNCTIONS, **elementwise.FUNCTIONS, **networks.FUNCTIONS, **recurrent.FUNCTIONS,
    **reduce.FUNCTIONS, **shape.FUNCTIONS,
}
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bfloat16")


@dataclass(frozen=True)
class Outcome:
    """What came of one node test: agrees, fails with what was wrong, or can't be expressed, with the reason."""

    name: str
    kind: str
    verdict: str  # "agrees", "fails", "not expressed"
    why: str = ""


def node_tests() -> list[Any]:
    """ONNX's tests of nodes, but for those that put a function's body in the place of its node."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its makers divide by zero
        return [case for case in collect_testcases(None) if "expanded" not in case.name]


def outcomes() -> Iterator[Outcome]:
    """The outcome of each node test, in their order."""
    return map(outcome_of, node_tests())


def outcome_of(case: Any) -> Outcome:
    """Put one node test to minigrad."""
    kind = case.model.graph.node[0].op_type
    try:
        _check(case)
    except Inexpressible as reason:
        return Outcome(case.name, kind, "not expressed", str(reason))
    except Exception as error:  # whatever it is, it is what a user would see
        return Outcome(case.name, kind, "fails", f"{type(error).__name__}: {error}".strip().splitlines()[0][:200])
    return Outcome(case.name, kind, "agrees")


def _check(case: Any) -> None:
    nodes = case.model.graph.node
    kind = nodes[0].op_type
    if kind in REASONS:
        raise Inexpressible(REASONS[kind])
    if len(nodes) > 1:
        raise Inexpressible("a graph of several nodes")
    for inputs, outputs in case.data_sets:
        given = [_as_tensor(value) for value in inputs]
        expected = [_as_known(value) for value in outputs]
        found = FUNCTIONS[kind](_node(case.model), *_in_place(case.model, given))
        _compare(found if isinstance(found, tuple) else (found,), expected, case)


def _node(model: Any) -> Node:
    from onnx import helper, numpy_helper

    [node] = model.graph.node
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    for name, value in attributes.items():
        if isinstance(value, bytes):
            attributes[name] = value.decode()
        elif hasattr(value, "data_type"):
            attributes[name] = numpy_helper.to_array(value)
    return Node(node.op_type, attributes, len(node.output), model.opset_import[0].version)


def _in_place(model: Any, given: list[Any]) -> list[Any]:
    """The inputs of the node in its order; None where one is left out."""
    by_name = {value.name: tensor for value, tensor in zip(model.graph.input, given)}
    return [by_name.get(name) for name in model.graph.node[0].input]


def _as_tensor(value: Any) -> Any:
    return minigrad.tensor(_as_known(value))


def _as_known(value: Any) -> Any:
    """An array of a dtype that minigrad has.

    Raises:
        Inexpressible: it is no such array.
    """
    if hasattr(value, "data_type"):
        from onnx import numpy_helper

        value = numpy_helper.to_array(value)
    if not isinstance(value, (np.ndarray, np.generic)):
        raise Inexpressible("sequences, optional values")
    if value.dtype.name not in DTYPES:
        raise Inexpressible(f"dtype {value.dtype.name if value.dtype != object else 'string'}")
    return np.asarray(value)


def _compare(found: tuple[Any, ...], expected: list[Any], case: Any) -> None:
    """Shapes, dtypes and values, with the tolerance of the case; outputs without a name are not asked for."""
    names = [output.name for output in case.model.graph.output]
    asked = [tensor for tensor, name in zip(found, case.model.graph.node[0].output) if name in names]
    assert len(asked) == len(expected), f"{len(expected)} outputs, got {len(asked)}"
    for tensor, value in zip(asked, expected):
        array = tensor.numpy()
        assert array.dtype == value.dtype, f"dtype {value.dtype}, got {array.dtype}"
        assert array.shape == value.shape, f"shape {value.shape}, got {array.shape}"
        _check_close(array, value, case)


def _check_close(array: np.ndarray[Any, Any], value: np.ndarray[Any, Any], case: Any) -> None:
    """To the tolerance of the case; in half precision to four roundings of the largest, since sums are wider here."""
    rounding = {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(value.dtype.name)
    if rounding is None:
        np.testing.assert_allclose(array, value, rtol=case.rtol, atol=case.atol)
        return
    wide, expected = array.astype(np.float32), value.astype(np.float32)
    largest = np.max(np.abs(expected[np.isfinite(expected)]), initial=0.0)
    np.testing.assert_allclose(wide, expected, rtol=case.rtol, atol=4 * rounding * float(largest))
