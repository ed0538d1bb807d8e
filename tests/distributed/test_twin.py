"""The twin: silent where ranks do what one process does, and names step, tensor and fault where they do not."""

import contextlib
import re
import threading

import numpy as np
import pytest

from minigrad import Tensor, autocast, manual_seed, nn, no_grad, optim, randn
from minigrad.distributed import DDP, Replicas, ReplicasTwin, Twin, run, simulate
from minigrad.distributed.inspect.twin.compare import Expected, difference
from minigrad.distributed.inspect.twin.faults import explain
from minigrad.errors import ArgumentError, DtypeError, RankFailedError, TwinMismatchError
from tests.distributed.mutants import MUTANTS, who_notices


class Net(nn.Module):
    """Noise and statistics, which each rank has its own of."""

    def __init__(self):
        super().__init__()
        self.fc, self.norm, self.drop, self.out = nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.4), nn.Linear(5, 2)

    def forward(self, x):
        return self.out(self.drop(self.norm(self.fc(x))).tanh())


def mean_loss(model, batch):
    x, y = batch
    return (model(x) - y).square().mean()


def made(n):
    return randn(n, 3), randn(n, 2)


def trained(comm, wrap=DDP, steps=3, sizes=(2, 5, 3), **options):
    """Reports of steps of unequal shards."""
    manual_seed(3)
    ddp = wrap(Net(), comm)
    optimizer = optim.Adam(ddp.parameters(), lr=0.05)
    twin = Twin(ddp, optimizer, mean_loss, **options)
    reports = []
    for _ in range(steps):
        batch = made(sizes[comm.rank])
        optimizer.zero_grad()
        mean_loss(ddp, batch).backward()
        optimizer.step()
        reports.append(twin.step(batch))
    return reports


def test_what_ddp_does_is_what_one_process_does():
    for reports in run(trained, 3):
        assert [report.step for report in reports] == [1, 2, 3]
        for report in reports:
            assert report.agrees and report.first is None and not report.notes
            assert report.compared == 6 + 6 + 3  # the parameters, their gradients, the buffers
            assert report.largest_ulps <= 8.0


def test_a_rank_that_waits_at_the_end_of_join_makes_no_step_of_the_twin():
    def body(comm):
        ddp = DDP(nn.Linear(3, 2), comm)
        optimizer = optim.SGD(ddp.parameters(), lr=0.1)
        twin = Twin(ddp, optimizer, mean_loss)
        with ddp.join():
            for _ in range(1 + comm.rank):
                batch = made(2)
                optimizer.zero_grad()
                mean_loss(ddp, batch).backward()
                optimizer.step()
                seen.append((comm.rank, twin.step(batch).agrees))

    seen = []
    with pytest.raises(ArgumentError, match=r"expected a step of all ranks, got one of ranks \[1\].*end of join"):
        run(body, 2)
    assert sorted(seen) == [(0, True), (1, True)]


def test_a_virtual_cluster_is_as_ranks_are():
    trace = simulate.run(trained, simulate.Cluster((simulate.RankCost(0.1), simulate.RankCost(0.2))))
    assert all(report.agrees for reports in trace.results for report in reports)


def test_steps_that_are_not_due_are_not_compared():
    reports = run(lambda comm: trained(comm, steps=4, every=2), 2)[1]
    assert [report and report.step for report in reports] == [None, 2, None, 4]


def accumulating(comm, sync="no_sync"):
    ddp = DDP(Net(), comm, sync="manual" if sync == "manual" else "auto", broadcast_buffers="mean")
    optimizer = optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    twin = Twin(ddp, optimizer, lambda model, batch: mean_loss(model, batch) / 2)
    for sizes in ((2, 4), (3, 2)):
        optimizer.zero_grad()
        for k, n in enumerate(sizes):
            batch = made(n + 2 * comm.rank)
            with ddp.no_sync() if k == 0 and sync == "no_sync" else contextlib.nullcontext():
                (mean_loss(ddp, batch) / 2).backward()
            if k == 0:
                twin.accumulate(batch)
        if sync == "manual":
            ddp.sync_gradients()
        optimizer.step()
        twin.step(batch)
    return twin.steps


@pytest.mark.parametrize("sync", ["no_sync", "manual"])
def test_accumulated_batches_are_one_step(sync):
    assert run(lambda comm: accumulating(comm, sync), 2) == [2, 2]


