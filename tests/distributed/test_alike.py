"""What is not in the model and must be alike on all ranks: the first difference is named in the next pass."""

import copy
import functools

import pytest

import minigrad
from minigrad import nn, optim
from minigrad.distributed import DDP, Ddp, Recording, average_gradients, run
from minigrad.errors import ArgumentError, ReplicaMismatchError
from minigrad import FlowBuilder
from tests.distributed.worlds import run_nccl, run_ranks

TIMEOUT_S = 10.0
kinds = pytest.mark.parametrize("kind", ["threads", "shm"])


class Rank:
    """All that one rank trains with."""

    def __init__(self, comm, make=optim.Adam, scale=256.0, **options):
        minigrad.manual_seed(3)
        self.comm, self.x = comm, minigrad.ones(2, 3, device=comm.device) * (comm.rank + 1.0)
        self.ddp = DDP(nn.Linear(3, 1, device=comm.device), comm, **options)
        self.optimizer = make(self.ddp.parameters(), lr=0.25)
        self.schedule = optim.LRScheduler(self.optimizer, optim.StepDecay(1, gamma=0.5))
        self.scaler = optim.GradScaler(scale, growth_interval=3)

    @property
    def all(self):
        return [self.optimizer, self.schedule, self.scaler]

    def backward(self):
        self.scaler.scale(self.ddp(self.x).square().mean()).backward()

    def step(self):
        self.backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.optimizer.zero_grad()

    def values(self):
        return [p.detach().to("cpu").numpy().tobytes() for p in self.ddp.parameters()]


def refusal(function):
    with pytest.raises(ReplicaMismatchError) as caught:
        function()
    return str(caught.value)


def alike(results):
    return all(each == results[0] for each in results)


# --------------------------------------------------------------------------------------------------- what is refused


@kinds
def test_scales_that_differ_are_refused_in_the_first_pass_and_nothing_is_broken_by_that(kind):
    def body(comm):
        rank = Rank(comm, scale=2.0 ** (10 + comm.rank))
        message = refusal(rank.backward)
        rank.scaler.load_state_dict({**rank.scaler.state_dict(), "scale": 512.0})
        rank.optimizer.zero_grad()
        rank.step()
        return message, rank.values(), rank.scaler.get_scale()

    results = run_ranks(kind, body, 2)
    for r, (message, _, scale) in enumerate(results):
        assert message.startswith(f"rank {r}: DDP 1 of Linear: expected equal state beside the model on all ranks")
        assert "GradScaler: scale is 1024 on rank 0 and 2048 on rank 1" in message and scale == 512.0
    assert results[0][1] == results[1][1]


def restored_on_one(rank, name, change):
    if rank.comm.rank == 1:
        thing = getattr(rank, name)
        thing.load_state_dict(change(copy.deepcopy(thing.state_dict())))


def later(state):
    state["state"][0]["exp_avg"].data[...] += 1e-6
    return state


def earlier(state):
    state["state"][1]["step"] -= 1
    return state


def rate(state):
    state["param_groups"][0]["lr"] = 0.125
    return state


RESTORED = [
    ("scaler", lambda state: {**state, "scale": 512.0}, "GradScaler: scale is 256 on rank 0 and 512 on rank 1"),
    ("scaler", lambda state: {**state, "_growth_tracker": 0}, "GradScaler: _growth_tracker is 2 on rank 0 and 0 on"),
    ("optimizer", later, "Adam: exp_avg of weight is an array of fingerprint [0-9a-f]{16} on rank 0 and an array"),
    ("optimizer", earlier, "Adam: step of bias is 2 on rank 0 and 1 on rank 1"),
    ("optimizer", rate, "Adam: lr is 0.0625 on rank 0 and 0.125 on rank 1"),
    ("schedule", lambda state: {**state, "last_step": 1}, "Adam: lr is 0.0625 on rank 0 and 0.125 on rank 1"),
]


@pytest.mark.parametrize("name, change, message", RESTORED)
def test_a_state_restored_on_one_rank_only_is_refused(name, change, message):
    def body(comm):
        rank = Rank(comm)
        rank.step()
        rank.step()
        restored_on_one(rank, name, change)
        with pytest.raises(ReplicaMismatchError, match=message):
            rank.step()
        return True

    assert run(body, 2, timeout_s=TIMEOUT_S) == [True, True]


