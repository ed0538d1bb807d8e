"""Record what PyTorch's optimizers, schedulers and clipping do. Run by hand, where PyTorch is installed:

    python -m tests.parity.record_optim

The file holds, in float64, the start values and gradients, and a table for each case: see optim_cases.
"""

import copy
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.parity import optim_theirs
from tests.parity.optim_cases import (
    BORDER,
    CLIPS,
    HALF,
    MADE_BY_NAME,
    OPTIMIZERS,
    PLATEAUS,
    SCHEDULES,
    SHORT,
    STEPS,
    clip,
    draw,
    make,
    moved,
    plateau,
    run,
    steps,
)

PATH = Path(__file__).with_name("fixtures") / "optim.safetensors"


def border(case, starts, gradients):
    """The parameters and the state after HALF steps, and after all of them, by name; the groups."""
    params = [optim_theirs.parameter(start) for start in starts]
    optimizer = make(optim_theirs.optim, case, params)
    steps(optim_theirs, params, optimizer, gradients, 0, HALF)
    saved = copy.deepcopy(optimizer.state_dict())
    arrays = {f"state/{i}/{key}": x.numpy() for i, entry in saved["state"].items() for key, x in entry.items()}
    arrays |= {f"half/{i}": optim_theirs.read(param) for i, param in enumerate(params)}
    steps(optim_theirs, params, optimizer, gradients, HALF, STEPS)
    arrays |= {f"end/{i}": optim_theirs.read(param) for i, param in enumerate(params)}
    return arrays, saved["param_groups"]


def main():
    """Write the file."""
    starts, gradients = draw()
    values = {f"start/{i}": start for i, start in enumerate(starts)}
    values |= {f"gradient/{i}": gradient for i, gradient in enumerate(gradients)}
    for name, case in OPTIMIZERS.items():
        values[f"optimizer/{name}"] = run(optim_theirs, case, starts, gradients)
    for name in [*SCHEDULES, "warmup"]:
        values[f"schedule/{name}"] = np.array(optim_theirs.rates(name))
    values |= {f"scheduler/{name}": moved(optim_theirs, name, SHORT) for name in MADE_BY_NAME}
    values |= {f"plateau/{name}": plateau(optim_theirs, name) for name in PLATEAUS}
    groups = {}
    for name in BORDER:
        arrays, groups[name] = border(OPTIMIZERS[name], starts, gradients)
        values |= {f"border/{name}/{key}": array for key, array in arrays.items()}
    for p, limit in CLIPS:
        values[f"clip/{p}-{limit}"] = clip(optim_theirs, starts, gradients, p, limit)
    metadata = {"border": json.dumps(groups)}
    save_file({name: np.asarray(array) for name, array in values.items()}, PATH, metadata)
    print(f"{len(OPTIMIZERS)} optimizers, {PATH.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
