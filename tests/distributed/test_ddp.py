"""DistributedDataParallel: any shards give the gradient of the mean over the global batch, on equal replicas."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minigrad
from minigrad import nn, optim
from minigrad.autograd.tape import lend
from minigrad.distributed import DDP, DistributedDataParallel, Recording, SoloCommunicator, plan_buckets, run
from minigrad.errors import (
    ArgumentError,
    AutogradError,
    CollectiveMismatchError,
    LayoutError,
    RankFailedError,
    ReplicaMismatchError,
    ShapeError,
    UnreducedGradientError,
)
from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter
from minigrad.tensor import record
from tests.distributed.models import Mlp, Odd, assert_gradients_close, cuts_of, data, gradients, mean_loss, values
from tests.distributed.worlds import run_ranks

TIMEOUT_S = 10.0


def one_device(batch, seed=0):
    """The gradients of the whole batch in one replica."""
    model = Mlp(seed)
    inputs, targets = batch
    mean_loss(model(minigrad.Tensor(inputs)), targets).backward()
    return gradients(model)


def on_ranks(shards, batch, **options):
    """The combined gradients of each rank."""
    inputs, targets = batch

    def body(comm):
        part = cuts_of(shards)[comm.rank]
        ddp = DDP(Mlp(comm.rank), comm, **options)
        mean_loss(ddp(minigrad.Tensor(inputs[part])), targets[part]).backward()
        return gradients(ddp.module)

    return run(body, len(shards), timeout_s=TIMEOUT_S)


shard_lists = st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(sum)


@settings(max_examples=60, deadline=None)
@given(shards=shard_lists, cap=st.integers(1, 2000), seed=st.integers(0, 999))
def test_any_shards_give_the_gradient_of_the_global_mean(shards, cap, seed):
    batch = data(sum(shards), seed)
    expected = one_device(batch)
    ranks = on_ranks(shards, batch, bucket_cap_bytes=cap)
    for actual in ranks:
        assert_gradients_close(actual, expected)
        assert all(actual[name].tobytes() == ranks[0][name].tobytes() for name in actual)


def train(comm, shards, steps=5, make=Mlp, optimizer=None, **options):
    """Values after some steps on fresh data each."""
    ddp = DDP(make(comm.rank), comm, **options)
    step = (optimizer or (lambda params: optim.SGD(params, lr=0.005, momentum=0.9)))(ddp.module.parameters())
    for seed in range(steps):
        inputs, targets = data(sum(shards), seed)
        part = cuts_of(shards)[comm.rank]
        step.zero_grad()
        mean_loss(ddp(minigrad.Tensor(inputs[part])), targets[part]).backward()
        step.step()
    return values(ddp.module)


@settings(max_examples=25, deadline=None)
@given(shards=shard_lists, cap=st.integers(1, 2000))
def test_replicas_are_bit_equal_after_five_steps(shards, cap):
    ranks = run(train, len(shards), shards, timeout_s=TIMEOUT_S)
    (one,) = run(train, 1, [sum(shards)])
    for actual in ranks:
        assert all(actual[name].tobytes() == ranks[0][name].tobytes() for name in actual)
        assert_gradients_close(actual, one, 1e-11)


@pytest.mark.parametrize("kind", ["threads", "shm"])
def test_adam_over_ranks_equals_one_device(kind):
    def body(comm, shards):
        return train(comm, shards, 20, optimizer=lambda params: optim.Adam(params, lr=0.01))

    (one,) = run(body, 1, [12])
    for actual in run_ranks(kind, lambda comm: body(comm, [3, 0, 9]), 3):
        assert_gradients_close(actual, one, 1e-8)


@pytest.mark.parametrize("shards", [[4, 4], [1, 7], [2, 3, 5]])
def test_without_the_reduction_the_replicas_differ(shards):
    """The negative twin of the test above."""

    def body(comm):
        ddp = DDP(Mlp(0), comm)
        step = optim.SGD(ddp.module.parameters(), lr=0.01)
        inputs, targets = data(sum(shards), 0)
        part = cuts_of(shards)[comm.rank]
        with ddp.no_sync():
            mean_loss(ddp(minigrad.Tensor(inputs[part])), targets[part]).backward()
        step.step()
        return values(ddp.module)

    ranks = run(body, len(shards))
    assert all(np.abs(ranks[0][name] - ranks[1][name]).max() > 1e-6 for name in ranks[0])


def test_a_plain_mean_of_unequal_shards_would_be_far_off():
    """48, 12 and 4 samples: the weights matter, they are not decoration."""
    shards, batch = [48, 12, 4], data(64, 3)
    parts = [one_device((batch[0][part], batch[1][part])) for part in cuts_of(shards)]
    exact = one_device(batch)
    plain = {name: sum(p[name] for p in parts) / 3 for name in exact}
    assert max(np.abs(plain[n] - exact[n]).max() / np.abs(exact[n]).max() for n in exact) > 0.05
    assert_gradients_close(on_ranks(shards, batch)[0], exact)


# ------------------------------------------------------------------------------------------------- accumulation


@pytest.mark.parametrize("forward_inside", [True, False])
@pytest.mark.parametrize("backward_inside", [True, False])
def test_no_sync_is_about_where_backward_is_called(forward_inside, backward_inside):
    inputs, targets = data(8, 0)

    def body(comm):
        part = cuts_of([4, 4])[comm.rank]
        ddp = DDP(Mlp(0), comm)
        x = minigrad.Tensor(inputs[part])
        if forward_inside:
            with ddp.no_sync():
                loss = mean_loss(ddp(x), targets[part])
        else:
            loss = mean_loss(ddp(x), targets[part])
        if backward_inside:
            with ddp.no_sync():
                loss.backward()
        else:
            loss.backward()
        return gradients(ddp.module)

    ranks = run(body, 2, timeout_s=TIMEOUT_S)
    for rank, actual in enumerate(ranks):
        part = cuts_of([4, 4])[rank]
        local = one_device((inputs[part], targets[part]))
        assert_gradients_close(actual, local if backward_inside else one_device((inputs, targets)))


@pytest.mark.parametrize("by_flush", [True, False])
def test_accumulated_passes_are_weighted_by_all_their_samples(by_flush):
    """Rank 0 sees 2 + 2 samples, rank 1 sees 6 + 6; each pass is a mean, the user divides by the number of passes."""
    inputs, targets = data(16, 0)
    passes = [cuts_of([2, 2, 6, 6])[:2], cuts_of([2, 2, 6, 6])[2:]]

    def body(comm):
        ddp = DDP(Mlp(0), comm)

        def backward(part):
            (mean_loss(ddp(minigrad.Tensor(inputs[part])), targets[part]) / 2).backward()

        first, second = passes[comm.rank]
        with ddp.no_sync():
            backward(first)
            if by_flush:
                backward(second)
        if by_flush:
            ddp.flush()
        else:
            backward(second)
        return gradients(ddp.module)

    for actual in run(body, 2, timeout_s=TIMEOUT_S):
        assert_gradients_close(actual, one_device((inputs, targets)))


def test_successive_backwards_add():
    inputs, targets = data(6, 0)

    def body(comm):
        part = cuts_of([2, 4])[comm.rank]
        ddp = DDP(Mlp(0), comm)
        for _ in range(2):
            mean_loss(ddp(minigrad.Tensor(inputs[part])), targets[part]).backward()
        return gradients(ddp.module)

    expected = {name: 2 * g for name, g in one_device((inputs, targets)).items()}
    for actual in run(body, 2, timeout_s=TIMEOUT_S):
        assert_gradients_close(actual, expected)


@pytest.mark.parametrize("sync_first", [True, False])
def test_a_second_backward_through_one_forward_counts_its_samples_again(sync_first):
    """Its samples were taken by the first: with none left, every gradient would silently become zero."""
    inputs, targets = data(6, 0)

    def body(comm):
        part = cuts_of([2, 4])[comm.rank]
        ddp = DDP(Mlp(0), comm)
        loss = mean_loss(ddp(minigrad.Tensor(inputs[part])), targets[part])
        if sync_first:
            loss.backward(retain_graph=True)
        else:
            with ddp.no_sync():
                loss.backward(retain_graph=True)
        loss.backward()
        return gradients(ddp.module)

    expected = {name: 2 * g for name, g in one_device((inputs, targets)).items()}
    for actual in run(body, 2, timeout_s=TIMEOUT_S):
        assert_gradients_close(actual, expected)


def test_a_pass_without_samples_changes_nothing_however_late_its_count_is_known():
    """The sum of the samples may be known before the last gradient is complete, or only after."""
    inputs, targets = data(4, 0)

    def body(comm, hurry):
        ddp = DDP(Mlp(0), comm, bucket_cap_bytes=64)
        mean_loss(ddp(minigrad.Tensor(inputs)), targets).backward()
        before = gradients(ddp.module)
        ddp.reducer.in_order = hurry
        with ddp.samples(0):
            (mean_loss(ddp(minigrad.Tensor(inputs)), targets) * 0.0).backward()
        return before, gradients(ddp.module)

    for hurry in (True, False):
        for before, after in run(body, 2, hurry, timeout_s=TIMEOUT_S):
            assert all(before[name].tobytes() == after[name].tobytes() for name in before)


def test_samples_overrides_the_length_of_the_batch():
    """A loss that is a mean over 7 tokens on one rank and 3 on the other."""
    inputs, targets = data(10, 0)

    def body(comm):
        part = cuts_of([7, 3])[comm.rank]
        found = []
        for inside in ("both", "forward", "backward"):
            ddp = DDP(Mlp(0), comm)
            x = minigrad.Tensor(np.stack([inputs[part]]))  # one "sentence" of several tokens
            if inside == "backward":
                loss = mean_loss(ddp(x)[0], targets[part])
                with ddp.samples(len(targets[part])):
                    loss.backward()
            else:
                with ddp.samples(len(targets[part])):
                    loss = mean_loss(ddp(x)[0], targets[part])
                    if inside == "both":
                        loss.backward()
                if inside == "forward":
                    loss.backward()
            found.append(gradients(ddp.module))
        return found

    for found in run(body, 2, timeout_s=TIMEOUT_S):
        for actual in found:
            assert_gradients_close(actual, one_device((inputs, targets)))


def test_reduce_sum_adds_up_and_refuses_to_add_twice():
    inputs, targets = data(6, 0)

    def body(comm):
        part = cuts_of([2, 4])[comm.rank]
        ddp = DDP(Mlp(0), comm, reduce="sum")
        total = mean_loss(ddp(minigrad.Tensor(inputs[part])), targets[part]) * len(targets[part])
        total.backward()
        combined = gradients(ddp.module)
        with pytest.raises(AutogradError, match="zero_grad"):
            mean_loss(ddp(minigrad.Tensor(inputs[part])), targets[part]).backward()
        return combined

    expected = {name: 6 * g for name, g in one_device((inputs, targets)).items()}
    for actual in run(body, 2, timeout_s=TIMEOUT_S):
        assert_gradients_close(actual, expected)


@pytest.mark.parametrize("sync", ["auto", "manual"])
def test_reduce_sum_accumulates_anew_where_gradients_are_dropped(sync):
    x, found = minigrad.Tensor(data(2, 0)[0]), []
    ddp = DDP(Mlp(0), SoloCommunicator(), reduce="sum", sync=sync)
    for _ in range(2):
        ddp.zero_grad()
        with ddp.no_sync():
            ddp(x).sum().backward()
        ddp(x).sum().backward()
        if sync == "manual":
            ddp.sync_gradients()
        found.append(gradients(ddp.module))
    assert_gradients_close(found[1], found[0])
    with ddp.no_sync():
        ddp(x).sum().backward()  # joins combined gradients
    with pytest.raises(AutogradError, match="zero_grad"):
        ddp.flush()


# -------------------------------------------------------------------------------------- empty and unused


def test_nan_of_an_empty_shard_does_not_spread():
    """The mean over no samples is NaN; such a rank weighs nothing, and 0 · NaN must not be computed."""
    inputs, targets = data(4, 0)

    def body(comm):
        ddp = DDP(Mlp(0), comm)
        part = slice(0, 4) if comm.rank == 0 else slice(0, 0)
        output = ddp(minigrad.Tensor(inputs[part]))
        loss = mean_loss(output, targets[part])
        (loss if comm.rank == 0 else loss * float("nan")).backward()
        return gradients(ddp.module)

    for actual in run(body, 2, timeout_s=TIMEOUT_S):
        assert_gradients_close(actual, one_device((inputs, targets)))


def test_a_hook_on_a_leaf_comes_before_its_gradient_is_sent():
    """However late it was registered: else it would change what other ranks are reading, or have read."""
    inputs, targets = data(6, 0)

    def body(comm):
        part = cuts_of([2, 4])[comm.rank]
        ddp, seen = DDP(Mlp(0), comm, bucket_cap_bytes=1), {}
        ddp.reducer.in_order = True  # each bucket goes out as soon as it is complete
        for name, param in ddp.module.named_parameters():

            def halve(leaf, name=name):
                seen[name] = leaf.grad_array.copy()
                leaf.grad_array[...] *= 0.5

            param.register_post_accumulate_grad_hook(halve)
        mean_loss(ddp(minigrad.Tensor(inputs[part])), targets[part]).backward()
        return seen, gradients(ddp.module)

    expected = {name: 0.5 * gradient for name, gradient in one_device((inputs, targets)).items()}
    for rank, (seen, actual) in enumerate(run(body, 2, timeout_s=TIMEOUT_S)):
        part = cuts_of([2, 4])[rank]
        assert_gradients_close(seen, one_device((inputs[part], targets[part])))
        assert_gradients_close(actual, expected)


def test_a_rank_whose_loss_reaches_nothing_flushes():
    inputs, targets = data(4, 0)

    def body(comm):
        ddp = DDP(Mlp(0), comm)
        if comm.rank == 0:
            mean_loss(ddp(minigrad.Tensor(inputs)), targets).backward()
        else:
            ddp.flush()
        return gradients(ddp.module)

    for actual in run(body, 2, timeout_s=TIMEOUT_S):
        assert_gradients_close(actual, one_device((inputs, targets)))


def test_no_samples_anywhere_leaves_combined_gradients_and_makes_missing_ones_zero():
    inputs, targets = data(4, 0)

    def body(comm):
        part = cuts_of([2, 2])[comm.rank]
        ddp = DDP(Mlp(0), comm)
        ddp.flush()
        zero = gradients(ddp.module)
        mean_loss(ddp(minigrad.Tensor(inputs[part])), targets[part]).backward()
        before = gradients(ddp.module)
        ddp.flush()
        return zero, before, gradients(ddp.module)

    for zero, before, after in run(body, 2, timeout_s=TIMEOUT_S):
        assert all(not gradient.any() for gradient in zero.values())
        assert all(after[name].tobytes() == before[name].tobytes() for name in before)


class Branches(Module):
    """Two branches of which a forward takes one, and a layer that nobody takes."""

    def __init__(self, seed):
        super().__init__()
        self.left, self.right, self.idle = Mlp(seed), Mlp(seed + 1), Mlp(seed + 2)

    def forward(self, x, left):
        return (self.left if left else self.right)(x)


def test_unused_parameters_raise_in_the_same_backward_with_their_names():
    def body(comm):
        ddp = DDP(Branches(0), comm)
        inputs, targets = data(4, comm.rank)
        with pytest.raises(UnreducedGradientError, match=r"idle\.w2 \(bucket 0\).*right\.w1"):
            mean_loss(ddp(minigrad.Tensor(inputs), True), targets).backward()
        return True

    assert run(body, 2, timeout_s=TIMEOUT_S) == [True, True]


def test_unused_parameters_count_as_zero_when_asked_for():
    batches = [data(4, 0), data(4, 1)]

    def body(comm):
        ddp = DDP(Branches(0), comm, find_unused_parameters=True)
        inputs, targets = batches[comm.rank]
        mean_loss(ddp(minigrad.Tensor(inputs), comm.rank == 0), targets).backward()
        return gradients(ddp.module)

    left, right = one_device(batches[0], 0), one_device(batches[1], 1)
    for actual in run(body, 2, timeout_s=TIMEOUT_S):
        for name in left:
            np.testing.assert_allclose(actual[f"left.{name}"], left[name] / 2, atol=1e-12)
            np.testing.assert_allclose(actual[f"right.{name}"], right[name] / 2, atol=1e-12)
            assert actual[f"idle.{name}"] is None  # no rank used it: an optimizer must not decay it


class Forgetful(Mlp):
    """An operation of one's own takes b2, and gives it no gradient."""

    def __init__(self, seed):
        super().__init__(seed)
        self.b2 = Parameter(np.zeros(2))

    def forward(self, x):
        out = super().forward(x)
        return record(out.data + self.b2.data, lambda node, grad: lend(node.inputs[0], grad), (out, self.b2))


