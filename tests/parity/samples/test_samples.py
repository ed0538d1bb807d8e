"""PyTorch's samples against the PyTorch that is installed: the committed table is what a run gives."""

import pytest

from tests.parity.samples import table

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]
COMMITTED = table.load()


@pytest.mark.parametrize("part, name", [(part, name) for part in table.PARTS for name in COMMITTED[part]])
def test_samples(part, name):
    import torch

    from tests.parity.samples import measure

    row = measure.rows(part)[name]()
    assert row.remarks() == []
    if torch.__version__.split("+")[0] == COMMITTED["torch"]:
        assert row.as_json() == COMMITTED[part][name]


def test_what_has_no_sample():
    import torch

    from tests.parity.samples import measure

    if torch.__version__.split("+")[0] == COMMITTED["torch"]:
        for key, names in measure.absent().items():
            assert COMMITTED[key] == names
