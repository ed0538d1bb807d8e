"""Record what PyTorch's Muon does, with its iteration in float64. Run by hand, where PyTorch is installed:

    python -m tests.parity.record_muon

The file holds a table for each case and, of "groups", the state after half of the steps; see optim_cases.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.parity import optim_theirs
from tests.parity.optim_cases import MATRICES, MUON, draw, run
from tests.parity.record_optim import border

PATH = Path(__file__).with_name("fixtures") / "muon.safetensors"


def main():
    """Write the file."""
    starts, gradients = draw(MATRICES)
    with optim_theirs.exactly():
        values = {f"optimizer/{name}": run(optim_theirs, case, starts, gradients) for name, case in MUON.items()}
        arrays, groups = border(MUON["groups"], starts, gradients)
    values |= {f"border/{key}": array for key, array in arrays.items()}
    save_file({name: np.asarray(array) for name, array in values.items()}, PATH, {"border": json.dumps(groups)})
    print(f"{len(MUON)} cases, {PATH.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
