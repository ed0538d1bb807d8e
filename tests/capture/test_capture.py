"""A captured step has the bits of one that is not, whatever changes from step to step, and is one launch."""

import gc
import weakref

import pytest

import minigrad
from minigrad import nn, optim
from minigrad.backend.stream import streams_of
from minigrad.errors import ArgumentError, CaptureError, DeviceError, DtypeError, ShapeError
from minigrad.utils.checkpoint import checkpoint
from tests.capture.models import OPTIMIZERS, Scaled, batch, orders, started, state, train, train_step
from tests.strict_cupy import counted, machine


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_captured_steps_have_the_bits_of_others(cuda, make):
    """With a schedule of rates and dropout; one of them in any order that a machine may run its streams in."""
    expected = train(cuda, False, make)
    for order in orders([0, 1, 2] if make == "adam" else []):
        with order:
            assert train(cuda, True, make) == expected


MORE = [{"norm": True}, {"max_norm": 0.1}, {"scaled": True}, {"scaled": True, "max_norm": 0.1}]


@pytest.mark.parametrize("options", MORE, ids=str)
def test_running_statistics_clipping_and_loss_scales(cuda, options):
    assert train(cuda, True, **options) == train(cuda, False, **options)


def test_a_step_is_one_launch(cuda, strict_cupy):
    """Beside it a copy of each argument, unless it is there already, and a rate that was changed."""
    model = Scaled().to(cuda)
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    step = minigrad.capture(train_step(model, optimizer), batch(cuda, 0))
    for lr, x, pieces in [
        (0.1, batch(cuda, 1), {"graph": 1, "setitem": 1}),
        (0.1, step.inputs[0], {"graph": 1}),
        (0.2, step.inputs[0], {"graph": 1, "setitem": 1}),
        (0.2, step.inputs[0], {"graph": 1}),
    ]:
        optimizer.param_groups[0]["lr"] = lr
        with counted() as work, strict_cupy.no_sync():
            step(x)
        assert (dict(work.pieces), work.uploads) == (pieces, 0)


def test_a_number_that_is_baked_in_would_be_noticed(cuda, monkeypatch):
    """Without the clock of the optimizer, or the place of the noise, on the device."""
    from minigrad.backend.fused import dropout
    from minigrad.optim import optimizer

    expected = train(cuda, False)
    with monkeypatch.context() as patched:
        patched.setattr(optimizer, "updates_in_capture", lambda *args: None)
        assert train(cuda, True) != expected
    monkeypatch.setattr(dropout, "move_live", lambda live, words: None)
    assert train(cuda, True) != expected


def meddle(number, model, optimizer):
    """What others do between steps: draw, seed anew, save and load, look at gradients."""
    if number == 1:
        minigrad.nn.functional.dropout(model.second, 0.3)
    if number == 2:
        minigrad.manual_seed(8)
    if number == 3:
        optimizer.load_state_dict(optimizer.state_dict())
    if number == 4:
        minigrad.set_rng_state(minigrad.get_rng_state())
        optimizer.zero_grad()
    if number == 5:
        saved = optimizer.state_dict()
        for entry in saved["state"].values():
            entry["step"] = 40
        optimizer.load_state_dict(saved)


def test_what_others_do_between_steps_is_seen(cuda):
    assert train(cuda, True, between=meddle) == train(cuda, False, between=meddle)
    assert train(cuda, False, between=meddle) != train(cuda, False)


def test_a_gradient_that_was_kept_keeps_its_numbers(cuda):
    model = Scaled().to(cuda)
    step = minigrad.capture(train_step(model, optim.SGD(model.parameters(), lr=0.1)), batch(cuda, 0))
    step(batch(cuda, 1))
    kept = model.first.grad
    before = kept.tolist()
    step(batch(cuda, 2))
    assert kept.tolist() == before != model.first.grad.tolist()


def test_a_graph_of_before_is_told_that_parameters_have_changed(cuda):
    model = Scaled().to(cuda)
    step = minigrad.capture(train_step(model, optim.SGD(model.parameters(), lr=0.1)), batch(cuda, 0))
    loss = model(batch(cuda, 1)).sum()
    step(batch(cuda, 2))
    with pytest.raises(minigrad.errors.AutogradError, match="changed in place since"):
        loss.backward()


def test_a_checkpoint_draws_its_noise_again(cuda):
    def run(captured):
        minigrad.manual_seed(1)
        model = Scaled().to(cuda)
        optimizer = optim.Adam(model.parameters(), lr=0.1)
        again = train_step(model, optimizer, net=lambda x: checkpoint(model, nn.functional.dropout(x, 0.2)))
        step = started(again, batch(cuda, 0), captured)
        return [step(batch(cuda, number)).item() for number in range(4)], state(model, optimizer)

    assert run(True) == run(False)