def clipped(comm):
    ddp = DDP(Net(), comm)
    optimizer = optim.SGD(ddp.parameters(), lr=0.1)

    def clip(module):
        nn.utils.clip_grad_norm_(module.parameters(), 0.01)

    twin = Twin(ddp, optimizer, mean_loss, before_step=clip)
    batch = made(3 + comm.rank)
    mean_loss(ddp, batch).backward()
    clip(ddp.module)
    optimizer.step()
    return twin.step(batch)


def scaled(comm, init_scale=256.0):
    """With a scale of 2**24 the gradients overflow, and the step is left out."""
    ddp = DDP(nn.Linear(3, 2), comm)
    optimizer, scaler = optim.SGD(ddp.parameters(), lr=0.1), optim.GradScaler(init_scale)

    def half_loss(model, batch):
        with autocast("float16"):
            return mean_loss(model, batch)

    twin = Twin(ddp, optimizer, half_loss, scaler=scaler)
    batch = made(3 + comm.rank)
    before = ddp.module.weight.tolist()
    with np.errstate(invalid="ignore"):
        scaler.scale(half_loss(ddp, batch)).backward()
    scaler.step(optimizer)
    scaler.update()
    report = twin.step(batch)
    assert (ddp.module.weight.tolist() == before) == (init_scale > 1e6)
    return report


def with_an_idle_rank(comm):
    """Rank 1 has no batch in the first step, and an empty one in the second; rank 0 none in the third."""
    ddp = DDP(nn.Linear(3, 2), comm)
    optimizer = optim.SGD(ddp.parameters(), lr=0.1)
    twin = Twin(ddp, optimizer, mean_loss)
    for idle, n in ((1, None), (1, 0), (0, None)):
        optimizer.zero_grad()
        batch = made(4 if idle != comm.rank else n or 0)
        if comm.rank == idle and n is None:
            ddp.flush()
            batch = None
        else:
            mean_loss(ddp, batch).backward()
        optimizer.step()
        report = twin.step(batch)
    return report


def of_sums(comm):
    ddp = DDP(nn.Linear(3, 2), comm, reduce="sum")
    twin = Twin(ddp, None, lambda model, x: model(x).square().sum())
    x = randn(2 + comm.rank, 3)
    ddp(x).square().sum().backward()
    return twin.step(x)


def of_tokens(comm):
    """Losses that are means over something else than the batch."""
    ddp = DDP(nn.Linear(3, 2), comm)
    twin = Twin(ddp, None, lambda model, batch: model(batch["x"])[batch["rows"]].mean())
    batch = {"x": randn(6, 3), "rows": np.arange(1 + 3 * comm.rank)}
    n = len(batch["rows"])
    with ddp.samples(n):
        ddp(batch["x"])[batch["rows"]].mean().backward()
    return twin.step(batch, samples=n)


@pytest.mark.parametrize("body", [clipped, scaled, with_an_idle_rank, of_sums, of_tokens])
def test_all_ways_to_weigh_and_step(body):
    for report in run(body, 2):
        assert report.agrees and not report.notes, report


def test_a_step_that_the_scaler_leaves_out():
    for report in run(lambda comm: scaled(comm, 2.0**24), 2):
        assert report.agrees, report


@pytest.mark.parametrize("counts, fault", [("samples", ""), ("alike", "a mean of means: each of 3 ranks counts alike")])
def test_replicas_in_one_thread(counts, fault):
    models = [Net() for _ in range(3)]
    replicas = Replicas.wrap(models, ["cpu"] * 3)
    replicas.sync_params()
    optimizers = [optim.Adam(model.parameters(), lr=0.05) for model in models]
    twin = ReplicasTwin(replicas, optimizers, mean_loss, raises=False)
    for sizes in ((2, 5, 3), (4, 2, 6)):
        batches = [made(n) for n in sizes]
        for model, optimizer, batch in zip(models, optimizers, batches):
            optimizer.zero_grad()
            mean_loss(model, batch).backward()
        replicas.weighted_all_reduce_gradients(sizes if counts == "samples" else (1, 1, 1))
        for optimizer in optimizers:
            optimizer.step()
        report = twin.step(batches)
        assert report.agrees == (not fault) and report.fault.startswith(fault), report
        replicas.sync_buffers()


