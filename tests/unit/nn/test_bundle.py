"""A training state in one file: what comes back, what is refused, and that the old file stays whole."""

import contextlib
import json
from contextvars import copy_context

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.backend.random import set_noise_key
from minigrad.data import ArrayDataset, DataLoader, IterableDataset, RandomSampler
from minigrad.errors import ArgumentError, AutogradError, DtypeError, StateDictError
from minigrad.nn import bundle
from minigrad.train import FlowBuilder
from tests.disk import Disk, Killed

X = np.random.default_rng(0).standard_normal((10, 3)).astype(np.float32)


class Counter:
    """An object of the user's own."""

    def __init__(self, count=0):
        self.count = count

    def state_dict(self):
        return {"count": self.count, "history": [(1, None), {2: "two"}], "mean": minigrad.tensor([1.5])}

    def load_state_dict(self, state):
        assert state["history"] == [(1, None), {2: "two"}] and state["mean"].tolist() == [1.5]
        self.count = state["count"]


def parts(width=4, seed=0):
    """What one trains with, after a step."""
    minigrad.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 1))
    optimizer = optim.Adam(model.parameters(), lr=0.1)
    found = {"model": model, "optimizer": optimizer, "schedule": optim.LRScheduler(optimizer, optim.StepDecay(2))}
    found |= {"scaler": optim.GradScaler(8.0), "average": optim.swa_utils.AveragedModel(model)}
    found["loader"] = DataLoader(ArrayDataset(X), batch_size=4, shuffle=True)
    step(found)
    return found


def step(found):
    found["optimizer"].zero_grad()
    found["scaler"].scale(found["model"](minigrad.randn(5, 3)).square().mean()).backward()
    found["scaler"].step(found["optimizer"])
    found["scaler"].update()
    found["schedule"].step()
    found["average"].update_parameters(found["model"])


def said(found):
    """All that is in a training state, in words."""
    states = {name: thing.state_dict() for name, thing in found.items()}
    return repr((states, minigrad.get_rng_state()))


def test_a_training_state_comes_back(tmp_path):
    mine, other = parts(), parts(seed=1)
    minigrad.manual_seed(5)
    minigrad.rand(3)
    minigrad.save({**mine, "step": 7, "best": (0.5, None)}, tmp_path / "run")
    expected = said(mine)
    step(mine)
    back = minigrad.load(tmp_path / "run", into=other)
    assert said(other) == expected
    assert back["step"] == 7 and back["best"] == (0.5, None) and back["model"] is other["model"]
    assert list(back) == [*mine, "step", "best"]
    step(other)
    minigrad.load(tmp_path / "run", into=mine)
    step(mine)
    assert said(mine) == said(other)


def test_objects_lie_where_they_like(tmp_path):
    nets = [nn.Linear(1, 1), nn.Linear(1, 1)]
    minigrad.save({"nets": nets, 3: {"own": Counter(4)}, "w": minigrad.ones(2)}, tmp_path / "run")
    fresh, counter = [nn.Linear(1, 1), nn.Linear(1, 1)], Counter()
    back = minigrad.load(tmp_path / "run", into={"nets": fresh, 3: {"own": counter}})
    assert counter.count == 4 and back["nets"] == fresh and back["w"].tolist() == [1, 1]
    assert [net.weight.item() for net in fresh] == [net.weight.item() for net in nets]


def test_a_generator_of_ones_own(tmp_path):
    rng, other = minigrad.Generator().manual_seed(3), minigrad.Generator()
    rng.standard_normal(5)
    minigrad.save({"rng": rng}, tmp_path / "run")
    minigrad.load(tmp_path / "run", into={"rng": other})
    assert other.standard_normal(3).tolist() == rng.standard_normal(3).tolist()
    for wrong in ({}, {"bit_generator": "Philox"}, 3, {**rng.state_dict(), "state": {"counter": [1], "key": [2]}}):
        before = other.state_dict()
        with pytest.raises(StateDictError, match="Generator: expected what state_dict returned, got"):
            other.load_state_dict(wrong)
        assert other.state_dict() == before