def test_outputs_are_overwritten_and_nested(cuda):
    def step(x, y):
        return {"sum": x + y, "pair": (x * y, None)}

    x, y = batch(cuda, 0), batch(cuda, 1)
    run = minigrad.capture(step, x, y)
    first = run(x, y)
    kept = first["sum"].clone()
    second = run(y, y)
    assert first is second and second["pair"][1] is None
    assert second["sum"].tolist() == (y + y).tolist() and kept.tolist() == (x + y).tolist()


def test_a_step_is_timed(cuda):
    with machine(0):
        run = minigrad.capture(lambda x: x * 2.0, batch(cuda, 0))
        run(batch(cuda, 1))
        streams_of(cuda).get_current_stream().synchronize()
        times = run.times_s()
        assert len(times) == 2 and all(time_s > 0.0 for time_s in times) and run.times_s() == []


# ------------------------------------------------------------------------------------------------- what is refused


def backward_of_before(model, x):
    loss = model(x).sum()
    return lambda y: loss.backward()


REFUSED = {
    "item": (lambda model, x: lambda y: model(y).mean().item(), r"item: .* got a read of float32 \(\) on the host in"),
    "tolist": (lambda model, x: lambda y: model(y).tolist(), "tolist: .* got a read of"),
    "bool": (lambda model, x: lambda y: y if (y > 0).all() else -y, "item: .* got a read of bool"),
    "cpu": (lambda model, x: lambda y: y.cpu(), "got a read of float32 .4, 6. on the host"),
    "upload": (lambda model, x: lambda y: y + minigrad.tensor([1.0] * 6, device=y.device), "got a copy of"),
    "another device": (lambda model, x: lambda y: y.to("cuda:0"), "got a copy of float32 .4, 6. to cuda:0"),
    "noise of the host": (lambda model, x: lambda y: y + minigrad.randn(6, device=y.device), "got a copy of"),
    "channels": (lambda model, x: lambda y: nn.functional.dropout2d(y[None, None]), "dropout2d: .* got a copy of bool"),
    "wait": (lambda model, x: lambda y: minigrad.cuda.synchronize(y.device), "Device.synchronize: expected no wait"),
    "nested": (lambda model, x: lambda y: minigrad.capture(lambda z: z * 2.0, y), "capture: .* got another capture"),
    "captured inside": (
        lambda model, x: (lambda run: lambda y: run(y))(minigrad.capture(lambda z: z * 2.0, x)),
        "captured step: .* got a captured step in it",
    ),
    "backward outside": (backward_of_before, "backward: .* got one of what was recorded before the step"),
    "a number returned": (lambda model, x: lambda y: 3.0, "expected the function to return tensors on cuda:1, got"),
    "a tensor of the host returned": (lambda model, x: lambda y: minigrad.ones(2), "got a tensor on cpu: it would be"),
}


def trained(model, loss=lambda model, y: model(y).mean(), zero=True, optimizer=None, after=None):
    optimizer = optimizer or optim.SGD(model.parameters(), lr=0.1)

    def step(y):
        if zero:
            optimizer.zero_grad()
        loss(model, y).backward()
        optimizer.step()
        if after is not None:
            after()

    return step


REFUSED_TRAINING = {
    "no zero_grad": (lambda model: trained(model, zero=False), "backward: .* got a gradient of .* from before"),
    "another optimizer": (
        lambda model: trained(model, optimizer=optim.RMSprop(model.parameters(), lr=0.1)),
        "RMSprop.step: .* got one whose number and rate the host gives to the device in line",
    ),
    "a schedule": (
        lambda model: (
            lambda optimizer: trained(
                model, optimizer=optimizer, after=optim.lr_scheduler.StepLR(optimizer, 3).step
            )
        )(optim.SGD(model.parameters(), lr=0.1)),
        "StepLR.step: .* got a rate that the host sets",
    ),
    "clip that looks": (
        lambda model: trained(
            model, after=lambda: optim.clip_grad_norm_([model.second], 1.0, error_if_nonfinite=True)
        ),
        "captured step: expected work that CuPy can capture, got",
    ),
    "a loss that is read": (
        lambda model: trained(model, after=lambda: model.second.sum().item()),
        "item: .* got a read of float32",
    ),
}


