"""The coordinator: it ends whatever comes late, twice or never; and every sample counts once."""

import json
from dataclasses import replace

import pytest

from minigrad.data import ChunkPool, SampleLedger
from minigrad.data.dispatch import Dispatch
from minigrad.distributed.average import Async, Cadence, EveryK, Policy, Sync
from minigrad.distributed.balance import CadenceConfig
from minigrad.errors import ArgumentError, StateDictError
from minigrad.train import coordinator as c
from minigrad.train.coordinator import machine
from tests.train.coordinated import Shell, drawn

SCHEDULES = 500


def started(policy, ranks=2, samples=12, *, batch_size=2, epochs=1, on_failure="shrink", **options):
    """The state and commands after `Began`."""
    pool = ChunkPool(samples, batch_size, shuffle=False)
    config = c.CoordinatorConfig(Dispatch(pool, ranks, epochs=epochs, **options), policy, on_failure, timeout_s=5)
    return c.step(c.Coordinator.start(config), c.Began())


def of(kind, commands):
    return [command for command in commands if isinstance(command, kind)]


def answer(kind, order, *rest):
    return kind(order.rank, order.term, order.round, order.ask, *rest)


def size(order):
    return sum(stop - start for _, places in order.portions for start, stop in places)


def trained(order, samples=None, seconds=1.0):
    return answer(c.Trained, order, size(order) if samples is None else samples, len(order.portions), seconds)


def told(state, messages):
    """The state and all commands after some messages."""
    found = []
    for message in messages:
        state, commands = c.step(state, message)
        found += commands
    return state, found


def names(commands):
    return [(type(command).__name__, getattr(command, "rank", None)) for command in commands]


# ------------------------------------------------------------------------------------------------- schedules


def check(shell):
    """What a schedule has to come to."""
    config, ends = shell.config, [rank for rank in shell.ranks if rank.state == "over"]
    lost = [rank.rank for rank in shell.ranks if rank.state != "over"]
    length, epochs = config.dispatch.pool.length, config.dispatch.epochs
    whole = [(epoch, place) for epoch in range(epochs) for place in range(length)]
    for rank in ends:
        assert sorted(rank.values) == sorted(ends[0].values), "replicas differ"
        taken = [rank.ledger.taken(epoch).places.tolist() for epoch in range(epochs)]
        assert sorted((epoch, place) for epoch in range(epochs) for place in taken[epoch]) == sorted(rank.values)
        if config.on_failure == "shrink" or not lost:
            assert (rank.error, rank.saved) == ("", None)
        if not rank.error:
            assert sorted(rank.values) == whole, "not each sample once"
            assert all(rank.ledger.audit(epoch).is_exact for epoch in range(epochs))
        else:
            assert any(f"rank {other}" in rank.error for other in lost), rank.error
            assert rank.saved == rank.committed
            assert len({*rank.values}) == len(rank.values), "a sample twice"
    assert ends or lost == list(range(config.world_size))
    assert shell.now < (3 + 2 * len(shell.deaths)) * 1000


def run_all(seeds, **options):
    """Run schedules; the first one that goes wrong raises."""
    found = []
    for seed in seeds:
        shell = drawn(seed, **options)
        shell.through_json = seed % 4 == 0
        check(shell.run())
        found.append(shell)
    return found


def test_every_schedule_ends_and_every_sample_counts_once():
    shells = run_all(range(SCHEDULES))
    ends = [rank for shell in shells for rank in shell.ranks]
    assert sum(rank.state == "over" and not rank.error for rank in ends) > 200  # so that all of it was tried
    assert sum(rank.error not in (None, "") for rank in ends) > 100
    assert sum(shell.term > 1 for shell in shells) > 30
    assert sum(shell.notes for shell in shells) > 1000
    assert sum(shell.parted for shell in shells) > 5
    for shell in shells[::10]:
        entries = map(json.loads, shell.journal)
        recorded = [entry["commands"] for entry in entries if "commands" in entry]
        assert [[c.to_data(each) for each in made] for made in c.replay(shell.journal, shell.config)] == recorded


def test_without_failures_each_sample_counts_once_in_either_mode():
    for on_failure in ("stop", "shrink"):
        for shell in run_all(range(1000, 1040), on_failure=on_failure, deaths=False):
            assert all(rank.error == "" for rank in shell.ranks)


