"""What is changed by hand between replays: a captured step follows it, or says that it would be another step."""

import gc
import threading
import weakref

import pytest

import minigrad
from minigrad import nn, optim
from minigrad.errors import AutogradError, CaptureError, IndexRangeError
from tests.capture.models import Scaled, batch, started, state, train_step


def trained(cuda, captured, change, steps=4, scaled=False, at=2):
    """Losses and state of a training; change(model, optimizer, scaler) is called before a step, by number."""
    minigrad.manual_seed(3)
    model = Scaled(norm=True).to(cuda)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = optim.GradScaler(init_scale=2.0**10, growth_interval=3) if scaled else None
    step = started(train_step(model, optimizer, scaler), batch(cuda, 0), captured)
    losses = []
    for number in range(steps):
        if number == at:
            change(model, optimizer, scaler)
        losses.append(step(batch(cuda, number)).item())
    return losses, state(model, optimizer), None if scaler is None else scaler.state_dict()


def loaded(model, optimizer, scaler):
    scaler.load_state_dict({**scaler.state_dict(), "scale": 64.0, "_growth_tracker": 2})


def halved(model, optimizer, scaler):
    with minigrad.no_grad():
        model.first.mul_(0.5)


@pytest.mark.parametrize("change, scaled", [(loaded, True), (halved, False)])
def test_followed(cuda, change, scaled):
    expected = trained(cuda, False, change, scaled=scaled)
    assert trained(cuda, True, change, scaled=scaled) == expected
    assert trained(cuda, False, lambda *kept: None, scaled=scaled) != expected


def regrouped(model, optimizer, scaler):
    optimizer.param_groups[0] = dict(optimizer.param_groups[0])


