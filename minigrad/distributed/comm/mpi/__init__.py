"""Ranks that are processes under mpirun, over mpi4py.

In the order in which to read it: `communicator` posts the calls, the thread of `carrier` carries them out, `talk` is
what the ranks tell each other before and beside that, `mover` moves the data, `start` starts MPI.
"""