OTHERWISE = [
    (lambda rank: rank.optimizer.param_groups[0].update(lr=0.5), "Adam: lr is 0.25 on rank 0 and 0.5 on rank 1"),
    (lambda rank: setattr(rank.ddp, "batch_dim", 1), "batch_dim is 0 on rank 0 and 1 on rank 1"),
    (lambda rank: setattr(rank, "scaler", optim.GradScaler(enabled=False)), "1 GradScaler on rank 0 and 0 on rank 1"),
    (lambda rank: rank.schedule.step(), "Adam: lr is 0.25 on rank 0 and 0.125 on rank 1"),
    (lambda rank: optim.LRScheduler(rank.optimizer, optim.Constant(0.5)), "Adam: lr is 0.25 on rank 0 and 0.125 on"),
]


@pytest.mark.parametrize("change, message", OTHERWISE)
def test_what_was_made_or_set_otherwise_on_one_rank_is_refused(change, message):
    def body(comm):
        rank = Rank(comm)
        if comm.rank == 1:
            change(rank)
        return refusal(rank.step)

    assert all(message in each for each in run(body, 2, timeout_s=TIMEOUT_S))


class Odd(optim.SGD):
    """Without state too, and with the same options."""


def test_another_class_or_other_parameters_of_an_optimizer_are_named():
    def body(comm, make):
        rank = Rank(comm, optim.SGD)
        rank.optimizer = rank.schedule = None
        made = make(comm.rank, rank.ddp.module)
        return refusal(rank.backward), made

    makers = [
        (lambda r, m: (optim.SGD if r else optim.Adam)(m.parameters(), lr=0.1), "class is Adam on rank 0 and SGD"),
        (lambda r, m: optim.SGD([m.weight, m.bias][: 2 - r], lr=0.1), "is bias, weight on rank 0 and weight on rank"),
        (lambda r, m: (Odd if r else optim.SGD)(m.parameters(), lr=0.1), "class is SGD on rank 0 and Odd on rank 1"),
        (lambda r, m: optim.AdamW(m.parameters(), master_weights=r == 1), "AdamW: master_weights is False on rank 0"),
        (lambda r, m: [optim.SGD([p], lr=0.1 + (r ^ i)) for i, p in enumerate(m.parameters())], "SGD: lr is "),
    ]
    for make, message in makers:
        assert all(message in each for each, _ in run(functools.partial(body, make=make), 2, timeout_s=TIMEOUT_S))


def test_a_step_of_other_parameters_is_refused():
    def body(comm):
        rank = Rank(comm)
        rank.backward()
        [rank.ddp.module.weight, rank.ddp.module.bias][comm.rank].grad = None
        rank.optimizer.step()
        rank.optimizer.zero_grad()
        return refusal(rank.backward)

    assert all("step of bias is 1 on rank 0 and missing" in each for each in run(body, 2, timeout_s=TIMEOUT_S))


# ----------------------------------------------------------------------------------------------------- what is alike


@kinds
def test_a_state_that_is_alike_is_taken_however_it_came_about(kind):
    """Loaded on all, or on one that was behind; after one exchange the passes make no collective more."""

    def body(comm):
        rank = Rank(Recording(comm))
        rank.step()
        [state] = [each for each in comm.all_gather_object(rank.scaler.state_dict())[:1]]
        if comm.rank == 1:
            rank.scaler.load_state_dict(state)
            rank.optimizer.load_state_dict(copy.deepcopy(rank.optimizer.state_dict()))
        rank.step()
        for thing in rank.all:
            thing.load_state_dict(copy.deepcopy(thing.state_dict()))
        rank.step()
        rank.comm.calls.clear()
        rank.step()
        return rank.values(), [call.kind for call in rank.comm.calls]

    results = run_ranks(kind, body, 2)
    assert alike(results) and results[0][1] == ["all_reduce"] * 2


