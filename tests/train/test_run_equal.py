"""Runs against a loop by hand over all ranks one after the other, in float64: each option does what it says."""

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.data import ArrayDataset
from minigrad.data.order import largest_remainder, permutation
from minigrad.distributed.average import DiLoCo, EveryK, Mean, PostLocalSGD, Sync
from tests.train.runs import cluster, start

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((61, 5)), RNG.standard_normal((61, 2))


def make_model(device):
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).to(device, "float64")


def make_optimizer(params):
    return optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-3)


def where_positive(model, batch):
    """The mean over those rows alone, of which a batch may have none."""
    weight = (batch[0][:, :1] > 0).to("float64")
    n = float(weight.sum().item())
    return ((model(batch[0]) - batch[1]).square() * weight).sum() * (1.0 / n if n else 0.0), n


class Replica:
    """One rank's model, which takes gradients from outside."""

    def __init__(self, given, world_size):
        minigrad.manual_seed(given["seed"])
        self.model, self.given, self.step = make_model("cpu"), given, 0
        self.optimizer = make_optimizer(list(self.model.parameters()))
        scale = given["lr_scale"]
        self.rate = 0.1 * (scale(world_size) if callable(scale) else scale or 1.0)

    @property
    def values(self):
        return [param.detach().numpy().copy() for param in self.model.parameters()]

    @values.setter
    def values(self, values):
        for param, value in zip(self.model.parameters(), values):
            param.data[...] = value

    def gradient(self, rows):
        """Σ n·gradient, and Σ n."""
        loss, n = where_positive(self.model, (minigrad.Tensor(X[rows]), minigrad.Tensor(Y[rows])))
        if not n:
            return None, 0.0
        loss.backward()
        found = [n * param.grad.numpy() for param in self.model.parameters()]
        self.optimizer.zero_grad()
        return found, n

    def apply(self, gradient):
        schedule, limit = self.given["schedule"], self.given["max_grad_norm"]
        norm = np.sqrt(sum((each**2).sum() for each in gradient))
        factor = min(1.0, limit / (norm + 1e-6)) if limit else 1.0
        for param, value in zip(self.model.parameters(), gradient):
            param.grad = minigrad.Tensor(factor * value)
        self.optimizer.param_groups[0]["lr"] = self.rate * (schedule(self.step) if schedule else 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1


def weighted(values, weights):
    parts = [[weight * each for each in mine] for mine, weight in zip(values, weights) if weight]
    return [sum(each) / sum(weights) for each in zip(*parts)]


def parts_of(given, world_size, epoch):
    order = permutation(given["samples"], given["seed"], epoch) if given["shuffle"] else np.arange(given["samples"])
    sizes = largest_remainder(given["samples"], given["shares"] or [1 / world_size] * world_size)
    return np.split(order, np.cumsum(sizes)[:-1])


def gradients_by_hand(given, world_size):
    replica, policy, size = Replica(given, world_size), given["policy"], given["batch_size"]
    times = {(0.75, 0.25): (3, 1)}.get(given["shares"], (1,) * world_size)
    for epoch in range(2):
        parts = parts_of(given, world_size, epoch)
        while any(map(len, parts)) and replica.step != given["max_steps"]:
            k = policy.period or 1
            if isinstance(policy, PostLocalSGD):
                k = policy.k if replica.step >= policy.switch else 1
            cuts = [size * k * count for count in times]
            found = [replica.gradient(part[:cut]) for part, cut in zip(parts, cuts)]
            parts = [part[cut:] for part, cut in zip(parts, cuts)]
            if any(n for _, n in found):
                total = sum(n for _, n in found)
                replica.apply([each / total for each in map(sum, zip(*(mine for mine, n in found if n)))])
    return replica.values


def parameters_by_hand(given, world_size):
    replicas, policy, outer = [Replica(given, world_size) for _ in range(world_size)], given["policy"], given["outer"]
    common, speed, rounds = replicas[0].values, None, 0
    for epoch in range(2):
        parts, taken = parts_of(given, world_size, epoch), [0.0] * world_size
        since = 0
        while any(map(len, parts)) and rounds != given["max_steps"]:
            for rank, replica in enumerate(replicas):
                rows, parts[rank] = np.split(parts[rank], [given["batch_size"]])
                gradient, n = replica.gradient(rows) if len(rows) else (None, 0.0)
                if n:
                    replica.apply([each / n for each in gradient])
                    taken[rank] += n
            rounds, since = rounds + 1, since + 1
            ends = not any(map(len, parts)) or rounds == given["max_steps"]
            if (since == (policy.period or 1) or ends) and any(taken):
                mean = weighted([replica.values for replica in replicas], taken)
                if isinstance(outer, DiLoCo):
                    moved = [old - new for old, new in zip(common, mean)]
                    speed = moved if speed is None else [outer.momentum * v + d for v, d in zip(speed, moved)]
                    mean = [old - outer.lr * (d + outer.momentum * v) for old, d, v in zip(common, moved, speed)]
                common, taken, since = mean, [0.0] * world_size, 0
                for replica in replicas:
                    replica.values = mean
        for replica in replicas:
            replica.step = max(each.step for each in replicas)
    return common


DECAY = optim.schedule.StepDecay(3, gamma=0.5)
DEFAULTS = {"samples": 46, "batch_size": 4, "seed": 7, "shuffle": True, "schedule": None, "lr_scale": None}
DEFAULTS |= {"max_grad_norm": None, "max_steps": None, "policy": Sync(), "outer": Mean(), "shares": None}
BOTH = [
    (2, {"max_grad_norm": 0.2, "schedule": DECAY, "lr_scale": lambda world_size: world_size, "accumulate": 3}),
    (3, {"samples": 20, "batch_size": 3, "max_grad_norm": 0.2, "scaler": optim.GradScaler(64.0), "policy": EveryK(2)}),
    (4, {"samples": 3, "seed": 2**63 + 5, "max_steps": 1}),
    (2, {"batch_size": 100, "lr_scale": 2.0}),
    (2, {"shares": (0.75, 0.25), "schedule": lambda step: 1 / (1 + step), "max_steps": 3, "samples": 61}),
    (1, {"policy": EveryK(5), "max_grad_norm": 0.2, "samples": 61, "shuffle": False}),
]
GRADIENTS = [(2, {"policy": PostLocalSGD(3, 2), "schedule": DECAY})]
PARAMETERS = [
    (2, {"policy": EveryK(2), "outer": DiLoCo(0.7), "max_steps": 3}),
    (3, {"samples": 61, "batch_size": 3, "shares": (0.5, 0.0, 0.5), "schedule": DECAY, "policy": EveryK(5)}),
    (2, {"samples": 29, "shares": (0.75, 0.25), "schedule": lambda step: 1 / (1 + step)}),
]
CASES = [("gradients", *case) for case in BOTH + GRADIENTS] + [("parameters", *case) for case in BOTH + PARAMETERS]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_run_is_the_loop_by_hand(number):
    average, world_size, options = CASES[number]
    given = {**DEFAULTS, "average": average, **options}
    expected = {"gradients": gradients_by_hand, "parameters": parameters_by_hand}[average](given, world_size)
    samples = given.pop("samples")
    given |= {"make_model": make_model, "make_optimizer": make_optimizer, "train_fn": where_positive}
    place = {"cluster": cluster(world_size)} if number % 2 else {"ranks": world_size}
    found = start(dataset=ArrayDataset(X[:samples], Y[:samples]), **given, **place).join().params.values()
    for own, value in zip(expected, found):
        np.testing.assert_allclose(value.numpy(), own, rtol=0, atol=1e-12)
