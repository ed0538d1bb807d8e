"""An all_reduce of 20 lines, by messages to the next rank and from the one before: Baidu's ring."""

import numpy as np


def ring_all_reduce(comm, array):
    """Overwrite a 1-D array by its sum over the ranks, in W parts: each goes around once to be added up, and once more.

    At step k rank r passes part r - k on, and takes part r - k - 1.
    """
    rank, size = comm.rank, comm.world_size
    parts = np.split(array, [array.size * r // size for r in range(1, size)])
    for step in range(2 * (size - 1)):
        came = np.empty_like(parts[(rank - step - 1) % size])
        sent = comm.send(parts[(rank - step) % size], (rank + 1) % size)
        comm.recv(came, (rank - 1) % size).wait()
        sent.wait()
        mine = parts[(rank - step - 1) % size]
        mine[...] = mine + came if step < size - 1 else came