@pytest.mark.parametrize("allowed", [False, True])
def test_a_parameter_that_is_reached_but_given_nothing_is_unused(allowed):
    def body(comm):
        ddp = DDP(Forgetful(0), comm, find_unused_parameters=allowed)
        inputs, targets = data(4, comm.rank)
        loss = mean_loss(ddp(minigrad.Tensor(inputs)), targets)
        if allowed:
            loss.backward()
            return not gradients(ddp.module)["b2"].any()
        with pytest.raises(UnreducedGradientError, match=r"got none for b2 \(bucket 0\)"):
            loss.backward()
        return True

    assert run(body, 2, timeout_s=TIMEOUT_S) == [True, True]


class Tied(Module):
    """One matrix used twice."""

    def __init__(self, seed):
        super().__init__()
        self.w = Parameter(np.random.default_rng(seed).standard_normal((3, 3)))
        self.again = self.w

    def forward(self, x):
        return minigrad.ops.linear(minigrad.ops.linear(x, self.w), self.again)


def test_a_tied_parameter_has_one_place_and_the_gradient_of_both_uses():
    inputs, targets = data(6, 0, outputs=3)

    def body(comm):
        part = cuts_of([2, 4])[comm.rank]
        ddp = DDP(Tied(0), comm)
        mean_loss(ddp(minigrad.Tensor(inputs[part])), targets[part]).backward()
        return len(ddp.plan.names), gradients(ddp.module)

    alone = Tied(0)
    mean_loss(alone(minigrad.Tensor(inputs)), targets).backward()
    for places, actual in run(body, 2, timeout_s=TIMEOUT_S):
        assert places == 1
        assert_gradients_close(actual, gradients(alone))


