"""What is refused, counted and told, and when it goes out."""

from minigrad.testing.mutants.edit import Edit
from minigrad.testing.mutants.mutant import Mutant

PLANTED = (
    Mutant(
        5, "a forward that nobody counted is let pass", "refusals", "careless: around the wrapper",
        ("output",),
        Edit("distributed.ddp.own", "if self.mean and not found:", "if False:"),
    ),
    Mutant(
        6, "an unused parameter is let pass", "refusals", "careless: a layer left out",
        ("output",),
        Edit("distributed.ddp.reducer", "if missing and strict:", "if False:"),
    ),
    Mutant(
        21, "a rank that fails in backward tells nobody", "refusals", "careless: one fails",
        ("output",),
        Edit(
            "distributed.ddp.passes",
            "            self._comm.abort(reason)\n        else:\n            self._comm.give_up(reason)\n",
            "            pass\n",
        ),
    ),
    Mutant(
        22, "nobody asks what gradients weigh", "refusals", "careless: gradients by hand",
        ("output",),
        Edit("distributed.ddp.own", "if self.mean and not self.weighed:", "if False:"),
    ),
    Mutant(
        23, "a gradient set by hand passes for a combined one", "refusals", "careless: over a combined one",
        ("output",),
        Edit("distributed.ddp.own", "(param.grad_by_hand or self.s", "(self.s"),
    ),
    Mutant(
        24, "a pass may lie within a pass", "refusals", "careless: a nested backward",
        ("output",),
        Edit("distributed.ddp.reducer", "if outer is not None and (", "if False and ("),
    ),
    Mutant(
        25, "who catches what was refused within a pass hears no more of it", "refusals", "careless: a nested backward",
        ("output",),
        Edit("distributed.ddp.reducer", "if self.under_way.refusal is not None and len", "if False and len"),
    ),
    Mutant(
        26, "a failed backward ends all, though all have failed", "refusals", "careless: all fail",
        ("output",),
        Edit(
            "distributed.ddp.passes",
            "            self._comm.give_up(reason)\n",
            "            self._comm.abort(reason)\n",
        ),
    ),
    Mutant(
        27, "what one rank gives up is no failure", "refusals", "careless: one fails",
        ("output",),
        Edit(
            "distributed.comm.threads",
            "not header.kind == call.header.kind == GIVE_UP",
            "GIVE_UP not in (header.kind, call.header.kind)",
        ),
    ),
    Mutant(
        28, "a forward speaks for gradients set by hand", "refusals", "careless: a forward is left",
        ("output",),
        Edit("distributed.ddp.own", "take([] if said is None", "take(pending if said is None"),
    ),
    Mutant(
        29, "a gradient under way may change", "refusals", "careless: a changed gradient",
        ("output",),
        Edit("distributed.ddp.passes", "self._pending[bucket] == 0 and not", "False and not"),
    ),
    Mutant(
        30, "a step may come before its gradients are combined", "refusals", "careless: an early step",
        ("output",),
        Edit("distributed.ddp.reducer", "        return _UNFINISHED\n", "        return \"\"\n"),
    ),
    Mutant(
        31, "a moved parameter is not noticed", "refusals", "careless: a moved parameter",
        ("output",),
        Edit("distributed.ddp.reducer", "        self.layout.check()\n", ""),
    ),
    Mutant(
        34, "buckets go out whichever is ready", "buckets", "unequal",
        ("stats", "timeline", "explain"),
        Edit(
            "distributed.ddp.passes",
            "while len(self._works) < until and self._pending[len(self._works)] == 0:",
            "while len(self._works) < min(until, len(self._ready_order)):",
        ),
    ),
    Mutant(
        37, "waiting for a rank passes for communication", "accounts", "unequal",
        ("stats", "explain"),
        Edit(
            "distributed.ddp.account",
            "late_s = min(max(0.0, started_s - began_s), ended_s - began_s)",
            "late_s = 0.0",
        ),
    ),
    Mutant(
        38, "queueing passes for communication", "accounts", "unequal",
        ("stats", "explain"),
        Edit("distributed.ddp.account", "begin_s = max(started_s, reached_s)", "begin_s = started_s"),
    ),
    Mutant(
        39, "what passes of other wrappers took is hidden", "accounts", "two wrappers",
        ("stats", "explain"),
        Edit("distributed.ddp.account", "    if others:", "    if False:"),
    ),
    Mutant(
        40, "another wrapper's waits pass for computing", "accounts", "two wrappers",
        ("stats",),
        Edit("distributed.ddp.logbook", "(account, *self.others)", "(account,)"),
    ),
    Mutant(
        41, "what a hook sends is not counted", "accounts", "predivided",
        ("stats",),
        Edit(
            "distributed.ddp.hooks",
            "logbook.called(work, began_s, nbytes, kind)",
            "logbook.called(work, began_s, None, kind)",
        ),
    ),
    Mutant(
        46, "a bucket reaches over a frozen parameter", "buckets", "frozen",
        ("stats", "timeline", "explain"),
        Edit("distributed.ddp.buckets", "last.stop == new.start", "last.stop <= new.start"),
    ),
    Mutant(
        48, "unequal replicas are not noticed", "refusals", "careless: other shapes",
        ("output",),
        Edit("distributed.ddp.agreement", "{**describe(module), **{", "{**{"),
    ),
    Mutant(
        49, "ranks may differ in their options", "refusals", "careless: other options",
        ("output",),
        Edit("distributed.ddp.agreement", "in options.items()}}", "in ()}}"),
    ),
    Mutant(
        50, "wrappers of equal plans are told apart by nothing", "refusals", "careless: another order",
        ("output",),
        Edit("distributed.ddp.passes", "f\"{name}, plan {plan.id}\"", "plan.id"),
    ),
    Mutant(
        51, "two wrappers in one backward send as it comes", "buckets", "two wrappers",
        ("output", "stats", "timeline", "explain"),
        Edit("distributed.ddp.reducer", " or bool(self._company)", ""),
    ),
    Mutant(
        52, "gradients may stay behind when their parameters are frozen", "refusals", "careless: frozen late",
        ("output",),
        Edit(
            "distributed.ddp.reducer",
            "            check_frozen(self.comm.rank, self.layout, self._trainable, "
            "self.under_way.innermost.weighed)\n",
            "",
        ),
    ),
    Mutant(
        59, "nobody compares what is beside the model", "refusals", "careless: another rate",
        ("output",),
        Edit("distributed.ddp.alike", "if marks.count(max(marks)) + marks.count(0.0) >= len(marks):", "if True:"),
    ),
    Mutant(
        60, "options beside the model are not part of the mark", "refusals", "careless: another axis",
        ("output",),
        Edit("distributed.ddp.alike", "hash((self._options_number, *marks))", "hash((0, *marks))"),
    ),
    Mutant(
        61, "a difference beside the model is let pass", "refusals", "careless: other shapes",
        ("output",),
        Edit("distributed.comm.differences", "        if words:\n", "        if False:\n"),
    ),
    Mutant(
        95, "one bucket for all", "buckets", "unequal",
        ("stats", "timeline", "explain"),
        Edit(
            "distributed.ddp.buckets",
            "(new.stop - first.start) * new.itemsize <= cap",
            "(new.stop - first.start) * new.itemsize >= 0",
        ),
    ),
    Mutant(
        96, "a bucket for each parameter", "buckets", "frozen",
        ("stats", "timeline", "explain"),
        Edit("distributed.ddp.buckets", "if groups and _fits(entries, groups[-1], i, cap):", "if False:"),
    ),
    Mutant(
        97, "no bucket goes out before the end", "buckets", "unequal",
        ("stats", "timeline", "explain"),
        Edit(
            "distributed.ddp.passes",
            "        self._take(bucket)\n        if not self._deferred:",
            "        self._take(bucket)\n        if False:",
        ),
    ),
    Mutant(
        98, "each bucket waits for the one before", "buckets", "unequal",
        ("stats", "timeline", "explain"),
        Edit(
            "distributed.ddp.passes",
            "        self._works.append(work)\n        self.logbook.called(work, began_s, nbytes)",
            "        self._works.append(work)\n"
            "        work.wait()\n"
            "        self.logbook.called(work, began_s, nbytes)",
        ),
    ),
    Mutant(
        99, "the counts are waited for at once", "buckets", "unequal",
        ("stats", "timeline", "explain"),
        Edit(
            "distributed.ddp.passes",
            "            if not wait and not self.logbook.done(self._counting):\n",
            "            if False:\n",
        ),
    ),
    Mutant(
        100, "buckets by hand go out all at once", "buckets", "by hand",
        ("timeline",),
        Edit("distributed.ddp.reducer", "            if one_by_one:\n", "            if False:\n"),
    ),
    Mutant(
        101, "buckets by hand wait for each other", "buckets", "by hand",
        ("timeline",),
        Edit("distributed.ddp.reducer", "            if one_by_one:\n", "            if True:\n"),
    ),
    Mutant(
        102, "passes are counted twice", "accounts", "unequal",
        ("stats",),
        Edit("distributed.ddp.passes", "stats.passes += 1", "stats.passes += 2"),
    ),
    Mutant(
        103, "bytes of the last pass alone are counted", "accounts", "unequal",
        ("stats",),
        Edit("distributed.ddp.passes", "stats.bytes_sent += self._sent_bytes", "stats.bytes_sent = self._sent_bytes"),
    ),
    Mutant(
        104, "calls are not counted", "accounts", "unequal",
        ("stats",),
        Edit("distributed.ddp.passes", "        stats.calls += self._sent\n", ""),
    ),
    Mutant(
        105, "local backwards take no time", "accounts", "accumulated",
        ("stats",),
        Edit(
            "distributed.ddp.reducer",
            "            self.stats.backward_s += self.comm.clock.now_s() - self._began_s\n",
            "            pass\n",
        ),
    ),
)