# -------------------------------------------------------------------------------------- a student's wrapper, and faults


class Naive(nn.Module):
    """Combines gradients after backward; `fault` says what it does wrong."""

    def __init__(self, module, comm, fault=""):
        super().__init__()
        self.module, self.comm, self.fault = module, comm, fault
        self.old = {}

    def forward(self, *args):
        return self.module(*args)

    def combine(self, counts):
        """Gradients that are accumulated over batches of so many samples."""
        n, world = float(sum(counts)), self.comm.world_size
        if self.fault == "last batch counts":
            n = float(counts[-1])
        if self.fault == "never forgets":
            n += self.old.get("n", 0.0)
            self.old["n"] = n
        if self.fault == "each clips":
            nn.utils.clip_grad_norm_(self.module.parameters(), 1e-3)
        total = np.array([n])
        self.comm.all_reduce(total).wait()
        weight = {"mean of means": 1 / world, "sum": 1.0, "divided twice": n / total[0] / world}.get(
            self.fault, n / total[0]
        )
        for name, param in self.module.named_parameters():
            values = (weight * param.grad.numpy()).astype("float32")
            if self.fault == "16 bits":
                values = values.astype("float16")
            if not (self.fault == "one rank is left out" and self.comm.rank == 1):
                part = values
            else:
                part = np.zeros_like(values)
            self.comm.all_reduce(part).wait()
            if self.fault == "stale" and name == "fc.bias" and name in self.old:
                part = self.old[name]
            self.old[name] = part.copy()
            param.grad = Tensor(part.astype("float32"))


def by_hand(comm, fault="", reports=None):
    """Two steps of two batches each."""
    manual_seed(1)
    model = Naive(Net().eval(), comm, fault)
    optimizer = optim.SGD(model.module.parameters(), lr=0.1)
    twin = Twin(model, optimizer, mean_loss, raises=False)
    for counts in ((2, 5), (4, 1)):
        optimizer.zero_grad()
        own = [n + 3 * comm.rank * (k + 1) for k, n in enumerate(counts)]
        for k, n in enumerate(own):
            batch = made(n)
            loss = mean_loss(model, batch)
            if not (fault == "drops a batch" and k == 0):
                loss.backward()
            if k == 0:
                twin.accumulate(batch)
        model.combine(own)
        if fault == "clipped":
            nn.utils.clip_grad_norm_(model.module.parameters(), 1e-3)
        optimizer.step()
        if fault == "two steps":
            optimizer.step()
        if fault == "ranks part" and comm.rank == 1:
            with no_grad():
                model.module.fc.bias.zero_()
        twin.step(batch)
    return twin.first


def test_a_wrapper_of_ones_own_that_is_right():
    assert run(by_hand, 2) == [None, None]


@pytest.mark.parametrize(
    "fault, step, tensor, words",
    [
        ("mean of means", 1, "gradient fc.weight", "a mean of means: each of 2 ranks counts alike"),
        ("sum", 1, "gradient fc.weight", "a sum over the ranks"),
        ("divided twice", 1, "gradient fc.weight", "divided twice: by the samples of all, and by the 2 ranks"),
        ("last batch counts", 1, "gradient fc.weight", "the samples of the last batch of each rank count for all"),
        ("drops a batch", 1, "gradient fc.weight", "a missing micro-batch: batch 1 of 2 of each rank"),
        ("one rank is left out", 1, "gradient fc.weight", "rank 1 is left out of the sum"),
        ("stale", 2, "gradient fc.bias", "a stale buffer: the gradients of the step before, once more"),
        ("never forgets", 2, "gradient fc.weight", "samples of steps before count on"),
        ("16 bits", 1, "gradient fc.weight", "rounded to float16"),
        ("clipped", 1, "gradient fc.weight", "clipped (see before_step)"),
        ("each clips", 1, "gradient fc.weight", "or a rank's gradient was scaled"),
        ("two steps", 1, "parameter fc.weight", "the step was made twice"),
    ],
)
def test_a_fault_is_named(fault, step, tensor, words):
    first, other = run(lambda comm: by_hand(comm, fault), 2)
    assert first == other
    assert (first.step, f"{first.first.kind} {first.first.name}") == (step, tensor), first
    assert first.fault.startswith(words) or words in first.fault, first
    assert first.first.ulps > first.first.allowed_ulps and not first.apart


