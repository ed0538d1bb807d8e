"""The contract of `minigrad.testing`, and what holds of our own communicators alone."""

import re
import time

import numpy as np
import pytest

from minigrad.errors import CollectiveTimeoutError
from minigrad.testing import contract


def the_users_line_of_each_rank_is_told(comm):
    comm.barrier()
    if comm.rank == 1:
        time.sleep(1.2)
        return
    with pytest.raises(CollectiveTimeoutError) as caught:
        comm.all_reduce(np.ones(3)).wait()
    here = r"[^ ]*contract.py:(\d+) in the_users_line_of_each_rank_is_told"
    lines = re.search(f"; rank 1: at {here}; rank 0: waiting at {here}$", str(caught.value))
    assert lines is not None and int(lines[2]) - int(lines[1]) == 3, caught.value


CASES = {**contract.CASES, "users_lines": contract.Case(the_users_line_of_each_rank_is_told, (2,), 0.4)}