class TiedHead(nn.Module):
    """A table whose rows are picked, and by which each place is compared with all of them."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3, rng=np.random.default_rng(0))
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.embedding(x))


def test_a_tied_embedding_is_reduced_once():
    names = minigrad.tensor([[0, 4, 4], [1, 4, 0]])

    def body(comm):
        ddp = DDP(TiedHead(), Recording(comm))
        optimizer = optim.SGD(ddp.module.parameters(), lr=0.1)
        ddp.comm.calls.clear()
        loss = nn.functional.cross_entropy(ddp(names[comm.rank]), names[comm.rank].roll(1))
        loss.backward()
        sent = [call.count for call in ddp.comm.calls if call.kind == "all_reduce" and call.dtype == "float32"]
        optimizer.step()
        return sent, len(optimizer.param_groups[0]["params"]), ddp.module

    alone = TiedHead()
    nn.functional.cross_entropy(alone(names.reshape(-1)), names.roll(1, 1).reshape(-1)).backward()
    optim.SGD(alone.parameters(), lr=0.1).step()
    for sent, trained, model in run(body, 2, timeout_s=TIMEOUT_S):
        assert len(sent) == 1 and 15 <= sent[0] < 30 and trained == 1  # a bucket may end in a gap
        assert model.head.weight is model.embedding.weight
        assert list(model.state_dict()) == ["embedding.weight", "head.weight"]
        assert np.allclose(*(m.head.weight.detach().numpy() for m in (model, alone)), atol=1e-6)
        twin = copy.deepcopy(alone)
        twin.load_state_dict(model.state_dict())
        assert twin.head.weight is twin.embedding.weight is not alone.head.weight
        assert twin.embedding.weight.equal(model.head.weight)


# -------------------------------------------------------------------------------------------- what must agree


@pytest.mark.parametrize(
    "how, words",
    [
        ("shape", r"parameter 'w2' float64 \(2, 5\) on rank 0 and parameter 'w2' float64 \(4, 5\) on rank 1"),
        ("dtype", r"float64 \(2, 5\) on rank 0 and parameter 'w2' float32"),
        ("frozen", r"'w2' float64 \(2, 5\), frozen on rank 1"),
        ("extra", r"entry 3 is missing on rank 0 and parameter 'w3' .* on rank 1"),
        ("buffer", r"missing on rank 0 and buffer 'running'"),
    ],
)
def test_unequal_replicas_are_refused_on_all_ranks(how, words):
    def body(comm):
        with pytest.raises(ReplicaMismatchError, match=words):
            DDP(Odd(comm.rank, how), comm)
        return True

    assert run(body, 2, timeout_s=TIMEOUT_S) == [True, True]


@pytest.mark.parametrize(
    "name, value",
    [
        ("reduce", "sum"),  # a wrong mean, equal on all ranks
        ("sync", "manual"),
        ("find_unused_parameters", True),
        ("broadcast_buffers", "none"),
        ("check_replicas_every", 3),
    ],
)
def test_unequal_options_are_refused_on_all_ranks(name, value):
    def body(comm):
        with pytest.raises(ReplicaMismatchError, match=f"{name} is .* on rank 0 and {value!r} on rank 1"):
            DDP(Mlp(0), comm, **({name: value} if comm.rank == 1 else {}))
        return True

    assert run(body, 3, timeout_s=TIMEOUT_S) == [True] * 3


def test_initial_values_come_from_rank_0_in_place():
    def body(comm):
        module = Mlp(comm.rank)
        kept = [p for p in module.parameters()]
        DDP(module, comm)
        assert [id(p) for p in module.parameters()] == [id(p) for p in kept]
        return values(module)

    first, second = run(body, 2)
    root = values(Mlp(0))
    assert all(second[name].tobytes() == first[name].tobytes() == root[name].tobytes() for name in first)


def test_a_model_that_is_not_wrapped_keeps_its_values_although_it_shares_the_optimizer():
    """Its parameters lie in the same flat buffer."""

    def body(comm):
        wrapped, other = Mlp(comm.rank), Mlp(2 + comm.rank)
        optim.SGD([*wrapped.parameters(), *other.parameters()], lr=0.1)
        DDP(wrapped, comm)
        return values(wrapped), values(other)

    for rank, (wrapped, other) in enumerate(run(body, 2, timeout_s=TIMEOUT_S)):
        for found, seed in ((wrapped, 0), (other, 2 + rank)):
            assert all(found[name].tobytes() == value.tobytes() for name, value in values(Mlp(seed)).items())


def test_init_sync_can_be_left_out():
    def body(comm):
        return values(DDP(Mlp(comm.rank), comm, init_sync=False).module)

    first, second = run(body, 2)
    assert not np.array_equal(first["w1"], second["w1"])


def test_freezing_alike_makes_a_new_plan_and_freezing_alone_is_an_error():
    inputs, targets = data(6, 0)

    def body(comm, alone):
        ddp = DDP(Mlp(0), comm)
        before = ddp.plan.id
        if not alone or comm.rank == 1:
            ddp.module.b1.requires_grad_(False)
        loss = mean_loss(ddp(minigrad.Tensor(inputs)), targets)
        if alone:
            with pytest.raises(CollectiveMismatchError, match=before):
                loss.backward()
            return None
        loss.backward()
        assert ddp.plan.id != before
        return gradients(ddp.module)

    run(body, 2, True, timeout_s=TIMEOUT_S)
    for actual in run(body, 2, False, timeout_s=TIMEOUT_S):
        assert actual["b1"] is None
        expected = one_device((inputs, targets))
        assert_gradients_close({n: actual[n] for n in ("w1", "w2")}, {n: expected[n] for n in ("w1", "w2")})


def test_freezing_what_has_accumulated_a_gradient_is_an_error():
    """It would be stepped by each rank's own gradient, and replicas would drift apart."""

    def body(comm, combine):
        ddp = DDP(Mlp(0), comm)
        inputs, targets = (minigrad.Tensor(array) for array in data(4, comm.rank))
        with ddp.no_sync():
            mean_loss(ddp(inputs), targets.data).backward()
        if combine:
            ddp.flush()
        ddp.module.w1.requires_grad = False
        loss = mean_loss(ddp(inputs), targets.data)
        if combine:
            loss.backward()
            return gradients(ddp.module)["w1"].tobytes()
        with pytest.raises((AutogradError, RankFailedError), match="accumulated ones of w1: call flush"):
            loss.backward()
        return b""

    assert run(body, 2, False, timeout_s=TIMEOUT_S) == [b"", b""]
    first, second = run(body, 2, True, timeout_s=TIMEOUT_S)
    assert first == second


