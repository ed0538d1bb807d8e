"""A timeline of what is combined outside of DDP: averages, replicas, runs; and that without one nothing of it runs."""

import json
import sys

import pytest

import minigrad
from minigrad import FlowBuilder, nn, optim
from minigrad.autograd.recompute import checkpoint
from minigrad.data import DataLoader, TensorDataset
from minigrad.backend.stream import streams_of
from minigrad.distributed import DDP, Ddp, DdpConfig, NcclDevices, SoloCommunicator, run, simulate
from minigrad.distributed.average import Async, EveryK, ParameterAverager, StreamingDiLoCo
from minigrad.distributed.record.modules import listen_forward
from minigrad.distributed.record.timeline import Timeline
from minigrad.distributed.simulate import Cluster, Link, RankCost, SimulatedDevices
from minigrad.train import DistributedTrainer, SingleDeviceTrainer
from tests.distributed.fake_nccl import FakeNccl
from tests.distributed.trace_rules import broken_rules
from tests.strict_cupy import machine
from tests.strict_cupy.device import current_id

TIMEOUT_S = 10.0
STEPS, ROWS, BYTES = 6, 60, 2 * 16 * 16 * 4
SPEEDS = (1e-3, 1.7e-3)
LINK = Link(0.0, BYTES / 5e-3)  # the parameters take 5 ms


def cluster():
    return Cluster(tuple(RankCost(per_sample_s=each) for each in SPEEDS), LINK)


def layers():
    return nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False))


