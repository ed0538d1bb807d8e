"""A sharded optimizer passes the conformance checks, and a plain one that is left in its place does not."""

import functools

import pytest

from minigrad.distributed import ShardedOptimizer, run
from minigrad.optim import SGD
from minigrad.testing.conformance import CHECKS, MinigradAdapter, NotOfferedError, means, replicas, shards
from minigrad.testing.conformance.own import MinigradReplica

OWN = {shards.check_sharded_step, shards.check_sharded_state, shards.check_matrices_are_whole}  # share out themselves
REFUSED = {means.check_backwards_add_up, means.check_backward_within_a_backward}  # onto gradients that are divided


class ShardedReplica(MinigradReplica):
    """A replica whose gradients are put together from all ranks where they are asked for."""

    def __init__(self, comm, setup):
        super().__init__(comm, setup)
        self._optimizer = ShardedOptimizer(self._optimizer, self._ddp)
        self._gradients = self._optimizer.gradients

    def gradients(self):
        shards, found = self._gradients, {}
        if not any(map(shards.guard.divides, self._model.parameters())):
            return super().gradients()
        whole = [shards.gathered(b, [run.grad for run in runs], shards.dtype(b)) for b, runs in enumerate(shards.own)]
        for name, param in self._model.named_parameters():
            bucket = None if param.grad_array is None else shards.bucket_of(param)
            if bucket is None:
                found[name] = None
                continue
            start, stop = (at - shards.plan.buckets[bucket].start for at in param.flat.span(param))
            found[name] = whole[bucket][start:stop].reshape(param.shape)
        return found

    def clip(self, max_norm):
        return float(self._optimizer.clip_grad_norm_(max_norm))

    def join(self):
        raise NotImplementedError


class PlainInItsPlace(ShardedReplica):
    """Gradients are scattered, nothing guards them, and a plain optimizer steps with what there is."""

    def __init__(self, comm, setup):
        super().__init__(comm, setup)
        self._guarding = self._gradients.guard.lifted()
        self._guarding.__enter__()
        self._optimizer = SGD(self._model.parameters(), lr=setup.lr, weight_decay=setup.weight_decay)


class ShardedAdapter(MinigradAdapter):
    def __init__(self, kind):
        super().__init__(functools.partial(run, timeout_s=10.0))
        self.kind = kind

    def wrap(self, place, setup):
        return self.kind(place, setup)


@pytest.mark.parametrize("check", [check for check in CHECKS if check not in OWN])
def test_conformance(check):
    if check in REFUSED:
        with pytest.raises(AssertionError, match="has its own run alone: call zero_grad"):
            check(ShardedAdapter(ShardedReplica))
        return
    try:
        check(ShardedAdapter(ShardedReplica))
    except NotOfferedError:
        assert "join" in check.__name__


@pytest.mark.parametrize("check", [means.check_training, replicas.check_optimizer_made_before])
def test_a_plain_optimizer_in_its_place_is_noticed(check):
    with pytest.raises(AssertionError, match="parameter 'w': expected"):
        check(ShardedAdapter(PlainInItsPlace))