def test_a_replaced_or_moved_parameter_is_noticed():
    ddp = DDP(Mlp(0), SoloCommunicator())
    x = minigrad.Tensor(data(2, 0)[0])
    ddp.module.w2 = Parameter(np.zeros((2, 5)))
    with pytest.raises(LayoutError, match="got others at w2"):
        ddp(x)
    ddp = DDP(Mlp(0), SoloCommunicator())
    loss = ddp(x).sum()
    ddp.module.w2.data = np.zeros((2, 5))
    with pytest.raises(LayoutError, match=r"parameter w2 of float64 \(2, 5\)"):
        loss.backward()


def test_a_saved_plan_can_be_forced():
    ddp = DDP(Mlp(0), SoloCommunicator(), bucket_cap_bytes=64)
    forced = DDP(Mlp(0), SoloCommunicator(), bucket_plan=ddp.plan)
    assert forced.plan == ddp.plan and len(forced.plan.buckets) == 3


def test_the_optimizer_may_be_made_before_or_after():
    inputs, targets = data(6, 0)

    def body(comm, first):
        part = cuts_of([2, 4])[comm.rank]
        module = Mlp(0)
        step = optim.SGD(module.parameters(), lr=0.1) if first else None
        ddp = DDP(module, comm)
        step = step or optim.SGD(module.parameters(), lr=0.1)
        mean_loss(ddp(minigrad.Tensor(inputs[part])), targets[part]).backward()
        step.step()
        return values(module)

    before, after = run(body, 2, True, timeout_s=TIMEOUT_S)[0], run(body, 2, False, timeout_s=TIMEOUT_S)[1]
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)