def after(changes, drops=False, **options):
    """What a twin says of the second of two steps of SGD with momentum where changes(...) was made before."""

    def body(comm):
        manual_seed(2)
        ddp = DDP(Net(), comm)
        optimizer = optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
        twin = Twin(ddp, optimizer, options.get("loss_fn", mean_loss), raises=False)
        for step in range(2):
            batch, before = made(3 + 2 * comm.rank), [param.detach().clone() for param in ddp.parameters()]
            optimizer.zero_grad()
            (mean_loss(ddp, batch) * (3.0 if drops and step else 1.0)).backward()
            optimizer.step()
            if step:
                with no_grad():
                    changes(ddp.module, optimizer, before, comm.rank)
            if drops:
                optimizer.zero_grad()
            report = twin.step(batch)
        return report

    return run(body, 2)[0]


def takes_it_back(module, optimizer, before, rank):
    for param, value in zip(module.parameters(), before):
        param.copy_(value)


def goes_half_as_far(module, optimizer, before, rank):
    for param, value in zip(module.parameters(), before):
        param.copy_((param + value) / 2)


def forgets_statistics(module, optimizer, before, rank):
    if rank == 1:
        module.norm.running_var.fill_(1.0)


@pytest.mark.parametrize(
    "changes, tensor, words",
    [
        (takes_it_back, ("parameter", "fc.weight", 0), "no step was made"),
        (goes_half_as_far, ("parameter", "fc.weight", 0), "parameters change by 0.5 times what they should"),
        (lambda module, optimizer, *_: optimizer.step(), ("parameter", "fc.weight", 0), "the step was made twice"),
        (forgets_statistics, ("buffer", "norm.running_var", 1), ""),
    ],
)
def test_what_differs_behind_the_gradients(changes, tensor, words):
    report = after(changes)
    first = report.first
    assert ((first.kind, first.name, first.rank), report.step) == (tensor, 2), report
    assert report.fault.startswith(words) and bool(report.fault) == bool(words), report


def test_parameters_alone_tell_where_gradients_were_dropped():
    report = after(lambda *_: None, drops=True)
    assert report.first.kind == "parameter" and report.fault.startswith("times 3") is False
    assert report.notes == ("gradients were dropped before Twin.step: they were not compared",)


def test_what_float64_can_not_do_is_left_out():
    def narrow_loss(model, batch):
        if batch[0].dtype == np.float64:
            raise DtypeError("float32 only")
        return mean_loss(model, batch)

    report = after(lambda *_: None, loss_fn=narrow_loss)
    assert report.agrees and report.notes == ("float64 was left out: DtypeError: float32 only",)


def test_ranks_that_part_are_named():
    first, _ = run(lambda comm: by_hand(comm, "ranks part"), 2)
    assert (first.step, first.apart, first.differences) == (1, (1,), ())
    assert "the parameters of rank 1 are not those of rank 0" in str(first)


def test_a_difference_is_an_error_on_all_ranks():
    def body(comm):
        ddp = DDP(nn.Linear(3, 2), comm)
        twin = Twin(ddp, None, mean_loss)
        batch = made(2)
        (3.0 * mean_loss(ddp, batch)).backward()
        with pytest.raises(TwinMismatchError, match="gradient weight .* ulps off") as caught:
            twin.step(batch)
        return caught.value.report.fault

    words = "times 3: clipped (see before_step), not unscaled (see scaler), or divided by another number"
    assert run(body, 2) == [words, words]


def test_an_evaluation_before_a_step_is_no_part_of_it():
    def body(comm):
        ddp = DDP(Net(), comm)
        twin = Twin(ddp, None, mean_loss)
        for _ in range(2):
            with no_grad():
                ddp(made(4)[0])  # draws noise, and moves statistics
            batch = made(2 + comm.rank)
            ddp.zero_grad()
            mean_loss(ddp, batch).backward()
            assert twin.step(batch).agrees

    run(body, 2)


def test_how_far_a_tensor_may_be_off_grows_with_what_its_dtype_rounds():
    twin = np.array([1.0, 2.0])
    numbers = Expected(twin, twin + 2.0**-20, 2.0, np.dtype(np.float32))
    assert numbers.ulp == 2.0**-22 and numbers.allowed_ulps(8.0) == 8.0 + 8.0 * 4.0
    assert difference("gradient", "w", 0, twin + 39.0 * numbers.ulp, numbers, 8.0) is None
    assert difference("gradient", "w", 0, twin + 41.0 * numbers.ulp, numbers, 8.0).ulps == 41.0


