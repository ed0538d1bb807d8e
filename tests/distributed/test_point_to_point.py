"""Messages from rank to rank, beside what `minigrad.testing.messages` asks of every communicator."""

import numpy as np
import pytest

from minigrad.distributed import Fault, FaultInjecting, Recording, run
from minigrad.distributed.simulate import Cluster
from minigrad.distributed.simulate import run as simulate
from minigrad.errors import ArgumentError
from minigrad.testing import messages  # noqa: F401
from minigrad.testing.contract import CASES


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].body.func.__module__ == messages.__name__])
def test_the_contract_on_threads(name):
    for size in CASES[name].sizes:
        run(CASES[name].body, size, timeout_s=CASES[name].timeout_s)


def to_the_other(comm, array, tag=0):
    """The array of the other of two ranks."""
    taken = np.empty_like(array)
    work = comm.send(array, 1 - comm.rank, tag)
    comm.recv(taken, 1 - comm.rank, tag).wait()
    work.wait()
    return taken


def test_wrappers_see_both_ends():
    def body(comm):
        comm = Recording(FaultInjecting(comm, [Fault("delay", rank=1, kind="recv", delay_s=0.01)]))
        to_the_other(comm, np.ones(3, np.float32), tag=6)
        return [(call.kind, call.detail, call.dtype, call.count, call.nbytes) for call in comm.calls]

    for rank, calls in enumerate(run(body, 2)):
        other = 1 - rank
        assert calls == [
            ("send", f"to {other}, tag 6", "float32", 3, 12),
            ("recv", f"from {other}, tag 6", "float32", 3, 12),
        ]


def test_a_simulation_refuses_messages_that_it_has_no_cost_of():
    with pytest.raises(ArgumentError, match="simulate.run: expected a collective, got send, whose cost a link does"):
        simulate(lambda comm: to_the_other(comm, np.ones(3)), Cluster.of_speeds([1, 1]))