def test_each_rank_may_have_an_optimizer_of_parameters_of_its_own():
    """Sharded by hand: nobody else has the state of these parameters, so there is nothing to compare."""

    def body(comm):
        ddp = DDP(nn.Linear(3, 1), Recording(comm))
        mine = [ddp.module.weight, ddp.module.bias][comm.rank]
        optimizer = optim.Adam([mine], lr=0.1 * (comm.rank + 1))
        schedule = optim.LRScheduler(optimizer, optim.StepDecay(comm.rank + 1))
        for _ in range(3):
            ddp.comm.calls.clear()
            ddp(minigrad.ones(2, 3)).sum().backward()
            kinds = [call.kind for call in ddp.comm.calls]
            optimizer.step()
            schedule.step()
            ddp.zero_grad()
        return kinds

    assert run(body, 2, timeout_s=TIMEOUT_S) == [["all_reduce"] * 2] * 2


def test_optimizers_may_be_made_in_another_order():
    def body(comm):
        ddp = DDP(nn.Linear(3, 1), comm)
        made = {}
        for i in sorted(range(2), key=lambda i: i ^ comm.rank):
            made[i] = (optim.SGD, optim.Adam)[i]([list(ddp.parameters())[i]], lr=0.1)
        if comm.rank == 1:
            made[0].load_state_dict(copy.deepcopy(made[0].state_dict()))
        return ddp(minigrad.ones(2, 3)).sum().backward()

    run(body, 2, timeout_s=TIMEOUT_S)


def test_what_was_replaced_does_not_count_even_where_it_hangs_in_a_cycle():
    def body(comm):
        rank = Rank(comm)
        if comm.rank == 1:
            rank.schedule.me = rank.schedule
        rank.optimizer = optim.Adam(rank.ddp.parameters(), lr=0.25)
        rank.schedule = optim.LRScheduler(rank.optimizer, optim.StepDecay(1, gamma=0.5))
        for _ in range(2):
            rank.step()
        return rank.values()

    assert alike(run(body, 2, timeout_s=TIMEOUT_S))


def test_a_rank_without_samples_need_not_have_used_its_scale():
    def body(comm):
        rank = Rank(comm)
        for step in range(2):
            rank.backward() if comm.rank == 0 or step else rank.ddp.flush()
            rank.scaler.step(rank.optimizer)
            rank.scaler.update()
            rank.optimizer.zero_grad()
        return rank.values()

    assert alike(run(body, 2, timeout_s=TIMEOUT_S))


# -------------------------------------------------------------------------------------------------------------- join


def uneven(rank, counts, steps_after, **options):
    with rank.ddp.join(**options):
        for _ in range(counts[rank.comm.rank]):
            rank.step()
    for _ in range(steps_after):
        rank.step()


@pytest.mark.parametrize("kind, counts", [("threads", (4, 2, 0)), ("shm", (2, 4))])
def test_what_stayed_behind_in_a_join_is_refused_unless_it_is_handed_on(kind, counts):
    def body(comm):
        rank = Rank(comm, optim.AdamW)
        message = refusal(lambda: uneven(rank, counts, 1))
        good = Rank(comm)
        uneven(good, counts, 2, also=good.all)
        states = [repr(thing.state_dict()) for thing in good.all]
        return message.split("got ")[1], good.values(), states

    results = run_ranks(kind, body, len(counts))
    assert alike(results) and "AdamW: lr is " in results[0][0]


