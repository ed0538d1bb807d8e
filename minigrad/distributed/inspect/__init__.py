"""Looking at a run from outside: whether its replicas still agree."""