@pytest.mark.parametrize("names", [("loader", "dataset", "sampler"), ("sampler", "dataset", "loader")])
@pytest.mark.parametrize("kind", ["stream", "map"])
def test_a_loader_goes_on_where_it_was_also_beside_what_it_reads(tmp_path, kind, names):
    """The dataset is ahead of it, by what was made ahead, and the sampler is in the next epoch."""

    class Numbers(IterableDataset):
        place = 0

        def __iter__(self):
            while self.place < 9:
                self.place += 1
                yield self.place
            self.place = 0

        def state_dict(self):
            return {"place": self.place}

        def load_state_dict(self, state):
            self.place = state["place"]

    def made(seed):
        if kind == "stream":
            dataset = Numbers()
            return {"loader": DataLoader(dataset, 2, prefetch=3), "dataset": dataset}
        sampler = RandomSampler(10, seed=seed)
        return {"loader": DataLoader(ArrayDataset(X), 3, sampler=sampler), "sampler": sampler}

    mine, fresh = made(1), made(2)
    batches = iter(mine["loader"])
    next(batches)
    minigrad.save({name: mine[name] for name in names if name in mine}, tmp_path / "run")
    minigrad.load(tmp_path / "run", into=fresh)
    assert repr(list(fresh["loader"])) == repr(list(batches))
    assert repr(list(fresh["loader"])) == repr(list(mine["loader"]))


@pytest.mark.parametrize("fits", [True, False])
def test_rates_that_a_schedule_did_not_set_stay(tmp_path, fits):
    """Those of one that is over, and was followed by a plateau; also where a load fails in the end."""

    def made():
        optimizer = optim.SGD([nn.Parameter(np.ones(2))], lr=1.0)
        warmup = optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
        return {"optimizer": optimizer, "warmup": warmup, "last": Counter() if fits else Refusing()}

    class Refusing(Counter):
        def load_state_dict(self, state):
            raise KeyError("gone")

    Refusing.__name__ = "Counter"
    mine, fresh = made(), made()
    (mine if fits else fresh)["optimizer"].param_groups[0]["lr"] = 0.3  # as ReduceLROnPlateau changes it
    minigrad.save(mine, tmp_path / "run")
    with contextlib.nullcontext() if fits else pytest.raises(KeyError):
        minigrad.load(tmp_path / "run", into=fresh)
    assert fresh["optimizer"].param_groups[0]["lr"] == 0.3


def test_what_evaluates_and_what_is_frozen_comes_back(tmp_path):
    mine, fresh = parts(), parts(seed=1)
    mine["model"][1].eval()
    mine["model"][0].bias.requires_grad = False
    minigrad.save(mine, tmp_path / "run")

    def modes(model):
        return [m.training for m in model.modules()], [p.requires_grad for p in model.parameters()]

    assert modes(mine["model"]) != modes(fresh["model"])
    minigrad.load(tmp_path / "run", into=fresh)
    assert modes(mine["model"]) == modes(fresh["model"])
    before = modes(fresh["model"].train().requires_grad_())
    with pytest.raises(StateDictError):
        minigrad.load(tmp_path / "run", into={**fresh, "loader": DataLoader(ArrayDataset(X), batch_size=5)})
    assert modes(fresh["model"]) == before


def test_so_it_does_in_each_replica_of_a_graph(tmp_path):
    def made():
        graph = FlowBuilder.from_(nn.Linear(3, 4)).tag("hidden").through(nn.Dropout(0.5)).build()
        graph.distribute(graph.replicate, ["cpu", "cpu"])
        return graph

    mine, fresh = made(), made()
    mine.eval()
    mine.freeze("hidden")
    minigrad.save({"graph": mine}, tmp_path / "run")
    minigrad.load(tmp_path / "run", into={"graph": fresh})
    assert len(fresh.replicas) == 2 and not any(m.training for each in fresh.replicas for m in each.modules())
    assert not any(p.requires_grad for each in fresh.replicas for p in each.parameters())


def test_noise_goes_on_as_the_rank_that_saved_drew_it(tmp_path):
    """Also where this context counts as another one, as that of a communicator made by hand may."""

    class Noisy:
        def __len__(self):
            return 6

        def __getitem__(self, place):
            return minigrad.rand(1).numpy()

    def body(noise_key):
        set_noise_key(noise_key)
        return DataLoader(Noisy(), batch_size=2)

    def save():
        loader = body(1)
        batches = iter(loader)
        next(batches)
        minigrad.save({"loader": loader}, tmp_path / "run")
        return minigrad.rand(2).tolist(), [batch.tolist() for batch in batches]

    def resume():
        loader = body(0)
        minigrad.load(tmp_path / "run", into={"loader": loader})
        return minigrad.rand(2).tolist(), [batch.tolist() for batch in loader]

    assert copy_context().run(save) == copy_context().run(resume)


def test_a_class_is_no_object(tmp_path):
    with pytest.raises(DtypeError, match="expected tensors and plain values, got type in obj..model.."):
        minigrad.save({"model": nn.Linear}, tmp_path / "run")


