"""What operations save for backward."""

import sys

import numpy as np
import pytest

from minigrad import Tensor
from minigrad.backend.device import to_device
from tests.cases import FAMILIES
from tests.cases.evaluate import evaluate


@pytest.fixture
def records(monkeypatch):
    """The inputs and what was saved, of each operation that is recorded."""
    record = sys.modules["minigrad.tensor"].record  # the function tensor() has the module's name
    found = []

    def noted(data, backward, inputs, saved=(), **options):
        found.append((backward.__name__, inputs, saved))
        return record(data, backward, inputs, saved, **options)

    for module in [*sys.modules.values()]:
        if vars(module).get("record") is record:
            monkeypatch.setattr(module, "record", noted)
    return found


def check(records):
    assert records
    for name, inputs, saved in records:
        strange = [x.shape for x in saved if isinstance(x, Tensor) and not any(x is one for one in inputs)]
        assert strange == [], f"{name} saves a tensor that is none of its inputs"


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"compare"}))
def test_every_tensor_that_is_saved_is_an_input(family, records):
    """So the tape knows of each memory that it holds; see `stamp.watch`."""
    for case in FAMILIES[family]:
        evaluate(case, np.asarray)
    check(records)


def test_on_a_device_too(records, cuda):
    for family in ("losses", "index"):
        for case in FAMILIES[family]:
            evaluate(case, lambda x: to_device(x, cuda))
    check(records)
