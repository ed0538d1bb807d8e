"""minigrad passes its own conformance checks, on threads and on processes."""

import pytest

from minigrad.testing.conformance import CHECKS, MinigradAdapter
from tests.distributed.worlds import run_ranks

TIMEOUT_S = 10.0


def on(kind):
    """Ranks of a kind, as an adapter wants them."""

    def start(body, world_size, *args):
        return run_ranks(kind, lambda comm: body(comm, *args), world_size, TIMEOUT_S)

    return start


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("kind", ["threads", "shm"])
def test_conformance(kind, check):
    check(MinigradAdapter(on(kind)))


def test_every_check_tells_its_fault():
    assert len(CHECKS) >= 35 and len({check.__name__ for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert check.__doc__ and check.__name__.startswith("check_")
