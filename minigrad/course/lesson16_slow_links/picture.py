"""The loss of four ways to train behind a slow link, by the time that it took."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad import nn, optim
from minigrad.course.drawing import curves
from minigrad.course.lesson16_slow_links.checks import BATCH, FEATURES, KINDS, RANKS, RATE, Problem
from minigrad.distributed import CadenceConfig, Communicator, simulate
from minigrad.distributed.average import Cadence, DiLoCo, EveryK, Mean, ParameterAverager, Sync
from minigrad.distributed.simulate import Cluster, Link
from minigrad.nn import functional
from minigrad.recording import no_grad
from minigrad.tensor import Tensor

STEP_S = 8e-3
WAYS: dict[str, Any] = {
    "after each step": (Sync(), Mean()),
    "after 16 steps, the mean": (EveryK(16), Mean()),
    "after 16 steps, DiLoCo": (EveryK(16), DiLoCo()),
    "El Che": (Cadence(CadenceConfig(anchor=1)), Mean()),
}


def picture() -> str:
    """Speeds 2:2:1:1, and a meeting that takes about four steps of the slow ranks."""
    problem = Problem()
    lines = {name: simulate.run(train, slow_link(), problem, *way).results[0] for name, way in WAYS.items()}
    return curves("Loss of all data, by the time that it took", lines, x="seconds", y="loss", log_y=True)


def slow_link(speeds: tuple[float, ...] = (2, 2, 1, 1)) -> Cluster:
    """A cluster on which a meeting takes about four steps of a rank of speed 1."""
    nbytes = (FEATURES + 1) * KINDS * 8
    wire_s = 4 * STEP_S - 6e-4  # less six messages' latency
    link = Link(1e-4, 2 * (RANKS - 1) / RANKS * nbytes / wire_s)
    return Cluster.of_speeds(speeds, per_sample_s=STEP_S / BATCH, link=link)


def train(comm: Communicator, problem: Problem, policy: Any, outer: Any, time_s: float = 0.65) -> list[Any]:
    """Train for some time; (seconds, loss) after each meeting."""
    model = nn.Linear(FEATURES, KINDS).to("float64")
    with no_grad():
        for param in model.parameters():
            param.zero_()
    optimizer = optim.SGD(model.parameters(), lr=RATE)
    averager = ParameterAverager(model, comm, policy, outer)
    begin_s, step, points = comm.clock.now_s(), 0, [(0.0, float(np.log(KINDS)))]
    while comm.clock.now_s() < begin_s + time_s:
        rows = problem.rows[step % len(problem.rows), comm.rank]
        optimizer.zero_grad()
        scores = model(Tensor(problem.points[rows, :-1]))
        functional.cross_entropy(scores, Tensor(problem.kinds[rows])).backward()
        optimizer.step()
        step += 1
        if averager.step(BATCH) is not None and comm.rank == 0:
            points.append((comm.clock.now_s() - begin_s, problem.loss(values_of(model))))
    averager.finish()
    return [*points, (comm.clock.now_s() - begin_s, problem.loss(values_of(model)))]


def values_of(model: nn.Linear) -> Any:
    """The parameters as the problem has them: a row for each feature, and one for the bias."""
    weight, bias = (param.detach().numpy() for param in model.parameters())
    return np.concatenate([weight.T, bias[None]])