def train(comm, timeline, **options):
    """Steps of 60 rows, of which the averager combines some."""
    model = layers()
    averager = ParameterAverager(model, comm, timeline=timeline, **options)
    optimizer = optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        with timeline.span("data"):
            batch = minigrad.randn(ROWS, 16)
        model(batch).square().mean().backward()
        with timeline.span("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        averager.step(ROWS)
    averager.finish()


# --------------------------------------------------------------------------------------------------- averages


@pytest.mark.parametrize("options", [
    {"policy": EveryK(2)},
    {"policy": EveryK(4), "outer": StreamingDiLoCo(0.5, 0.9, fragments=2, delay=1, alpha=0.5)},
    {"policy": Async(bound=1)},
])  # fmt: skip
def test_an_averager_says_what_the_trace_says(options):
    timeline = Timeline()
    trace = simulate.run(lambda comm: train(comm, timeline, **options), cluster())
    for rank, own in enumerate(timeline.summary().ranks):
        steps = trace.ranks[rank].steps
        whole = ("hidden_s",) if options["policy"] == EveryK(2) else ()  # a trace takes each step for itself
        for name in ("idle_s", "exposed_s", *whole):
            assert getattr(own, name) == pytest.approx(sum(getattr(step, name) for step in steps), abs=1e-12)
        seconds = ROWS * SPEEDS[rank]
        assert own.steps == STEPS and own.forward_s == pytest.approx(STEPS * seconds / 3)
        assert own.backward_s == pytest.approx(STEPS * seconds * 2 / 3)
        assert own.bytes_sent == sum(step.sent_bytes for step in steps)
        decided = [event.fields["number"] for event in timeline.events if (event.rank, event.kind) == (rank, "average")]
        assert decided == [each["number"] for each in trace.ranks[rank].decisions]


def test_messages_of_asynchronous_averages_have_ends(tmp_path):
    timeline = Timeline()
    simulate.run(lambda comm: train(comm, timeline, policy=Async(bound=1)), cluster())
    sent = [(e.rank, e.fields["peer"], e.fields["nbytes"]) for e in timeline.events if e.kind == "sent"]
    taken = [span for span in timeline.spans if span.fields.get("collective") == "recv"]
    got = [(span.fields["peer"], span.rank, span.fields["nbytes"]) for span in taken]
    assert sorted(sent) == sorted(got) and len({peer for _, peer, _ in sent}) == 2
    timeline.to_chakra(tmp_path)  # which has them by their ends


def test_two_steps_and_their_combination_by_hand():
    """Rank 0 computes 60 ms a step and rank 1 102 ms: twice the 42 ms between them it waits, then for 5 ms of wire."""
    timeline = Timeline()
    simulate.run(lambda comm: train(comm, timeline, policy=EveryK(2)), cluster())
    first = [span for span in timeline.spans if span.rank == 0 and span.step < 2]
    zero_s = first[0].began_s
    assert first[0].kind == "forward" and [span.kind for span in first].count("optimizer") == 2
    idle, wire = ([s for s in first if s.kind == kind] for kind in ("idle", "wire"))
    assert [(s.step, round(s.began_s - zero_s, 6), round(s.ended_s - zero_s, 6)) for s in idle] == [(1, 0.12, 0.204)]
    assert [round(s.seconds / 5e-3, 3) for s in wire] == [0.008, 1.0]  # two float64, then 512 float32
    leaves = [(s.name, round(s.seconds, 6)) for s in first if s.kind == "backward"]
    assert leaves == 2 * [("local", 0.04), ("1.weight", 0.02), ("0.weight", 0.02)]
    passes = [span for span in first if span.kind == "pass"]
    assert len(passes) == 1 and passes[0].fields["idle_s"] == pytest.approx(0.084)
    assert (passes[0].fields["bytes_sent"], passes[0].fields["calls"]) == (BYTES + 16 + 32, 3)


def test_an_averager_on_threads(tmp_path):
    timeline = Timeline()
    run(lambda comm: train(comm, timeline, policy=EveryK(2)), 2, timeout_s=TIMEOUT_S)
    for rank, own in enumerate(timeline.summary().ranks):
        assert own.steps == STEPS and own.forward_s > 0.0 and own.backward_s > 0.0
        spans = [span for span in timeline.spans if span.rank == rank]
        assert all(span.ended_s >= span.began_s for span in spans)
        assert [span.kind for span in spans].count("pass") == STEPS // 2 + 1
    assert len(timeline._tracks[0].meetings) == len(timeline._tracks[1].meetings) > 0
    timeline.to_perfetto(tmp_path / "run.json")
    assert broken_rules(json.loads((tmp_path / "run.json").read_text())) == []


def test_a_wrapper_with_the_same_timeline_is_noted_once():
    timeline = Timeline()

    def body(comm):
        ddp = DDP(layers(), comm, timeline=timeline)
        averager = ParameterAverager(ddp, comm, EveryK(2), timeline=timeline)
        for _ in range(2):
            with ddp.no_sync():
                ddp(minigrad.randn(4, 16)).square().mean().backward()
            ddp.zero_grad()
            averager.step(4)

    run(body, 2, timeout_s=TIMEOUT_S)
    kinds = [span.kind for span in timeline.spans if span.rank == 1 and span.name in ("Sequential", "local")]
    assert kinds == ["forward", "backward"] * 2


def test_what_is_computed_again_in_backward_is_no_forward():
    track, model = Timeline().at(SoloCommunicator()), layers()
    listen_forward(track, model, 1, None)
    checkpoint(model, minigrad.randn(4, 16)).sum().backward()
    assert sorted(span.name for span in track.read()[0]) == ["0", "1", "Sequential"]


def test_without_a_timeline_an_averager_calls_and_keeps_nothing_of_it():
    def body(comm):
        model = layers()
        averager = ParameterAverager(model, comm, EveryK(2))
        assert averager._by is comm and all(param.listeners == () for param in model.parameters())
        assert all(not each._forward_hooks and not each._forward_pre_hooks for each in model.modules())
        entered = []
        before = sys.getprofile()
        sys.setprofile(lambda frame, event, argument: entered.append(frame.f_code.co_filename))
        for _ in range(2):
            model(minigrad.randn(4, 16)).square().mean().backward()
            averager.step(4)
        sys.setprofile(before)
        return {file for file in entered if "/record/" in file}

    assert all(found <= {file for file in found if file.endswith("fingerprint.py")} for found in run(body, 2))


# --------------------------------------------------------------------------------------------------- replicas


def test_replicas_of_one_process_have_a_track_each():
    timeline = Timeline()
    models = [layers(), layers()]
    caps = {"bucket_cap_bytes": BYTES // 2, "first_bucket_bytes": BYTES // 2}
    replicas = Ddp.wrap(models, ["cpu", "cpu"], **caps, timeline=timeline)
    replicas.sync_params()
    for _ in range(3):
        for model, rows in zip(models, (3, 5)):
            model(minigrad.randn(rows, 16)).square().mean().backward()
        replicas.weighted_all_reduce_gradients([3, 5])
        for model in models:
            model.zero_grad()
    for rank, own in enumerate(timeline.summary().ranks):
        assert (own.steps, own.calls, own.bytes_sent) == (3, 6, 3 * replicas.last_bytes)
        here = [span for span in timeline.spans if (span.rank, span.step) == (rank, 1)]
        assert [span.name for span in here if span.kind == "backward"] == ["local", "1.weight", "0.weight"]
        assert {span.name for span in here if span.kind == "forward"} == {"Sequential", "0", "1"}
        wire, weighted = ([s.name for s in here if s.kind == kind] for kind in ("wire", "weighted"))
        assert wire == weighted == ["bucket 0", "bucket 1"]
        assert own.exposed_s == sum(s.seconds for s in timeline.spans if (s.rank, s.kind) == (rank, "exposed"))


def test_what_simulated_replicas_compute_by_hand_is_over_before_they_combine():
    """6 ms and 18 ms: the first waits 12 ms, and nothing of its backward is in what combining takes."""
    timeline, models = Timeline(), [layers(), layers()]
    devices = SimulatedDevices(Cluster((RankCost(per_sample_s=1e-3), RankCost(per_sample_s=3e-3)), LINK))
    replicas = Ddp.wrap(models, ["cpu", "cpu"], collectives=devices, timeline=timeline)
    for clock, model in zip(devices.clocks, models):
        clock.compute(6)
        model(minigrad.randn(6, 16)).square().mean().backward()
    replicas.weighted_all_reduce_gradients([6, 6])
    one, other = ([s for s in timeline.spans if (s.rank, s.kind) == (rank, "pass")][-1] for rank in (0, 1))
    assert (one.seconds, other.seconds) == (pytest.approx(0.012 + 5e-3), pytest.approx(5e-3))
    assert [span.seconds for span in timeline.spans if span.kind == "weighted"] == [0.0] * 2


def graph_on(devices, config, el_che=False, steps=4):
    graph = FlowBuilder.from_(nn.Linear(3, 4)).through(nn.Linear(4, 1)).build()
    graph.distribute(graph.replicate, devices, config=config, el_che=el_che)
    graph.set_optimizer(lambda params: optim.SGD(params, lr=0.1))
    graph.set_loss_fn(lambda model, batch: model(batch[0]).square().mean())
    graph.set_data_loader(DataLoader(TensorDataset(minigrad.randn(20 * steps, 3)), 20))
    for batch in graph.epoch(0):
        graph.backward_batch(batch)
        graph.step()
    return graph


@pytest.mark.parametrize("el_che", [False, True])
def test_a_graph_says_what_its_simulated_devices_say(el_che, tmp_path):
    timeline = Timeline()
    devices = SimulatedDevices(Cluster.of_speeds([3, 1], link=Link(1e-4, 1e5)))
    graph_on(devices, DdpConfig(timeline=timeline, max_anchor=1 if el_che else None), el_che)
    for own, rank in zip(timeline.summary().ranks, devices.trace.ranks):
        computed_s, idle_s, exposed_s = (
            sum(getattr(step, name) for step in rank.steps) for name in ("compute_s", "idle_s", "exposed_s")
        )
        kinds = ("compute",) if el_che else ("forward", "backward")
        assert sum(own.seconds[kind] for kind in kinds) == pytest.approx(computed_s)
        assert (own.idle_s, own.exposed_s) == (pytest.approx(idle_s, abs=1e-12), pytest.approx(exposed_s))
        assert own.bytes_sent == sum(step.sent_bytes for step in rank.steps) > 0
        assert own.steps == len(rank.steps) or el_che  # one of El Che's is not one of a simulation's
    assert {event.kind for event in timeline.events} >= {"reduction", "step"}
    assert {event.at_s < 10.0 for event in timeline.events} == {True}  # virtual time
    timeline.to_perfetto(tmp_path / "run.json")
    assert broken_rules(json.loads((tmp_path / "run.json").read_text())) == []


def test_a_graph_on_this_machine():
    timeline = Timeline()
    graph_on(["cpu", "cpu"], DdpConfig(timeline=timeline))
    spans = [span for span in timeline.spans if (span.rank, span.step) == (0, 2)]
    order = [span.kind for span in spans if span.kind in ("data", "forward", "backward", "pass", "optimizer")]
    assert order == ["data", "forward", "backward", "pass", "optimizer"]


def test_replicas_and_graphs_without_a_timeline_keep_nothing_of_it():
    models = [layers(), layers()]
    replicas = Ddp.wrap(models, ["cpu", "cpu"])
    assert replicas.notes is None and all(param.listeners == () for model in models for param in model.parameters())
    graph = graph_on(["cpu", "cpu"], DdpConfig(), steps=1)
    entered = []
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: entered.append(frame.f_code.co_filename))
    graph(minigrad.randn(4, 3)).square().mean().backward()
    graph.step()
    sys.setprofile(before)
    assert {file for file in entered if "/record/" in file or file.endswith("replicas/notes.py")} == set()


@pytest.mark.parametrize("place", [0, 1])
def test_on_two_devices_replicas_have_their_own_time(place, strict_cupy):
    timeline = Timeline(depth=0)
    with machine(place):
        devices = ["cuda:0", "cuda:1"]
        models = [nn.Linear(4, 4).to(device) for device in devices]
        collectives = NcclDevices(devices, nccl=FakeNccl(current_device=current_id))
        replicas = Ddp.wrap(models, devices, collectives=collectives, timeline=timeline)
        for _ in range(2):
            for device, model in zip(devices, models):
                with minigrad.Device(device).current():
                    model(minigrad.ones(2, 4, device=device)).sum().backward()
            with strict_cupy.no_sync():
                replicas.all_reduce_gradients()
        for device in devices:
            with minigrad.Device(device).current():
                strict_cupy.cuda.get_current_stream().synchronize()
        spans = timeline.spans
    for rank in (0, 1):
        own = [span for span in spans if span.rank == rank]
        assert [span.kind for span in own].count("wire") == 2 and all(span.seconds >= 0.0 for span in own)


# ------------------------------------------------------------------------------------------------------- loops


def test_the_loop_of_a_rank_notes_data_and_optimizer_too():
    timeline = Timeline()

    def body(comm):
        model = layers()
        single = SingleDeviceTrainer(model, optim.SGD(model.parameters(), lr=0.1), lambda m, x: m(x).square().mean())
        trainer = DistributedTrainer(single, comm, timeline=timeline)
        trainer.train_epoch([minigrad.randn(4, 16) for _ in range(3)])
        return trainer.ddp.stats()

    stats = run(body, 2, timeout_s=TIMEOUT_S)
    for rank, own in enumerate(timeline.summary().ranks):
        assert (own.idle_s, own.exposed_s, own.calls) == (stats[rank].idle_s, stats[rank].exposed_s, stats[rank].calls)
        kinds = [s.kind for s in timeline.spans if s.rank == rank and s.kind in ("data", "pass", "optimizer")]
        assert kinds == ["data", "pass", "optimizer"] * 3 + ["data", "pass"]  # the last asks for a batch, and ends all


def test_an_averager_on_a_device_has_its_time_and_waits_for_nothing(cuda, strict_cupy):
    timeline = Timeline(depth=0)
    with machine(1):
        model = nn.Linear(4, 4).to(cuda)
        averager = ParameterAverager(model, SoloCommunicator(cuda), EveryK(2), timeline=timeline)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        x = minigrad.ones(2, 4, device=cuda)
        for _ in range(4):
            with strict_cupy.no_sync():
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                averager.step(2)
        streams_of(cuda).get_current_stream().synchronize()
        spans = timeline.spans
    assert [span.kind for span in spans].count("pass") == 2 and {span.step for span in spans} == set(range(4))
    leaves = [span for span in spans if span.kind == "backward" and span.name == "weight"]
    assert len(leaves) == 4 and all(span.seconds > 0.0 for span in leaves)
    assert all(span.seconds >= 0.0 for span in spans if span.kind in ("wire", "exposed"))