def test_what_explains_the_second_tensor_alone_explains_nothing():
    ones = np.ones(3)
    expected = {name: Expected(ones, None, 1.0, np.dtype(np.float32)) for name in "ab"}
    faults = [("halved", lambda: {"a": 0.5 * ones, "b": 0.5 * ones}), ("gone", lambda: {"a": 0.0 * ones, "b": ones})]
    got = {"a": np.array([0.1, 0.2, 0.4]), "b": 0.5 * ones}
    assert explain(got, expected, ["a", "b"], faults, 8.0, "times {}") == ""
    assert explain(got, expected, ["b", "a"], faults, 8.0, "times {}") == "halved; that does not explain a"


def test_what_rank_0_fails_of_all_hear():
    def body(comm):
        ddp = DDP(nn.Linear(3, 2), comm)
        twin = Twin(ddp, None, lambda model, batch: 1 / 0)
        mean_loss(ddp, made(2)).backward()
        with pytest.raises(ZeroDivisionError if comm.rank == 0 else RankFailedError):
            twin.step(made(2))

    run(body, 2)


class Harmonic(optim.Optimizer):
    """Keeps a count, a list and its parameters by itself, as optimizers of one's own do."""

    def __init__(self, params):
        params = list(params)
        super().__init__(params, {})
        self.count, self.counts, self.own_params = 0, [], params

    def step(self, closure=None):
        self.count += 1
        self.counts.append(self.count)
        with no_grad():
            for param in self.own_params:
                param.add_(param.grad, alpha=-0.1 / self.count)


def test_what_an_optimizer_of_ones_own_keeps_is_as_before_the_step_and_stays():
    def body(comm):
        ddp = DDP(nn.Linear(3, 2), comm)
        optimizer = Harmonic(ddp.parameters())
        twin = Twin(ddp, optimizer, mean_loss)
        for _ in range(3):
            batch = made(2 + comm.rank)
            optimizer.zero_grad()
            mean_loss(ddp, batch).backward()
            optimizer.step()
            before = ddp.module.weight.tolist()
            twin.step(batch)
            assert ddp.module.weight.tolist() == before
        return optimizer.counts

    assert run(body, 2) == [[1, 2, 3]] * 2


@pytest.mark.parametrize("inside", [False, True])
def test_what_an_optimizer_keeps_that_can_not_be_copied_is_told(inside):
    def body(comm):
        ddp = DDP(nn.Linear(3, 2), comm)
        optimizer = Harmonic(ddp.parameters())
        optimizer.lock = threading.Lock()
        stepping = Lookahead(optimizer) if inside else optimizer
        twin = Twin(ddp, stepping, mean_loss)
        batch = made(2)
        mean_loss(ddp, batch).backward()
        stepping.step()
        return twin.step(batch).notes

    name = "inner.lock" if inside else "lock"
    assert run(body, 2) == [(f"{name} of the optimizer can't be copied: the twin's steps used the same one",)] * 2


class Lookahead(optim.Optimizer):
    """Goes half of the way back every second step; another optimizer makes its steps."""

    def __init__(self, inner):
        super().__init__(inner.params(), {})
        self.inner, self.count, self.slow = inner, 0, [param.detach().clone() for param in inner.params()]

    def step(self, closure=None):
        self.inner.step()
        self.count += 1
        if self.count % 2 == 0:
            with no_grad():
                for param, slow in zip(self.params(), self.slow):
                    slow.copy_(slow + 0.5 * (param - slow))
                    param.copy_(slow)


def test_an_optimizer_around_another_one():
    def body(comm, watched):
        manual_seed(2)
        ddp = DDP(nn.Linear(3, 2), comm)
        optimizer = Lookahead(optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9))
        twin = Twin(ddp, optimizer, mean_loss) if watched else None
        for _ in range(4):
            batch = made(2 + comm.rank)
            ddp.zero_grad()
            mean_loss(ddp, batch).backward()
            optimizer.step()
            assert twin is None or not twin.step(batch).notes
        return [param.tolist() for param in ddp.parameters()]

    assert run(body, 2, True) == run(body, 2, False)