# ------------------------------------------------------------------------------------------------ the wrapper


def test_state_dict_has_no_prefix_and_both_forms_load():
    ddp = DDP(Mlp(0), SoloCommunicator())
    state = {name: minigrad.Tensor(value) for name, value in values(Mlp(1)).items()}
    assert list(ddp.state_dict()) == list(state)
    ddp.load_state_dict({f"module.{name}": value for name, value in state.items()})
    np.testing.assert_array_equal(ddp.module.w1.data, state["w1"].data)
    ddp.load_state_dict({name: minigrad.Tensor(value) for name, value in values(Mlp(2)).items()})
    wrapper = minigrad.nn.ModuleDict({"module": minigrad.nn.Linear(2, 1)})  # its own names begin with "module."
    DDP(wrapper, SoloCommunicator()).load_state_dict(wrapper.state_dict())
    np.testing.assert_array_equal(ddp.module.w1.data, Mlp(2).w1.data)


def test_deepcopy_is_a_wrapper_of_its_own():
    inputs, targets = data(6, 0)

    def body(comm):
        part = cuts_of([2, 4])[comm.rank]
        ddp = DDP(Mlp(0), comm)
        assert not copy.deepcopy(ddp.eval()).training
        twin = copy.deepcopy(ddp.train())
        for wrapper in (ddp, twin):
            mean_loss(wrapper(minigrad.Tensor(inputs[part])), targets[part]).backward()
        return gradients(ddp.module), gradients(twin.module)

    for mine, copied in run(body, 2, timeout_s=TIMEOUT_S):
        assert all(mine[name].tobytes() == copied[name].tobytes() for name in mine)


