"""A simulated shell around the coordinator: ranks that train by taking what they are dealt, in virtual time.

Messages of ranks come late, in any order and twice; what a rank has sent may be lost when it dies. Commands to a rank
keep their order; those of a coordinator that dies with its rank may be lost, from any of them on. A rank's parameters
are the multiset of the samples that they were made of, so that they tell what they should be.
"""

import heapq
import json
import random
from dataclasses import dataclass, field

from minigrad.data import ChunkPool, SampleLedger
from minigrad.data.dispatch import Dispatch
from minigrad.distributed.average import Async, Cadence, EveryK, Sync
from minigrad.distributed.balance import CadenceConfig
from minigrad.train import coordinator as c

TIMEOUT_S = 200.0


class StuckError(AssertionError):
    """A schedule that does not end."""


@dataclass
class Rank:
    """One rank: what it has done, and what it was told."""

    rank: int
    ledger: SampleLedger
    pace: float
    state: str = "alive"  # or "dead", "hung", "over"
    term: int = 0
    tries: int = 0  # one more where what it does is of no use any more
    committed: int = 0
    commit_state: object = None
    values: list = field(default_factory=list)
    parts: dict = field(default_factory=dict)  # by round: portions
    tentative: dict = field(default_factory=dict)
    sent: list = field(default_factory=list)  # messages under way, as [is lost]
    last_arrival: float = 0.0
    inbox: list = field(default_factory=list)
    saved: int | None = None
    error: str | None = None


