"""What an idiom leaves, in the words of JSON, and whether two of these are the same."""

import math

import numpy as np

CLOSE = {"float16": 1e-2, "bfloat16": 5e-2}  # relative; of the other dtypes 1e-4


def written(value):
    """A tensor with its dtype and shape, a sequence as a list, a dtype or a device by name; a number as it is."""
    if hasattr(value, "detach"):
        value = value.detach()
        dtype = str(value.dtype).removeprefix("torch.")
        array = (value.float() if dtype == "bfloat16" else value).cpu().numpy()
        return {"tensor": dtype, "shape": list(array.shape), "values": _numbers(array)}
    if isinstance(value, np.ndarray):
        return {"array": str(value.dtype), "shape": list(value.shape), "values": _numbers(value)}
    if isinstance(value, dict):
        return {"dict": [[str(key), written(item)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return [written(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    return _rounded(value) if isinstance(value, float) else str(value).removeprefix("torch.")


def difference(found, expected, close=1e-4, where="result"):
    """Where and how two differ, in words; None where they do not."""
    if isinstance(expected, dict) and isinstance(found, dict) and [*found] == [*expected]:
        kind = next(iter(expected))
        for key in expected:
            if key != "values" and kind != "dict" and found[key] != expected[key]:
                return f"{where}: {kind} {_short(found)}, expected {_short(expected)}"
        close = CLOSE.get(expected[kind], close) if kind != "dict" else close
        return difference(found[[*expected][-1]], expected[[*expected][-1]], close, where)
    if isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        pairs = enumerate(zip(found, expected))
        return next(filter(None, (difference(*pair, close, f"{where}[{i}]") for i, pair in pairs)), None)
    if type(found) is type(expected):
        if found == expected or isinstance(found, float) and _near(found, expected, close):
            return None
    return f"{where}: {_short(found)}, expected {_short(expected)}"


def _near(x, y, close):
    return math.isclose(x, y, rel_tol=close, abs_tol=close / 5) or math.isnan(x) and math.isnan(y)


def _numbers(array):
    flat = array.ravel().tolist()
    return [_rounded(x) for x in flat] if array.dtype.kind == "f" else flat


def _rounded(x):
    return float(f"{x:.7g}")


def _short(value):
    text = str(value)
    return text if len(text) < 100 else f"{text[:97]}..."