def test_plain_sgd_has_no_state_that_could_stay_behind():
    def body(comm, momentum):
        ddp = DDP(nn.Linear(3, 1), comm)
        optimizer = optim.SGD(ddp.parameters(), lr=0.1, momentum=momentum)

        def step():
            ddp(minigrad.ones(2, 3)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        with ddp.join():
            for _ in range(3 - comm.rank):
                step()
        step()
        return [p.tolist() for p in ddp.parameters()]

    assert alike(run(body, 2, 0.0, timeout_s=TIMEOUT_S))
    with pytest.raises(ReplicaMismatchError, match="SGD: momentum_buffer of weight is an array"):
        run(body, 2, 0.5, timeout_s=TIMEOUT_S)


def test_ranks_that_join_otherwise_are_refused():
    def body(comm):
        rank = Rank(comm)
        with pytest.raises(ReplicaMismatchError, match=r"join\(divide.* is \[False, .* on rank 0 and \[True, "):
            uneven(rank, (2, 2), 0, divide_by_initial_world_size=comm.rank == 1)
        return True

    assert run(body, 2, timeout_s=TIMEOUT_S) == [True, True]


def test_join_refuses_what_has_no_state():
    ddp = DDP(nn.Linear(3, 1), minigrad.distributed.SoloCommunicator())
    with pytest.raises(ArgumentError, match=r"join: expected also to hold what has state_dict\(\) and .*, got 3"):
        ddp.join(also=[3])


# ------------------------------------------------------------------------------------------------ other ways to train


def test_over_nccl_in_the_same_pass():
    def body(comm):
        rank = Rank(comm)
        rank.step()
        restored_on_one(rank, "scaler", lambda state: {**state, "scale": 512.0})
        message = refusal(rank.backward)
        good = Rank(comm)
        uneven(good, (1, 3), 2, also=good.all)
        return "GradScaler: scale is 256 on rank 0 and 512 on rank 1" in message, good.values()

    results = run_nccl(body, 2)
    assert alike(results) and results[0][0]


def test_replicas_of_one_process():
    models = [nn.Linear(3, 1), nn.Linear(3, 1)]
    ddp = Ddp.wrap(models, ["cpu", "cpu"])
    ddp.sync_params()
    optimizers = [optim.Adam(model.parameters(), lr=0.1) for model in models]
    scaler = optim.GradScaler(4.0)

    def step():
        for model in models:
            scaler.scale(model(minigrad.ones(2, 3)).mean()).backward()
        ddp.all_reduce_gradients()
        for optimizer in optimizers:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()

    step()
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))  # the same, loaded
    step()
    optimizers[1].param_groups[0]["lr"] = 0.2
    with pytest.raises(ReplicaMismatchError, match="Replicas: .*, got Adam: lr is 0.1 on rank 0 and 0.2 on rank 1"):
        step()


def test_replicas_of_a_graph():
    graph = FlowBuilder.from_(nn.Linear(3, 1)).build()
    graph.distribute(graph.replicate, ["cpu", "cpu"])
    graph.set_optimizer(lambda params: optim.Adam(params, lr=0.1))

    def step():
        graph(minigrad.ones(4, 3)).sum().backward()
        graph.step()

    step()
    state = graph.distributed.optimizers[1].state_dict()
    state["state"][0]["exp_avg"].data[...] = 7.0
    graph.distributed.optimizers[1].load_state_dict(copy.deepcopy(state))
    with pytest.raises(ReplicaMismatchError, match="Adam: exp_avg of .*weight is an array of fingerprint"):
        step()


def test_gradients_that_are_averaged_by_a_call():
    def body(comm):
        model = nn.Linear(3, 1)
        optimizer = optim.Adam(model.parameters(), lr=0.1)
        messages = []
        for step in range(3):
            model(minigrad.ones(2, 3)).sum().backward()
            if step < 2:
                average_gradients(model.parameters(), comm, 2)
            else:
                messages = [refusal(lambda: average_gradients(model.parameters(), comm, 2))]
            optimizer.step()
            optimizer.zero_grad()
            if step == 1 and comm.rank == 1:
                optimizer.load_state_dict(earlier(copy.deepcopy(optimizer.state_dict())))
        return messages

    for message in run(body, 2, timeout_s=TIMEOUT_S):
        assert "average_gradients: expected" in message[0] and "Adam: step of " in message[0]


def test_seeds_of_shards_that_draw_noise():
    def body(comm, p):
        minigrad.manual_seed(comm.rank)
        ddp = DDP(nn.Sequential(nn.Linear(3, 1), nn.Dropout(p)), comm)
        return ddp.backward_shards(lambda x: ddp(x).sum(), [minigrad.ones(2, 3)])

    assert alike(run(body, 2, 0.0, timeout_s=TIMEOUT_S))
    with pytest.raises(ReplicaMismatchError, match="the seed, .* noise, is 0 on rank 0 and 1 on rank 1"):
        run(body, 2, 0.5, timeout_s=TIMEOUT_S)