def test_a_link_stays_one(tmp_path):
    minigrad.save({"a": 1}, tmp_path / "file")
    (tmp_path / "link").symlink_to("file")
    minigrad.save({"a": 2}, tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and minigrad.load(tmp_path / "file") == {"a": 2}


def test_a_tensor_that_no_file_holds_is_named(tmp_path):
    with pytest.raises(DtypeError, match="save_file: 'x.y': dtype: expected one of .*, got uint16"):
        minigrad.save({"x": {"y": np.zeros(2, np.uint16)}}, tmp_path / "file")


def test_without_objects_to_fill_there_are_their_states(tmp_path):
    """As in a checkpoint that was saved by hand; the tensors have names that say whose they are."""
    mine, before = parts(), minigrad.get_rng_state()
    minigrad.save({**mine, "step": 7}, tmp_path / "run")
    found = minigrad.load(tmp_path / "run")
    assert minigrad.get_rng_state() == before and found["step"] == 7
    fresh = parts(seed=1)
    fresh["model"].load_state_dict(found["model"])
    fresh["optimizer"].load_state_dict(found["optimizer"])
    assert repr(fresh["model"].state_dict()) == repr(mine["model"].state_dict())
    assert {"model.0.weight", "optimizer.state.0.exp_avg"} < set(nn.load_file(tmp_path / "run"))


def test_a_tensor_that_two_objects_share_is_kept_once(tmp_path):
    model = nn.Linear(100, 100)
    minigrad.save({"a": model, "b": nn.Sequential(model)}, tmp_path / "run")
    assert (tmp_path / "run").stat().st_size < 1.5 * 4 * 100 * 100


def test_names_of_tensors_that_would_be_equal(tmp_path):
    obj = {"a": {"b": minigrad.ones(1)}, "a.b": minigrad.zeros(1), bundle.KEY: minigrad.full((1,), 2.0), "plain": 1}
    minigrad.save(obj, tmp_path / "file")
    found = minigrad.load(tmp_path / "file")
    assert [found["a"]["b"].item(), found["a.b"].item(), found[bundle.KEY].item()] == [1, 0, 2]


def changed(path, change):
    """The file with other metadata."""
    facts = json.loads(nn.load_metadata(path)[bundle.KEY])
    change(facts)
    nn.save_file(nn.load_file(path), path, {bundle.KEY: json.dumps(facts)})


REFUSED = {
    "missing": (lambda p: p.pop("scaler"), r"got nothing at into\['scaler'\], where .* has GradScaler"),
    "extra": (lambda p: p.update(more=Counter()), r"got Counter at into\['more'\], where .* has nothing"),
    "kind": (
        lambda p: p.update(optimizer=optim.AdamW(p["model"].parameters())),
        r"got AdamW at into\['optimizer'\], where .* has Adam$",
    ),
    "model": (
        lambda p: p.update(model=nn.Linear(3, 1)),
        r"into\['model'\]: Linear.load_state_dict: expected the names, .*\n  missing weight",
    ),
    "width": (
        lambda p: p.update(average=parts(5)["average"]),
        r"into\['average'\]: .*\n  module.0.weight: expected float32 \(5, 3\), got float32 \(4, 3\)",
    ),
    "loader": (
        lambda p: p.update(loader=DataLoader(ArrayDataset(X), batch_size=5, shuffle=True)),
        r"into\['loader'\]: BatchSampler: expected a state with batch_size 5, got 4",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_and_nothing_is_changed(tmp_path, case):
    change, words = REFUSED[case]
    minigrad.save(parts(), tmp_path / "run")
    mine = parts(seed=1)
    change(mine)
    before = said(mine)
    with pytest.raises(StateDictError, match=words):
        minigrad.load(tmp_path / "run", into=mine)
    assert said(mine) == before


def test_an_object_that_raises_leaves_the_others_as_they_were(tmp_path):
    class Broken(Counter):
        def load_state_dict(self, state):
            raise KeyError("gone")

    Broken.__name__ = "Counter"
    minigrad.save({**parts(), "last": Counter()}, tmp_path / "run")
    mine = parts(seed=1)
    before = said(mine)
    with pytest.raises(KeyError):
        minigrad.load(tmp_path / "run", into={**mine, "last": Broken()})
    assert said(mine) == before


FILES = {
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-5]), "expected a safetensors file"),
    "cut early": (lambda path: path.write_bytes(path.read_bytes()[:50]), "expected a safetensors file"),
    "empty": (lambda path: path.write_bytes(b""), "expected a safetensors file"),
    "foreign": (lambda path: nn.save_file({"x": X}, path), "expected a file that save wrote with objects in it"),
    "plain": (lambda path: minigrad.save({"a": 1}, path), "expected a file that save wrote with objects in it"),
    "newer": (lambda path: changed(path, lambda f: f.update(version=2)), "of version 1 or older, got .* of version 2"),
    "no tree": (lambda path: changed(path, lambda f: f.pop("trees")), "with other metadata"),
    "no tensor": (lambda path: changed(path, lambda f: f["trees"].update(obj={"tensor": "?"})), "with other metadata"),
    "ranks": (
        lambda path: changed(path, lambda f: f.update(world_size=3)),
        r"of 1 rank\(s\), got .*, which 3 rank\(s\) have saved: start as many",
    ),
    "folder": (lambda path: (path.unlink(), path.mkdir()), "got the folder"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_is_none_is_refused(tmp_path, case):
    change, words = FILES[case]
    mine = {"counter": Counter(1)}
    minigrad.save(mine, tmp_path / "run")
    change(tmp_path / "run")
    with pytest.raises(StateDictError, match=words):
        minigrad.load(tmp_path / "run", into=mine)
    with pytest.raises(FileNotFoundError):
        minigrad.load(tmp_path / "absent", into=mine)


def test_a_file_that_was_cut_or_scribbled_on_is_refused_in_words_or_loads(tmp_path):
    path, mine = tmp_path / "run", {"net": nn.Linear(2, 2)}
    minigrad.save({**mine, "plain": [1, {"a": None}]}, path)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for length in range(0, len(whole), 41):
        path.write_bytes(whole[:length])
        with pytest.raises(StateDictError):
            minigrad.load(path, into=mine)
    for _ in range(100):
        scribbled = bytearray(whole)
        scribbled[rng.integers(len(whole) - 24)] = rng.integers(32, 127)
        path.write_bytes(scribbled)
        with contextlib.suppress(StateDictError):
            minigrad.load(path, into=mine)


def test_arguments_are_refused(tmp_path):
    minigrad.save({"net": nn.Linear(1, 1)}, tmp_path / "run")
    for into, words in {
        "step": ({"step": 3}, r"got int at into\['step'\]: plain values are in what load returns"),
        "model": (nn.Linear(1, 1), 'got Linear at into: write {"model": model}'),
        "nothing": ({}, "to hold objects to fill, got {}"),
    }.values():
        with pytest.raises(ArgumentError, match=words):
            minigrad.load(tmp_path / "run", into=into)
    with pytest.raises(DtypeError, match=r"got object in obj\['a'\]\[0\]"):
        minigrad.save({"net": nn.Linear(1, 1), "a": [object()]}, tmp_path / "run")
    with pytest.raises(DtypeError, match="got Linear in obj: save its state_dict"):
        minigrad.save(nn.Linear(1, 1), tmp_path / "run")


def test_inside_a_backward_it_is_refused(tmp_path):
    model = nn.Linear(3, 1)
    model.weight.register_hook(lambda grad: minigrad.save({"model": model}, tmp_path / "run"))
    with pytest.raises(AutogradError, match="between two steps, got it inside a backward"):
        model(minigrad.Tensor(X)).sum().backward()


def test_the_old_file_is_whole_wherever_writing_stops(tmp_path):
    """Killed at, or with an error of, each operation on files."""
    whole, path = Disk(), tmp_path / "run"
    minigrad.save({"counter": Counter(1)}, path)
    with whole.watching():
        minigrad.save({"counter": Counter(1)}, path)
    assert whole.calls == ["listdir", "open", "flock", "write", "write", "fsync", "replace", "open", "fsync"]
    for place in range(len(whole.calls)):
        for how in ("kill_at", "fail_at"):
            minigrad.save({"counter": Counter(1)}, path)
            disk, fresh = Disk(**{how: place}), Counter()
            is_told = how == "kill_at" or whole.calls[place] != "flock"  # which not every file system has
            with pytest.raises((Killed, OSError)) if is_told else contextlib.nullcontext(), disk.watching():
                minigrad.save({"counter": Counter(2)}, path)
            minigrad.load(path, into={"counter": fresh})
            assert fresh.count == (2 if not is_told or place > whole.calls.index("replace") else 1)
            left = {item.name for item in tmp_path.iterdir()} - {"run"}
            assert len(left) == (how == "kill_at" and 1 < place <= whole.calls.index("replace"))
            minigrad.save({"counter": Counter(3)}, path)  # what was left lying about is removed
            minigrad.load(path, into={"counter": fresh})
            assert fresh.count == 3 and [item.name for item in tmp_path.iterdir()] == ["run"]


def test_a_full_disk(tmp_path):
    """A limit for the size of files stands for it; the temporary file is gone."""
    import resource
    import signal

    minigrad.save({"counter": Counter(1)}, tmp_path / "run")
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            minigrad.save({"counter": Counter(2), "x": minigrad.ones(1000)}, tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert minigrad.load(tmp_path / "run")["counter"]["count"] == 1