CHANGES = {
    "growth": (lambda m, o, s: setattr(s, "growth_factor", 4.0), "GradScaler: expected growth_factor .* got 4.0"),
    "frozen": (lambda m, o, s: m.first.requires_grad_(False), "SGD: expected requires_grad of each parameter"),
    "groups": (regrouped, "SGD: expected the groups with which its step was captured"),
    "mode": (lambda m, o, s: m.eval(), "captured step: expected training of Scaled .* got False in place of True"),
    "dropout": (lambda m, o, s: setattr(m.drop, "p", 0.25), "expected p of Dropout .* got 0.25 in place of 0.5"),
    "momentum": (lambda m, o, s: setattr(m.norm, "momentum", 0.5), "expected momentum of BatchNorm1d .* got 0.5"),
    "layer": (lambda m, o, s: setattr(m, "drop", nn.Identity()), "expected drop of Scaled .* got another one"),
    "no layer": (lambda m, o, s: delattr(m, "drop"), "expected drop of Scaled .* got another one"),
    "buffer": (
        lambda m, o, s: setattr(m.norm, "running_mean", minigrad.zeros(6, device=m.first.device)),
        "expected running_mean of BatchNorm1d .* got another one",
    ),
    "parameter": (
        lambda m, o, s: setattr(m, "first", nn.Parameter(m.first.detach().clone())),
        "expected first of Scaled .* got another one",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_refused(cuda, name):
    change, words = CHANGES[name]
    with pytest.raises(CaptureError, match=words):
        trained(cuda, True, change, scaled=name == "growth", at=0)


def test_options_that_are_back_and_counters_of_users(cuda):
    """What others see of a module between steps, as in evaluation, is no change."""
    model = Scaled().to(cuda)
    model.calls = 0
    step = minigrad.capture(train_step(model, optim.SGD(model.parameters(), lr=0.1)), batch(cuda, 0), warmup=1)
    model.eval()
    model(batch(cuda, 1))
    model.train()
    model.calls, model.drop.p = 1, 1.0 / 2.0
    step(batch(cuda, 1))


def test_a_buffer_that_forward_replaces(cuda):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", minigrad.zeros((), device=cuda))

        def forward(self, x):
            self.seen = self.seen + 1.0
            return x * self.seen

    with pytest.raises(CaptureError, match="Counting: .* got another tensor as its buffer.*: write to it by copy_"):
        minigrad.capture(Counting(), batch(cuda, 0), warmup=1)


@pytest.mark.parametrize("name", ["manual_seed", "set_rng_state", "Generator.manual_seed", "Generator.load_state_dict"])
def test_random_streams_that_begin_anew(cuda, name):
    kept, generator = minigrad.get_rng_state(), minigrad.Generator()
    begin = {
        "manual_seed": lambda: minigrad.manual_seed(4),
        "set_rng_state": lambda: minigrad.set_rng_state(kept),
        "Generator.manual_seed": lambda: generator.manual_seed(4),
        "Generator.load_state_dict": lambda: generator.load_state_dict(generator.state_dict()),
    }[name]

    def step(x):
        begin()
        return nn.functional.dropout(x, 0.5)

    with pytest.raises(CaptureError, match=f"^{name}: .* got random streams that begin anew"):
        minigrad.capture(step, batch(cuda, 0), warmup=1)


def test_arguments_that_lie_in_each_other(cuda):
    run = minigrad.capture(lambda x, y: x * 2.0 + y, batch(cuda, 0), batch(cuda, 1), warmup=1)
    x, y = (place.clone() for place in run.inputs)
    assert run(*run.inputs[::-1]).tolist() == (y * 2.0 + x).tolist()
    assert run(run.inputs[1].detach()[:], run.inputs[0].flip(0)).tolist() == (x * 2.0 + y.flip(0)).tolist()


@pytest.mark.parametrize("kept", [lambda run: run.inputs[0], lambda run: run.outputs])
def test_a_graph_that_saved_what_a_replay_overwrites(cuda, kept):
    weight = batch(cuda, 5).requires_grad_()
    run = minigrad.capture(lambda x: x * 2.0, batch(cuda, 0), warmup=1)
    run(batch(cuda, 1))
    loss = (weight * kept(run)).sum()
    run(batch(cuda, 2))
    with pytest.raises(AutogradError, match="changed in place since"):
        loss.backward()


def test_who_captured_hears_of_what_another_thread_found(cuda):
    run = minigrad.capture(lambda x: nn.functional.one_hot(x, 3), minigrad.tensor([0, 2], device=cuda), warmup=1)
    minigrad.raise_all_found()
    wrong = minigrad.tensor([0, 3], device=cuda)

    other = threading.Thread(target=run, args=(wrong,))
    other.start()
    other.join()
    with pytest.raises(IndexRangeError, match="got 3"):
        minigrad.raise_all_found()


def test_a_communicator_keeps_no_step_that_is_gone(cuda):
    from tests.capture.test_ranks import inputs, on_ranks, wrapped

    def body(comm):
        model, ddp = wrapped(comm)
        step = train_step(model, optim.SGD(model.parameters(), lr=0.1), net=ddp)
        run = minigrad.capture(step, inputs(comm, 0), warmup=1)
        gone = weakref.ref(run._graph)
        run(inputs(comm, 1)).item()
        del run
        gc.collect()
        return gone() is None and not comm._launches._graphs

    assert on_ranks(cuda, body) == [True, True]


def test_hooks_go_on_to_count_and_measure(cuda):
    from minigrad.distributed import CompressionState, NoiseMeter, bf16_compress_hook, noise_hook
    from tests.capture.test_ranks import inputs, on_ranks, wrapped

    def run(captured, state, hook):
        def body(comm):
            model, ddp = wrapped(comm, norm=False)
            kept = state()
            ddp.register_comm_hook(kept, hook)
            step = train_step(model, optim.SGD(model.parameters(), lr=0.1), net=ddp)
            step = started(step, inputs(comm, 0), captured)
            for number in range(2):
                step(inputs(comm, number))
                if number == 0:
                    kept.reset()
            if hook is noise_hook:
                return repr(kept.estimate())
            return kept.calls, kept.bytes_sent, kept.bytes_before

        return on_ranks(cuda, body)

    for case in [(NoiseMeter, noise_hook), (lambda: CompressionState(measure_error=False), bf16_compress_hook)]:
        assert run(True, *case) == run(False, *case)
