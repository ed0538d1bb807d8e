"""Data parallelism: the bucket plan, the reducer on the events of backward, the wrapper of a module."""