@pytest.mark.parametrize("hosted", [False, True])
def test_a_rank_dies_at_every_moment_of_a_run(hosted):
    dispatch = Dispatch(ChunkPool(15, 2, seed=3), 3, epochs=2)
    for policy in (EveryK(2), Async(2)):
        for moment in range(0, 60, 2):
            for rank in (0, 2):
                config = c.CoordinatorConfig(dispatch, policy, "shrink", timeout_s=200.0)
                check(Shell(config, moment, hosted=hosted, deaths=[(rank, moment, "was killed")]).run())


# ------------------------------------------------------------------------------------------- it would be seen


def any_answer(state, message, out):
    """An answer counts for whatever its rank was asked last."""
    kind, take = machine._ANSWERS[type(message)]
    found = [each for each in state.questions if (each.kind, each.rank) == (kind, message.rank)]
    if not found:
        return machine._ignored(state, message, out)
    return take(state, found[0], replace(message, round=found[0].round), out)


def nothing_given_back(self):
    progress = machine.Coordinator.start(self.config).progress.start(
        0, len(self.members), self.config.bound, self.committed
    )
    return replace(self, progress=progress, questions=(), assignments=(), phase="new")


def first_combined(state, question, message, out):
    state = machine._closed(state, question, "combined")
    left = tuple(each for each in state.questions if each.kind != "Combine")
    return machine._advance(machine._commit(replace(state, questions=left), 0.0, out), out)


def own_commit_counts(state, out):
    known = replace(state, recalled=tuple((rank, state.committed, None) for rank, *_ in state.recalled))
    return gather_over(known, out)


gather_over = machine._gather_over


@pytest.mark.parametrize("fault", ["any answer", "nothing given back", "first combined", "own commit", "no deadline"])
def test_a_planted_fault_is_seen(monkeypatch, fault):
    if fault == "any answer":
        monkeypatch.setattr(machine, "_answered", any_answer)
    elif fault == "nothing given back":
        monkeypatch.setattr(c.Coordinator, "settled", nothing_given_back)
    elif fault == "first combined":
        monkeypatch.setitem(machine._ANSWERS, c.Combined, ("Combine", first_combined))
    elif fault == "own commit":
        monkeypatch.setattr(machine, "_gather_over", own_commit_counts)
    else:
        monkeypatch.setitem(machine._OTHERS, c.Expired, lambda state, message, out: state)
    with pytest.raises(AssertionError):
        run_all(range(SCHEDULES))


# --------------------------------------------------------------------------------------------- one by one


def test_a_report_on_its_way_is_no_answer_to_a_question_asked_after_it():
    state, commands = started(EveryK(1))
    trains = of(c.Train, commands)
    state, commands = told(state, map(trained, trains))
    questions = of(c.Combine, commands)
    state, commands = c.step(state, trained(trains[0]))  # report: was on its way
    assert names(commands) == [("Noted", None)]
    assert "is late, or came twice: rank 0 has to answer 2 (Combine of round 1)" in commands[0].reason
    state, commands = told(state, [answer(c.Combined, questions[0]), answer(c.Combined, questions[0])])
    assert names(commands) == [("Noted", None)] and not state.committed
    state, commands = c.step(state, answer(c.Combined, questions[1]))
    assert state.committed == 1 and names(commands)[:2] == [("Commit", 0), ("Commit", 1)]


@pytest.mark.parametrize("wrong", [{"round": 2}, {"ask": 7}, {"term": 2}])
def test_an_answer_of_another_round_question_or_coordinator_counts_for_nothing(wrong):
    state, commands = started(Sync())
    state, commands = c.step(state, replace(trained(of(c.Train, commands)[0]), **wrong))
    assert names(commands) == [("Noted", None)]