def test_an_evaluation_makes_no_collective():
    def body(comm):
        ddp = DDP(Mlp(0), comm)
        if comm.rank == 0:
            with minigrad.no_grad():
                ddp(minigrad.Tensor(data(3, 0)[0]))
        comm.barrier()
        return True

    assert run(body, 2, timeout_s=TIMEOUT_S) == [True, True]


def test_wrong_arguments():
    solo = SoloCommunicator()
    with pytest.raises(ArgumentError, match="a Module, got list"):
        DDP([], solo)
    with pytest.raises(ArgumentError, match="got none in Module"):
        DDP(Module(), solo)
    with pytest.raises(ArgumentError, match="nested"):
        DDP(DDP(Mlp(0), solo), solo)
    module = Mlp(0)
    ddp = DistributedDataParallel(module, solo)
    with pytest.raises(ArgumentError, match="nothing reduces yet"):
        DDP(module, solo)
    assert ddp.unwrap() is module
    DDP(module, solo)
    with pytest.raises(ArgumentError, match="reduce to be one of 'mean', 'sum', got 'max'"):
        DDP(Mlp(0), solo, reduce="max")
    with pytest.raises(ArgumentError, match="expected a communicator, got int: see distributed.init and run"):
        DDP(Mlp(0), 2)
    for name, wrong in {
        "sync": "now",
        "batch_dim": "0",
        "find_unused_parameters": None,
        "init_sync": 1,
        "broadcast_buffers": np.ones(2),
        "bucket_cap_bytes": 2.5,
        "bucket plan": [],
    }.items():
        with pytest.raises(ArgumentError, match=f"{name}.* got|{name}.*expected"):
            DDP(Mlp(0), solo, **{name.replace(" ", "_"): wrong})
    with pytest.raises(ArgumentError, match="shards to be a list or a tuple, got 3"):
        DDP(Mlp(0), solo).backward_shards(mean_loss, 3)
    for cap in (0, -1, float("nan"), "big"):
        with pytest.raises(ArgumentError, match="bucket_cap_mb, in MiB, to be a finite number > 0"):
            DDP(Mlp(0), solo, bucket_cap_mb=cap)
    with pytest.raises(ShapeError, match=r"axis batch_dim=5, got shape \(2, 3\)"):
        DDP(Mlp(0), solo, batch_dim=5)(minigrad.Tensor(np.zeros((2, 3))))
    for samples in (-1, float("nan"), "many"):
        with pytest.raises(ArgumentError, match="samples >= 0"), DDP(Mlp(0), solo).samples(samples):
            pass


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: run(3, 2), "run: expected a function of a communicator, got 3"),
        (lambda: run(print, 2, blas_threads=0), "run: expected blas_threads to be an integer >= 1, got 0"),
        (lambda: plan_buckets(5), "plan_buckets: expected a list of entries, got 5"),
        (lambda: Recording(None), "Recording: expected a communicator, got NoneType"),
    ],
)
def test_wrong_arguments_of_functions(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


def test_a_rank_that_raises_in_backward_stops_the_others():
    def body(comm):
        ddp = DDP(Mlp(0), comm)
        inputs, targets = data(4, 0)
        loss = mean_loss(ddp(minigrad.Tensor(inputs)), targets)
        loss.backward(on_leaf=lambda leaf: 1 / 0 if comm.rank == 1 else None)

    with pytest.raises(ZeroDivisionError):
        run(body, 3, timeout_s=TIMEOUT_S)
