"""Ranks that are processes under mpirun: the communicator, and what the ranks tell each other beside the data."""
