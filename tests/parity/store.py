"""The recorded values: a file for each family of cases.

A file holds, for each case, `<id>/input.<i>`, `<id>/output` and, where PyTorch gives a gradient, `<id>/cotangent` and
`<id>/gradient.<i>`, in float64. Its metadata holds, in JSON, the dtype that the output of each has
where the inputs are float32.
"""

import functools
import json
from pathlib import Path

from safetensors import safe_open
from safetensors.numpy import save_file

FOLDER = Path(__file__).with_name("fixtures")


def path_of(family):
    """Where the values of a family lie."""
    return FOLDER / f"{family}.safetensors"


@functools.cache
def load(family):
    """(values by case and name, float32 output dtype by case) of a family; nothing where none is recorded."""
    values, dtypes = {}, {}
    if path_of(family).exists():
        with safe_open(path_of(family), framework="numpy") as file:
            dtypes = json.loads(file.metadata()["float32_output"])
            for key in file.keys():
                case, name = key.rsplit("/", 1)
                values.setdefault(case, {})[name] = file.get_tensor(key)
    return values, dtypes


def save(family, values, dtypes):
    """Write what `load` gives back."""
    FOLDER.mkdir(exist_ok=True)
    flat = {f"{case}/{name}": array for case, arrays in values.items() for name, array in arrays.items()}
    save_file(flat, path_of(family), metadata={"float32_output": json.dumps(dtypes)})