@pytest.mark.parametrize("name", [*REFUSED, *REFUSED_TRAINING])
def test_what_is_refused_and_that_training_goes_on(cuda, strict_cupy, name):
    """The warm-up may do it; the capture names it; nothing is captured any more, and what came before is done."""
    model, x = Scaled(p=0.0).to(cuda), batch(cuda, 0)
    if name in REFUSED:
        make, words = REFUSED[name]
        function = make(model, x)
        calls = []

        def step(y):  # what can be done once alone, or only outside of a capture
            calls.append(y)
            y.detach().requires_grad_().sum().backward()
            return function(y) if len(calls) > 1 or name in ("item", "bool") else None
    else:
        make, words = REFUSED_TRAINING[name]
        step = make(model)
        if name == "no zero_grad":
            trained(model)(x)
    with pytest.raises(CaptureError, match=words):
        minigrad.capture(step, x, warmup=1)
    assert not strict_cupy.cuda.get_current_stream().is_capturing()
    model.zero_grad()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    run = minigrad.capture(train_step(model, optimizer), x, warmup=1)
    assert run(x).item() > run(x).item() > 0.0


def test_what_was_done_before_a_refusal_is_done(cuda):
    """As in a run that is not captured and raises there."""

    def run(captured):
        minigrad.manual_seed(5)
        model = Scaled().to(cuda)
        optimizer = optim.Adam(model.parameters(), lr=0.1)
        inner = train_step(model, optimizer)
        for _ in range(1 if captured else 2):
            inner(batch(cuda, 0))

        def step(x):
            inner(x)
            step.calls += 1
            if step.calls == 2:
                x.sum().item() if captured else None

        step.calls = 0
        if captured:
            with pytest.raises(CaptureError):
                minigrad.capture(step, batch(cuda, 0), warmup=1)
        else:
            step(batch(cuda, 0))
        return state(model, optimizer)

    assert run(True) == run(False)


def test_errors_of_the_function_itself_go_through(cuda):
    def step(x):
        if minigrad.cuda.graphs.is_capturing():
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        minigrad.capture(step, batch(cuda, 0))
    assert not minigrad.cuda.graphs.is_capturing()


def test_where_it_can_not_be_captured(cuda):
    x = batch(cuda, 0)
    with pytest.raises(DeviceError, match="capture: expected tensors on one GPU, got tensors on cpu: CUDA has graphs"):
        minigrad.capture(lambda x: x, minigrad.ones(3))
    with pytest.raises(DeviceError, match="got tensors on cpu, cuda:1: write .to"):
        minigrad.capture(lambda x, y: x, x, minigrad.ones(3))
    with pytest.raises(ArgumentError, match="capture: expected tensors as arguments, got none"):
        minigrad.capture(lambda: None)
    with pytest.raises(ArgumentError, match="expected a function"):
        minigrad.capture(3, x)
    with pytest.raises(ArgumentError, match="warmup"):
        minigrad.capture(lambda x: x, x, warmup=0)
    with pytest.raises(DtypeError, match="expected tensors as arguments, got"):
        minigrad.capture(lambda x: x, 3.0)
    with pytest.raises(ArgumentError, match="requires_grad=True"):
        minigrad.capture(lambda x: x, batch(cuda, 0).requires_grad_())


def test_arguments_are_checked_and_options_that_would_be_others(cuda):
    model, x = Scaled().to(cuda), batch(cuda, 0)
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    run = minigrad.capture(train_step(model, optimizer), x)
    before = state(model, optimizer)
    with pytest.raises(ShapeError, match=r"argument 0 of shape \(4, 6\) as when captured, got \(3, 6\): capture"):
        run(x[:3])
    with pytest.raises(DtypeError, match="argument 0 of float32, got float64"):
        run(x.double())
    with pytest.raises(DeviceError, match="captured step: expected tensors on one GPU, got tensors on cpu"):
        run(x.cpu())
    with pytest.raises(DeviceError, match="expected tensors on cuda:1, got some on cuda:0"):
        run(x.to("cuda:0"))
    with pytest.raises(ArgumentError, match="expected 1 arguments as when captured, got 2"):
        run(x, x)
    optimizer.param_groups[0]["weight_decay"] = 0.5
    with pytest.raises(CaptureError, match="AdamW: expected options .* got weight_decay 0.5 in place of 0.01: only lr"):
        run(x)
    optimizer.param_groups[0]["weight_decay"] = 0.01
    assert state(model, optimizer) == before
    run(x)


def test_it_frees_what_it_had(cuda, strict_cupy):
    model = Scaled().to(cuda)
    run = minigrad.capture(train_step(model, optim.Adam(model.parameters(), lr=0.1)), batch(cuda, 0))
    run(batch(cuda, 1))
    gone = weakref.ref(run._graph)
    del run
    gc.collect()
    assert gone() is None
