"""All checks, in the order of their files."""

from minigrad.testing.conformance import buckets, failures, means, parameters, replicas, shards
from minigrad.testing.conformance.adapter import Check

CHECKS: tuple[Check, ...] = tuple(
    value
    for module in (means, parameters, buckets, replicas, shards, failures)
    for name, value in vars(module).items()
    if name.startswith("check_")
)
