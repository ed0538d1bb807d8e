"""What users extend autograd by, on ranks: Function, autograd.grad, hooks on tensors and checkpointing under DDP."""

import numpy as np
import pytest

import minigrad as torch
import minigrad.nn.functional as F
from minigrad import nn
from minigrad.autograd import Function, grad
from minigrad.distributed import DDP, SyncBatchNorm, run, simulate
from minigrad.distributed.simulate import Cluster
from minigrad.testing import saved_bytes
from minigrad.utils.checkpoint import checkpoint

TIMEOUT_S = 10.0


class Times(Function):
    """x · w, a backward of one's own."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, (g * x).sum(0)


class Net(nn.Module):
    """Noise, moving statistics, a weight that is used twice, and one that may be left out."""

    def __init__(self, comm, checkpointed=False, synced=False):
        super().__init__()
        self.first, self.last, self.spare = nn.Linear(3, 8), nn.Linear(8, 2), nn.Linear(1, 1)
        self.norm = SyncBatchNorm(8, comm) if synced else nn.BatchNorm1d(8)
        self.gain = nn.Parameter(torch.linspace(0.5, 2.0, 8))
        self.drop, self.checkpointed = nn.Dropout(0.5), checkpointed

    def inside(self, x):
        x = self.drop(self.norm(Times.apply(self.first(x), self.gain)).tanh())
        return Times.apply(x, self.gain)

    def forward(self, x, uses_spare=True):
        x = checkpoint(self.inside, x) if self.checkpointed else self.inside(x)
        x = self.last(x)
        return x + self.spare(x[:, :1]) if uses_spare else x


def trained(comm, way, mode):
    """Two steps, and what they leave on this rank: gradients, buffers, noise, passes and leaf events."""
    torch.manual_seed(0)
    net = Net(comm, way == "inside", synced=mode == "synced")
    ddp = DDP(net, comm, bucket_cap_bytes=128, find_unused_parameters=mode == "unused")
    rng, heard = np.random.default_rng(comm.rank), []
    net.gain.register_post_accumulate_grad_hook(lambda p: heard.append(p.grad.numpy().copy()))
    for _ in range(2):
        x = torch.Tensor(rng.normal(size=(3 + 2 * comm.rank, 3)).astype(np.float32))

        def loss():
            args = (x, mode != "unused")
            y = checkpoint(ddp, *args) if way == "around" else ddp(*args)
            return y.square().mean()

        if mode == "no_sync":
            with ddp.no_sync():
                loss().backward()
        loss().backward()
    left = {name: p.grad if p.grad is None else p.grad.numpy() for name, p in net.named_parameters()}
    left.update((name, b.numpy()) for name, b in net.named_buffers())
    stats = ddp.stats()
    return left, torch.randn(2).numpy(), heard, (stats.passes, stats.bytes_sent)


def gradients(net):
    """Copies of all that there are."""
    return [p.grad.numpy().copy() for p in net.parameters() if p.grad is not None]


def assert_equal(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        if isinstance(a, dict):
            assert a.keys() == b.keys()
            assert_equal(a.values(), b.values())
        elif isinstance(a, list):
            assert_equal(a, b)
        else:
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("mode", ["plain", "no_sync", "unused", "synced"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_checkpointed_training_leaves_the_same_bits(ranks, mode):
    """Nothing is counted twice: samples are unequal, so a second count would show in the gradients."""
    wanted = run(lambda comm: trained(comm, "plain", mode), ranks, timeout_s=TIMEOUT_S)
    for way in ("inside", "around"):
        found = run(lambda comm: trained(comm, way, mode), ranks, timeout_s=TIMEOUT_S)
        for ours, theirs in zip(found, wanted, strict=True):
            assert_equal(ours, theirs)
            assert len(ours[2]) == (4 if mode == "no_sync" else 2)  # the leaf that is used twice is announced once
    if mode != "unused":
        assert all(found[0][0][name] is not None for name in found[0][0])


def test_grad_in_the_middle_of_training_is_nobodys_pass():
    """Saliency before each backward, and from a hook inside it, leaves no trace but what it returns."""

    def look(seen, score, x):
        seen.append(grad(score, x, retain_graph=True)[0].numpy())

    def body(comm, curious):
        torch.manual_seed(0)
        net = Net(comm, checkpointed=True)
        ddp = DDP(net, comm, bucket_cap_bytes=128)
        seen = []
        for step in range(2):
            x = torch.randn(2 + comm.rank, 3).requires_grad_()
            y = ddp(x)
            squares = y.square()
            loss, score = squares.mean(), y.sum()
            if curious:
                before = gradients(net)
                seen.append(grad(score, [x, net.gain], retain_graph=True)[0].numpy())
                assert x.grad is None and ddp.stats().passes == step
                assert_equal(gradients(net), before)
                squares.register_hook(lambda g, score=score, x=x: look(seen, score, x))
            loss.backward()
        if curious:
            assert len(seen) == 4
            assert_equal(seen[::2], seen[1::2])
        return [p.grad.numpy() for p in net.parameters()], ddp.stats().passes

    wanted, found = (run(body, 2, curious, timeout_s=TIMEOUT_S) for curious in (False, True))
    for ours, theirs in zip(found, wanted, strict=True):
        assert_equal(ours[0], theirs[0])
        assert ours[1] == theirs[1] == 2


def test_grad_through_a_synchronised_norm_knows_what_it_weighs():
    """Where no pass is under way each rank counts its rows, as without a wrapper."""

    def body(comm, wrapped):
        torch.manual_seed(0)
        net = Net(comm, synced=True).eval()
        net.norm.train()
        model = DDP(net, comm) if wrapped else net
        x = torch.Tensor(np.random.default_rng(comm.rank).normal(size=(2 + comm.rank, 3)).astype(np.float32), True)
        return grad(model(x).square().mean(), x)[0].numpy()

    found, wanted = (run(body, 2, wrapped, timeout_s=TIMEOUT_S) for wrapped in (True, False))
    assert_equal(found, wanted)


def test_what_a_hook_on_a_leaf_returns_is_combined():
    """Ranks of 1 and 3 rows scale their gradients by 10 and 100: (1 · 10 · g_0 + 3 · 100 · g_1) / 4."""

    def body(comm):
        weight = nn.Linear(2, 1, bias=False)
        ddp = DDP(weight, comm)
        order = []
        weight.weight.register_hook(lambda g: (order.append("hook"), g * 10 ** (1 + comm.rank))[1])
        weight.weight.register_post_accumulate_grad_hook(lambda p: order.append(p.grad.tolist()))
        ddp(torch.full((1 + 2 * comm.rank, 2), 1.0 + comm.rank)).mean().backward()
        return order, weight.weight.grad.tolist()

    (first, combined), (second, other) = run(body, 2, timeout_s=TIMEOUT_S)
    assert first == ["hook", [[10.0, 10.0]]] and second == ["hook", [[200.0, 200.0]]]
    assert combined == other == [[(10.0 + 3 * 200.0) / 4] * 2]


# ------------------------------------------------------------------------------------------------------- a small GPT


class Block(nn.Module):
    """Attention and a small network, each with dropout, after a norm."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow, self.drop = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(0.2)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (z.reshape(n, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.norm1(x)).split(c, -1))
        future = torch.ones(t, t).triu(1) > 0
        scores = (q @ k.transpose(-2, -1) * (c // self.heads) ** -0.5).masked_fill(future, -1e9)
        x = x + self.drop(self.out((self.drop(scores.softmax(-1)) @ v).transpose(1, 2).reshape(n, t, c)))
        return x + self.drop(self.narrow(F.gelu(self.wide(self.norm2(x)))))


class Gpt(nn.Module):
    """Two blocks over tokens and places, the embedding tied to the head."""

    def __init__(self, checkpointed, words=11, width=16, context=8):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(context, width)
        self.blocks, self.norm = nn.ModuleList([Block(width, 2), Block(width, 2)]), nn.LayerNorm(width)
        self.checkpointed = checkpointed

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x) if self.checkpointed else block(x)
        return F.linear(self.norm(x), self.words.weight)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_gpt_has_the_same_gradients_with_half_the_memory(ranks):
    def body(comm, checkpointed):
        torch.manual_seed(0)
        ddp = DDP(Gpt(checkpointed), comm)
        tokens = torch.Tensor(np.random.default_rng(comm.rank).integers(0, 11, (2 + comm.rank, 9)))
        held = []
        for _ in range(2):
            logits = ddp(tokens[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, 11), tokens[:, 1:].reshape(-1))
            held.append(saved_bytes(loss, apart=[tokens]))
            loss.backward()
        return [p.grad.numpy() for p in ddp.parameters()], held

    plain, found = (run(body, ranks, checkpointed, timeout_s=TIMEOUT_S) for checkpointed in (False, True))
    for ours, theirs in zip(found, plain, strict=True):
        assert_equal(ours[0], theirs[0])
        assert all(mine <= full / 2 for mine, full in zip(ours[1], theirs[1], strict=True))


def test_a_forward_that_is_made_again_is_no_other_call():
    """Nine samples cost 0.03 s forward and 0.06 s backward; a second run costs a forward, and is none."""

    def body(comm, checkpointed):
        ddp = DDP(nn.Linear(3, 1), comm)
        for _ in range(2):
            with ddp.no_sync():
                (checkpoint(ddp, torch.ones(9, 3)) if checkpointed else ddp(torch.ones(9, 3))).mean().backward()
            ddp.flush()
        return ddp.stats().forward_s

    cluster = Cluster.of_speeds([1.0, 1.0], per_sample_s=0.01)
    for checkpointed, step_s in ((False, 0.09), (True, 0.12)):
        trace = simulate.run(body, cluster, checkpointed)
        assert trace.results == pytest.approx([2 * 0.03] * 2) and trace.step_times_s() == pytest.approx([step_s] * 2)
        assert [step.samples for step in trace.ranks[0].steps] == [9.0, 9.0]


def test_a_second_run_is_nothing_that_flush_would_count():
    """Ranks of 1 and 3 rows weigh 1/4 and 3/4, though one of them ran its rows again."""

    def body(comm):
        layer = nn.Linear(1, 1, bias=False)
        ddp, x = DDP(layer, comm), torch.full((1 + 2 * comm.rank, 1), 1.0 + comm.rank)
        with ddp.no_sync():
            (checkpoint(ddp, x) if comm.rank else ddp(x)).mean().backward()
        ddp.flush()
        return layer.weight.grad.item()

    assert run(body, 2, timeout_s=TIMEOUT_S) == [1.75, 1.75]