def test_who_does_not_come_is_named_with_what_it_did_last():
    state, commands = started(EveryK(2), ranks=3, on_failure="stop")
    trains, timer = of(c.Train, commands), of(c.Await, commands)[0]
    assert timer.seconds == 5 and timer.ranks == (0, 1, 2)
    state, commands = told(state, [trained(trains[0]), answer(c.Working, trains[2], 1)])
    again = of(c.Await, commands)[0]
    state, commands = c.step(state, c.Expired(1, timer.timer))
    error = (
        "coordinator: expected an answer to Train of round 1 within 5 s, got none of rank 1: "
        "rank 1 was dealt batches of round 1 last"
    )
    assert names(commands)[:3] == [("Drop", 1), ("Save", 0), ("Save", 2)]  # not rank 2: it goes on
    assert of(c.Save, commands)[0].error == error
    _, commands = c.step(state, c.Expired(1, again.timer))
    assert names(commands) == [("Noted", None)]


def test_stop_saves_the_last_commit_and_tells_all_the_error():
    state, commands = started(EveryK(1), ranks=3, on_failure="stop")
    state, commands = told(state, map(trained, of(c.Train, commands)))
    state, commands = told(state, [answer(c.Combined, order) for order in of(c.Combine, commands)])
    state, commands = c.step(state, c.Failed(1, "ValueError: no"))
    saves = of(c.Save, commands)
    assert [(save.rank, save.round, save.members) for save in saves] == [(0, 1, (0, 2)), (2, 1, (0, 2))]
    state, commands = told(state, [answer(c.Saved, save) for save in saves])
    error = "rank 1 has failed: ValueError: no; it was dealt batches of round 2 last"
    assert [(stop.rank, stop.error) for stop in of(c.Stop, commands)] == [(0, error), (2, error)]
    assert state.is_over and state.error == error


@pytest.mark.parametrize("when", ["training", "combining", "all but one combined"])
def test_a_round_in_which_somebody_dies_is_done_again_by_the_living(when):
    state, commands = started(EveryK(1), ranks=3, samples=12)
    trains = of(c.Train, commands)
    assert [order.portions[0].places for order in trains] == [((0, 2),), ((2, 4),), ((4, 6),)]
    if when != "training":
        state, commands = told(state, map(trained, trains))
    if when == "all but one combined":
        state, _ = told(state, [answer(c.Combined, order) for order in of(c.Combine, commands)[1:]])
    state, commands = c.step(state, c.Failed(2, "killed"))
    restores = of(c.Restore, commands)
    assert [(order.rank, order.round, order.members) for order in restores] == [(0, 0, (0, 1)), (1, 0, (0, 1))]
    state, commands = told(state, [*map(trained, trains), *(answer(c.Restored, order) for order in restores)])
    again = of(c.Train, commands)
    assert [(order.rank, order.portions[0].places) for order in again] == [(0, ((0, 2),)), (1, ((2, 4),))]
    state, commands = told(state, map(trained, again))
    assert [(order.givers, order.samples) for order in of(c.Combine, commands)] == [((0, 1), (2.0, 2.0))] * 2


def test_weights_are_those_of_who_has_samples():
    state, commands = started(EveryK(1), ranks=3, samples=6)
    state, commands = told(state, [trained(order, [5.0, 0.0, 2.5][order.rank]) for order in of(c.Train, commands)])
    combines = of(c.Combine, commands)
    assert {(order.members, order.givers, order.samples) for order in combines} == {((0, 1, 2), (0, 2), (5.0, 2.5))}
    state, commands = told(state, [answer(c.Combined, order) for order in combines])
    assert [each[:2] for each in of(c.Commit, commands)[0].taken] == [(0, 5.0), (1, 0.0), (2, 2.5)]


def test_a_round_of_no_samples_is_committed_without_combining():
    state, commands = started(EveryK(1), samples=4)
    state, commands = told(state, [trained(order, 0.0) for order in of(c.Train, commands)])
    assert names(commands)[:4] == [("Commit", 0), ("Commit", 1), ("Finish", 0), ("Finish", 1)]