class Shell:
    """Runs a schedule; `hosted` says that the coordinator lives on a rank and dies with it."""

    def __init__(self, config, seed, *, hosted=False, deaths=(), dies_at_commit=0):
        self.config, self.rng, self.hosted = config, random.Random(seed), hosted
        self.dies_at_commit = dies_at_commit  # of this round, while ranks are told of it
        self.now, self.count, self.heap = 0.0, 0, []
        length, size = config.dispatch.pool.length, config.world_size
        self.ranks = [
            Rank(rank, SampleLedger(length, rank=rank, world_size=size), self.rng.choice([0.2, 1.0, 3.0]))
            for rank in range(size)
        ]
        self.host, self.term, self.known_dead = 0, 1, set()
        self.notes, self.parted = 0, 0  # messages that counted for nothing; commits that only some had got
        self.state, self.meetings, self.journal, self.through_json = c.Coordinator.start(config), {}, [], False
        self.deaths = list(deaths)
        self.note_state()
        for rank, at, how in deaths:
            self.after(at, lambda rank=rank, how=how: self.die(self.ranks[rank], how))
        self.after(0, lambda: self.hear(c.Began()))

    def after(self, delay, action):
        self.count += 1
        heapq.heappush(self.heap, (self.now + delay, self.count, action))

    def delay(self):
        return self.rng.expovariate(1.0) * self.rng.choice([0.1, 1.0, 5.0])

    def run(self):
        events = 0
        while self.heap and any(rank.state == "alive" for rank in self.ranks):
            self.now, _, action = heapq.heappop(self.heap)
            action()
            events += 1
            if events > 50_000:
                raise StuckError(f"no end after {events} events: {self.state.phase}, round {self.state.committed}")
        if any(rank.state == "alive" for rank in self.ranks):
            raise StuckError(f"nothing more happens, in {self.state.phase}, {self.state.questions}")
        return self

    # ------------------------------------------------------------------------------------------- the coordinator

    def note_state(self):
        self.journal.append(json.dumps({"state": self.state.state_dict()}))

    def hear(self, message):
        if self.hosted and self.ranks[self.host].state == "dead":
            return
        self.state, commands = c.step(self.state, message)
        recorded = {"message": c.to_data(message), "commands": [c.to_data(each) for each in commands]}
        self.journal.append(json.dumps(recorded))
        if self.through_json and self.rng.random() < 0.2:
            self.state = c.Coordinator.start(self.config).loaded(json.loads(json.dumps(self.state.state_dict())))
        self.obey(commands)
        if any(isinstance(each, c.Commit) and each.round == self.dies_at_commit for each in commands):
            host, self.dies_at_commit = self.ranks[self.host], 0
            self.after(self.rng.expovariate(1.0), lambda: self.die(host, "was killed"))

    def obey(self, commands):
        for command in commands:
            assert command.reason
            if isinstance(command, c.Noted):
                self.notes += 1
            elif isinstance(command, c.Await):
                expired = c.Expired(command.term, command.timer)
                self.after(command.seconds, lambda expired=expired: self.hear(expired))
            elif isinstance(command, c.Drop):
                if self.ranks[command.rank].state == "alive":
                    raise StuckError(f"rank {command.rank} was dropped, and is alive: {command.reason}")
                self.ranks[command.rank].state = "dead"
                self.known_dead.add(command.rank)
            else:
                self.post(self.ranks[command.rank], command)

    def post(self, rank, command):
        rank.last_arrival = max(rank.last_arrival, self.now + self.delay())
        letter = [command]
        rank.inbox.append(letter)

        def arrive():
            if letter in rank.inbox:
                rank.inbox.remove(letter)
                if rank.state == "alive" and letter and command.term >= rank.term:
                    rank.term = command.term
                    getattr(self, type(command).__name__.lower())(rank, command)

        self.after(rank.last_arrival - self.now, arrive)

    def take_over(self):
        """The lowest rank that is thought to live coordinates."""
        candidates = [rank for rank in self.ranks if rank.rank not in self.known_dead and rank.state != "over"]
        if not candidates:
            return
        new = candidates[0]
        self.host, self.term = new.rank, self.term + 1
        if new.state == "dead":  # found out later
            return
        if new.state == "hung":  # the others notice
            new.state = "dead"
            self.after(TIMEOUT_S, lambda: self.find_dead(new, "was killed"))
            return
        living = [rank.rank for rank in candidates]
        own = c.Coordinator.start(self.config)
        self.parted += new.committed < max(rank.committed for rank in candidates)
        self.state, commands = c.take_over(
            own, living, state=new.commit_state, term=self.term, error=f"rank {self.host - 1} was killed"
        )
        self.note_state()
        self.obey(commands)

    # ------------------------------------------------------------------------------------------------- ranks

    def say(self, rank, message):
        for _ in range(2 if self.rng.random() < 0.1 else 1):
            letter = [False]
            rank.sent.append(letter)
            self.after(self.delay(), lambda letter=letter: letter[0] or self.hear(message))

    def die(self, rank, how):
        if rank.state != "alive":
            return
        rank.state = "hung" if how == "hangs" else "dead"
        for letter in rank.sent:
            letter[0] = letter[0] or self.rng.random() < 0.5
        if self.hosted and rank.rank == self.host:
            rank.state = "dead"
            for other in self.ranks:
                kept = self.rng.randint(0, len(other.inbox))
                del other.inbox[kept:]
        if rank.state == "dead":
            self.after(self.delay() + 1.0, lambda: self.find_dead(rank, how))

    def find_dead(self, rank, how):
        self.known_dead.add(rank.rank)
        if self.hosted and rank.rank == self.host:
            self.take_over()
        else:
            self.hear(c.Failed(rank.rank, f"it {how}"))

    def train(self, rank, order):
        tries, batches = rank.tries, len(order.portions)
        seconds = batches * rank.pace * self.rng.uniform(0.5, 1.5)

        def made():
            if (rank.state, rank.tries) == ("alive", tries):
                rank.parts[order.round] = order.portions
                samples = sum(stop - start for _, places in order.portions for start, stop in places)
                self.say(rank, c.Trained(rank.rank, order.term, order.round, order.ask, samples, batches, seconds))

        def half_way():
            if (rank.state, rank.tries) == ("alive", tries):
                self.say(rank, c.Working(rank.rank, order.term, order.round, order.ask, batches // 2))

        if self.rng.random() < 0.3:
            self.after(seconds / 2, half_way)
        self.after(seconds, made)

    def combine(self, rank, order):
        """All members have to come; then it is there on each at a time of its own."""
        meeting = self.meetings.setdefault((order.term, order.ask), {})
        meeting[rank.rank] = rank.parts.get(order.round, ()), rank.tries

        def alone(tries=rank.tries):
            """The communicator has noticed that somebody is missing."""
            if (rank.state, rank.tries) == ("alive", tries) and len(meeting) < len(order.members):
                self.say(rank, c.Broken(rank.rank, order.term, order.round, order.ask, "a rank is missing"))

        if any(self.ranks[member].state in ("dead", "hung") for member in order.members):
            self.after(self.rng.choice([1.0, 5.0, 2 * TIMEOUT_S]), alone)
        if len(meeting) == len(order.members):
            mixed = [(giver, meeting[giver][0]) for giver in order.givers]
            for member in order.members:
                other, tries = self.ranks[member], meeting[member][1]

                def there(other=other, tries=tries):
                    if (other.state, other.tries) == ("alive", tries):
                        other.tentative[order.round] = mixed
                        self.say(other, c.Combined(other.rank, order.term, order.round, order.ask, 0.1))

                self.after(self.delay(), there)

    def commit(self, rank, order):
        assert order.round == rank.committed + 1, (rank, order)
        mixed = rank.tentative.pop(order.round, None)
        given = [(each.rank, each.portions) for each in order.taken if each.samples]
        assert given == (mixed or []), (given, mixed)
        rank.values += [place for _, portions in given for place in places_of(portions)]
        c.write_samples(rank.ledger, order)
        rank.committed, rank.commit_state = order.round, json.loads(json.dumps(order.state))

    def go_back(self, rank, order):
        assert order.round == rank.committed, (rank, order)
        rank.tries, rank.parts, rank.tentative = rank.tries + 1, {}, {}

    def restore(self, rank, order):
        self.go_back(rank, order)
        self.say(rank, c.Restored(rank.rank, order.term, order.round, order.ask))

    def recall(self, rank, order):
        message = c.Recalled(rank.rank, order.term, order.round, order.ask, rank.committed, rank.commit_state)
        self.say(rank, message)

    def save(self, rank, order):
        self.go_back(rank, order)
        rank.saved = order.round
        self.say(rank, c.Saved(rank.rank, order.term, order.round, order.ask))

    def finish(self, rank, order):
        assert order.round == rank.committed
        self.say(rank, c.Finished(rank.rank, order.term, order.round, order.ask))

    def stop(self, rank, order):
        rank.state, rank.error = "over", order.error


def places_of(portions):
    return [(epoch, place) for epoch, places in portions for start, stop in places for place in range(start, stop)]


def drawn(seed, on_failure=None, deaths=True):
    """A schedule: data, ranks, policy and failures of this seed."""
    rng = random.Random(seed)
    size, epochs = rng.randint(1, 5), rng.randint(1, 3)
    mode = rng.choice(["progressive", "progressive", "static", "proportional"])
    policy = rng.choice(
        [Sync(), EveryK(3), Async(rng.randint(0, 4), k=rng.randint(1, 3)), Cadence(CadenceConfig(2))]
    )
    dispatch = Dispatch(
        ChunkPool(rng.choice([1, 5, 17, 40, 63]), batch_size=rng.randint(1, 5), seed=seed),
        size,
        mode,
        max_overshoot=rng.choice([0, 0, 1, 5]),
        max_batch_diff=rng.choice([None, None, 0, 2]),
        epochs=epochs,
    )
    on_failure = on_failure or rng.choice(["stop", "shrink"])
    config = c.CoordinatorConfig(dispatch, policy, on_failure, TIMEOUT_S)
    number = rng.choice([0, 1, 1, 2, size]) if deaths else 0
    hosted = rng.random() < 0.6
    hows = ["raised", "was killed", "hangs"]
    lost = [
        (rng.randrange(size) if rng.random() < 0.6 else 0, rng.expovariate(1 / 15), rng.choice(hows))
        for _ in range(number)
    ]
    dies_at_commit = rng.randint(1, 3) if deaths and hosted and rng.random() < 0.5 else 0
    return Shell(config, seed, hosted=hosted, deaths=lost, dies_at_commit=dies_at_commit)
