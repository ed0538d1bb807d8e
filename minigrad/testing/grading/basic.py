"""The conformance checks that a grade asks where nobody says which."""

from minigrad.testing.conformance import buckets, means, parameters, replicas
from minigrad.testing.conformance.adapter import Check

BASIC: tuple[Check, ...] = (
    means.check_unequal_batches,
    means.check_zero_grad,
    means.check_training,
    means.check_one_rank,
    parameters.check_frozen_parameter,
    replicas.check_replicas_start_alike,
    buckets.check_all_ranks_have_the_same_bits,
)