def test_the_last_commit_holds_where_one_rank_has_got_it():
    state, commands = started(EveryK(1), ranks=3, samples=12)
    state, commands = told(state, map(trained, of(c.Train, commands)))
    state, commands = told(state, [answer(c.Combined, order) for order in of(c.Combine, commands)])
    commit = of(c.Commit, commands)[2]
    own = c.Coordinator.start(state.config)
    state, commands = c.take_over(own, [1, 2], state=None, term=2, error="rank 0 was killed")
    asked = of(c.Recall, commands)
    assert [order.rank for order in asked] == [1, 2]
    knows = [answer(c.Recalled, asked[0], 0, None), answer(c.Recalled, asked[1], 1, commit.state)]
    state, commands = told(state, knows)
    assert names(commands)[:3] == [("Commit", 1), ("Restore", 1), ("Restore", 2)]
    assert (commands[0].round, commands[0].taken, commands[1].round) == (1, commit.taken, 1)
    assert commands[0].term == 2 and state.dispatch.remaining == 6
    with pytest.raises(ArgumentError, match="a term above 1, which has been, got 1"):
        c.take_over(own, [1], state=None, term=1, error="")
    with pytest.raises(ArgumentError, match="that lives, got "):
        c.take_over(own, [], state=None, term=2, error="")


def test_a_round_that_cannot_be_combined_is_tried_again_and_given_up():
    state, commands = started(EveryK(1))
    for tries in (1, 2, 3):
        state, commands = told(state, map(trained, of(c.Train, commands)))
        assert not of(c.Drop, commands)
        state, commands = c.step(state, answer(c.Broken, of(c.Combine, commands)[1], "RankFailedError: no"))
        if tries < 3:
            state, commands = told(state, [answer(c.Restored, order) for order in of(c.Restore, commands)])
    error = of(c.Save, commands)[0].error
    assert error.startswith("coordinator: expected round 1 to be combined, got no end 3 times: rank 1 could not")
    assert error.endswith("rank 0 trained 1 batches of round 1 last; rank 1 could not combine round 1 last")


def test_the_user_ends_a_run():
    state, commands = started(EveryK(1))
    state, commands = c.step(state, c.StopAsked("Ctrl-C"))
    assert of(c.Save, commands)[0].reason == "Ctrl-C; a checkpoint of round 0, then the end"
    state, commands = told(state, [answer(c.Saved, order) for order in of(c.Save, commands)])
    assert [order.error for order in of(c.Stop, commands)] == ["", ""]
    state, commands = c.step(state, c.Failed(0, "late"))
    assert commands[0].reason == "all is over, so Failed of rank 0 counts for nothing"


def runs_of_first(policy, **options):
    """How many batches rank 0 is given while rank 1 makes none."""
    state, commands = started(policy, samples=40, epochs=2, **options)
    given = 0
    while mine := [order for order in of(c.Train, commands) if order.rank == 0]:
        given += len(mine[0].portions)
        state, commands = c.step(state, trained(mine[0]))
    return given


@pytest.mark.parametrize(
    "policy, options, batches",
    [
        (EveryK(2), {}, 2),
        (Async(3), {}, 4),
        (Async(3, k=2), {}, 8),
        (Async(3), {"max_batch_diff": 0}, 1),
        (Async(3, k=2), {"max_batch_diff": 2}, 4),
        (Async(99), {}, 10),  # a half of 20; what is left is for the other one
        (Async(99), {"max_overshoot": 3}, 13),
        (Async(99), {"max_overshoot": 40}, 20),
    ],
)
def test_a_rank_runs_ahead_as_far_as_it_may(policy, options, batches):
    assert runs_of_first(policy, **options) == batches


def test_a_cadence_follows_the_speeds_and_begins_anew_with_fewer_ranks():
    state, commands = started(Cadence(CadenceConfig(2)), samples=400)
    for _ in range(3):
        made = [trained(order, seconds=len(order.portions) * (1, 3)[order.rank]) for order in of(c.Train, commands)]
        state, commands = told(state, made)
        state, commands = told(state, [answer(c.Combined, order) for order in of(c.Combine, commands)])
    assert [len(order.portions) for order in of(c.Train, commands)] == [6, 2]
    state, _ = c.step(state, c.Failed(1, "killed"))
    assert state.quotas() == (2,)


