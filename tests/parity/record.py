"""Record what PyTorch computes for the cases in tests/cases. Run by hand, where PyTorch is installed:

    python -m tests.parity.record [family ...]
"""

import sys

import numpy as np

from tests.cases import FAMILIES as OPERATIONS
from tests.cases.layer_families import LAYER_FAMILIES
from tests.parity import store
from tests.parity.theirs import run_theirs

FAMILIES = {**OPERATIONS, **LAYER_FAMILIES}


def main(families):
    """Write the values of these families, or of all."""
    for family in families or FAMILIES:
        values = {case.id: run_theirs(case) for case in FAMILIES[family]}
        dtypes = {case.id: run_theirs(case, np.float32)["output"].dtype.name for case in FAMILIES[family]}
        store.save(family, values, dtypes)
        print(f"{family}: {len(values)} cases, {store.path_of(family).stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