def test_a_loss_that_calls_what_is_trained_is_refused():
    def body(comm):
        ddp = DDP(nn.Linear(3, 2), comm)
        twin = Twin(ddp, None, lambda model, batch: mean_loss(ddp, batch))
        mean_loss(ddp, made(2)).backward()
        with pytest.raises(ArgumentError if comm.rank == 0 else RankFailedError, match="that they are given, got a"):
            twin.step(made(2))

    run(body, 2)


def test_hooks_that_were_not_run_are_told():
    def body(comm):
        ddp = DDP(nn.Linear(3, 2), comm)
        ddp.module.bias.register_hook(lambda grad: grad).remove()
        ddp.module.weight.register_hook(lambda grad: 0.5 * grad)
        twin = Twin(ddp, None, mean_loss, raises=False)
        batch = made(2)
        mean_loss(ddp, batch).backward()
        return twin.step(batch).notes

    assert run(body, 2) == [("hooks on the gradient of weight were not run by the twin",)] * 2


def test_a_forward_that_went_around_the_module():
    def body(comm):
        twin = Twin(DDP(nn.Linear(3, 2), comm), None, mean_loss)
        with pytest.raises(ArgumentError, match="expected a forward of the wrapped module for each batch"):
            twin.step(made(2))

    run(body, 1)


def test_no_bit_of_the_training_changes():
    def body(comm, watched):
        manual_seed(5)
        ddp = DDP(Net(), comm)
        optimizer = optim.Adam(ddp.parameters(), lr=0.05)
        twin = Twin(ddp, optimizer, mean_loss) if watched else None
        for _ in range(3):
            batch = made(3 + comm.rank)
            optimizer.zero_grad()
            mean_loss(ddp, batch).backward()
            optimizer.step()
            if twin is not None:
                twin.step(batch)
        return [value.tolist() for value in ddp.state_dict().values()]

    assert run(body, 2, True) == run(body, 2, False)


# ------------------------------------------------------------------------ what the fingerprint does not see, by mutants

MEAN_OF_MEANS = "a mean of means: each of 3 ranks counts alike, though they have 2, 5, 3 samples"
UNSEEN = {  # the mutant -> the steps in which it shows, the first step and tensor, and what the twin says of it
    "the samples of the last micro-batch count alone": ("accumulated", 1, "the samples of the last batch of each"),
    "no_sync is ignored": ("accumulated", 1, "each batch is combined by itself, as without no_sync"),
    "gradients are not weighted": ("unequal batches", 1, "a sum over the ranks: nobody divides"),
    "sums are weighted too": ("sums", 1, r"weighted by samples \(2, 5\), where gradients are to be added up"),
    "the weight is dropped where there is a factor": ("predivided", 1, "times 2: a mean over the samples of all"),
    "what was divided is not multiplied": ("predivided", 1, "divided twice: by the samples of all, and by the 2"),
    "each rank counts as much": ("unequal batches", 1, MEAN_OF_MEANS),
    "the weight is that of the others": ("unequal batches", 1, "each rank has the weight of the others"),
    "present gradients are zeroed, missing ones sent": ("unequal batches", 1, "zeros: a buffer that nobody has filled"),
    "the odd rank out is left out of sums": ("unequal batches", 1, "rank 2 is left out, with its samples"),
    "samples are never forgotten": ("zeros are kept", 2, "samples of steps before count on"),
    "old gradients of missing parameters are sent": ("unused", 2, "a stale buffer: rank 1, which has no gradient"),
    "a backward counts the forwards that it does not reach": ("looked at", 1, "ranks weigh 0.2, 0.8, where it should"),
    "samples of gradients that were dropped count on": ("dropped", 1, "ranks weigh 0.2, 0.8, where it should be"),
}


@pytest.mark.parametrize("broken", UNSEEN)
def test_a_mutant_that_the_fingerprint_does_not_see(broken):
    """In its steps `replicas_agree` comes before the twin, and is content."""
    steps, step, words = UNSEEN[broken]
    _, edit = MUTANTS[broken]
    found = who_notices(edit, f"twin: {steps}")
    tensor = "second.weight" if steps == "unused" else "first.weight"
    shown = rf"twin: {steps}: TwinMismatchError: .* got step {step}: the gradient {tensor} is .* ulps off.*"
    assert re.fullmatch(f"{shown}what would explain it: {words}.*", found, re.DOTALL), found