def test_a_state_goes_through_json_and_refuses_other_options():
    state, commands = started(Async(2), ranks=3, samples=30)
    state, _ = told(state, [*map(trained, of(c.Train, commands)), c.Failed(1, "killed")])
    data = json.loads(json.dumps(state.state_dict()))
    assert c.Coordinator.start(state.config).loaded(data) == state
    other = c.Coordinator.start(replace(state.config, policy=Async(3)))
    with pytest.raises(StateDictError, match="expected a state with bound '3'"):
        other.loaded(data)
    with pytest.raises(StateDictError, match="expected a state with bound '3'"):
        other.resumed(data)
    with pytest.raises(StateDictError, match="expected what its state_dict"):
        c.Coordinator.start(state.config).loaded({**data, "came": None})


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_run_goes_on_from_a_commit_on_any_number_of_ranks(ranks):
    state, commands = started(EveryK(1), ranks=2, samples=13, mode="static")
    ledger = SampleLedger(13, rank=0, world_size=2)
    state, commands = told(state, map(trained, of(c.Train, commands)))
    state, commands = told(state, [answer(c.Combined, order) for order in of(c.Combine, commands)])
    commit = of(c.Commit, commands)[0]
    c.write_samples(ledger, commit)
    dispatch = replace(state.config.dispatch, world_size=ranks, over=())
    config = replace(state.config, dispatch=dispatch, timeout_s=200.0)
    again = c.Coordinator.start(config).resumed(json.loads(json.dumps(commit.state)))
    shell = Shell(config, 0)
    shell.state = again
    for rank in shell.ranks:
        rank.committed = 1
        rank.ledger.load_state_dict(ledger.state_dict())
    shell.run()
    assert all(rank.ledger.audit().is_exact for rank in shell.ranks)


class Never(Policy):
    def decide(self, state, made):
        return state, False, ""


@pytest.mark.parametrize(
    "options, words",
    [
        ({"dispatch": None}, "expected a Dispatch, got None"),
        ({"dispatch": Dispatch(ChunkPool(4, 1), 2)}, "knows its epochs, got epochs=None"),
        ({"dispatch": Dispatch(ChunkPool(4, 1), 2, shares=(0.5, 0.5), epochs=1)}, "expected no shares"),
        ({"policy": "sync"}, "expected a policy"),
        ({"on_failure": "retry"}, "on_failure"),
        ({"timeout_s": 0.0}, "timeout_s"),
        ({"most_tries": 0}, "most_tries"),
    ],
)
def test_options_are_checked(options, words):
    given = {"dispatch": Dispatch(ChunkPool(4, 1), 2, epochs=1), "policy": Sync(), **options}
    with pytest.raises(ArgumentError, match=words):
        c.CoordinatorConfig(**given)


def test_what_is_no_message_is_refused():
    state, _ = started(Sync())
    with pytest.raises(ArgumentError, match="expected a message, got 3"):
        c.step(state, 3)
    with pytest.raises(ArgumentError, match="Trained: expected a finite number of samples"):
        c.Trained(0, 1, 1, 1, float("nan"), 1)
    with pytest.raises(ArgumentError, match="expected what to_data"):
        c.from_data({"kind": "Trained", "rank": 1})
    with pytest.raises(ArgumentError, match="Never to combine within"):
        started(Never())


def test_a_journal_that_was_changed_is_refused():
    shell = drawn(7)
    shell.run()
    lines = list(shell.journal)
    number = next(n for n, line in enumerate(lines) if '"Train"' in line)
    lines[number] = lines[number].replace('"reason": "', '"reason": "not ', 1)
    with pytest.raises(ArgumentError, match=f"of line {number + 1} again"):
        c.replay(lines, shell.config)
    with pytest.raises(ArgumentError, match="a journal's line, got line 1"):
        c.replay(["{}"], shell.config)


def test_where_a_rank_fails_while_all_save_since_somebody_wants_the_end_the_others_save_again_and_end_well():
    config = c.CoordinatorConfig(Dispatch(ChunkPool(24, 4, seed=1), 3, epochs=1), Sync(), "shrink")
    state, _ = c.step(c.Coordinator.start(config), c.Began())
    state, commands = c.step(state, c.StopAsked("enough"))
    first = {each.rank: each for each in commands if isinstance(each, c.Save)}
    state, _ = c.step(state, c.Saved(0, 1, 0, first[0].ask))
    state, commands = c.step(state, c.Failed(1, "killed"))
    again = [each for each in commands if isinstance(each, c.Save)]
    assert [each.rank for each in again] == [0, 2] and all(each.members == (0, 2) for each in again)
    for each in again:
        state, commands = c.step(state, c.Saved(each.rank, 1, 0, each.ask))
    assert [(each.rank, each.error) for each in commands if isinstance(each, c.Stop)] == [(0, ""), (2, "")]
