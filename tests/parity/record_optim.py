"""Record what PyTorch's optimizers, schedulers and clipping do. Run by hand, where PyTorch is installed:

    python -m tests.parity.record_optim

The file holds, in float64, the start values and gradients, and a table for each case: see optim_cases.
"""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.parity import optim_theirs
from tests.parity.optim_cases import (
    CLIPS,
    MADE_BY_NAME,
    OPTIMIZERS,
    PLATEAUS,
    SCHEDULES,
    SHORT,
    clip,
    draw,
    moved,
    plateau,
    run,
)

PATH = Path(__file__).with_name("fixtures") / "optim.safetensors"


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
    for p, limit in CLIPS:
        values[f"clip/{p}-{limit}"] = clip(optim_theirs, starts, gradients, p, limit)
    save_file({name: np.asarray(array) for name, array in values.items()}, PATH)
    print(f"{len(OPTIMIZERS)} optimizers, {PATH.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
