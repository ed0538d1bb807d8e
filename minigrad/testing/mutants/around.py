"""What is around it: buffers, data, optimizers, loss scales, seeds, averages, parts by speed."""

from minigrad.testing.mutants.edit import Edit
from minigrad.testing.mutants.mutant import Mutant

PLANTED = (
    Mutant(
        20, "buffers are left alone", "buffers", "statistics",
        ("fingerprint", "stats", "timeline", "explain"),
        Edit("distributed.ddp.reducer", "self.after_pass(one.active_ranks)\n", "pass\n"),
    ),
    Mutant(
        57, "buffers come from nobody in particular", "buffers", "statistics",
        ("fingerprint",),
        Edit(
            "distributed.ddp.upkeep",
            "self._booked.broadcast(piece.pack(), root)",
            "self._booked.broadcast(0 * piece.pack(), root)",
        ),
    ),
    Mutant(
        62, "join hands on the parameters alone", "joining", "joined",
        ("output", "stats", "timeline", "explain"),
        Edit(
            "distributed.ddp.join",
            "                hand_over(\"join(also=)\", comm, reducer.last_active[0], also)\n",
            "",
        ),
    ),
    Mutant(
        63, "momentum is forgotten", "optimizer", "unequal",
        ("loss",),
        Edit("optim.sgd", "momentum_buffer *= decay", "momentum_buffer *= 0"),
    ),
    Mutant(
        64, "the step goes uphill", "optimizer", "unequal",
        ("loss",),
        Edit("optim.sgd", "    param -= change\n", "    param += change\n"),
    ),
    Mutant(
        65, "weight decay is left out", "optimizer", "unequal",
        ("loss",),
        Edit(
            "optim.sgd",
            "direction = descent_gradient(param, grad, weight_decay, maximize, out=change)",
            "direction = descent_gradient(param, grad, 0.0, maximize, out=change)",
        ),
    ),
    Mutant(
        66, "the first steps of Adam are not corrected", "optimizer", "accumulated",
        ("loss",),
        Edit("optim.adam", "root = math.sqrt(1 - beta2**step)", "root = 1.0"),
    ),
    Mutant(
        67, "decay is no longer decoupled", "optimizer", "unused",
        ("loss",),
        Edit("optim.adam", "if weight_decay and decoupled_weight_decay:", "if False:"),
    ),
    Mutant(
        68, "nothing is clipped", "optimizer", "unequal",
        ("loss",),
        Edit(
            "nn.clip",
            "factor = xp.minimum(max_norm / (norm + 1e-6), 1.0)",
            "factor = xp.minimum(1.0, max_norm + 1.0)",
        ),
    ),
    Mutant(
        69, "the schedule stands still", "optimizer", "unequal",
        ("loss",),
        Edit(
            "optim.scheduler",
            "self._apply(self.last_step + 1 if epoch is None else epoch, self.base_lrs)",
            "self._apply(self.last_step if epoch is None else epoch, self.base_lrs)",
        ),
    ),
    Mutant(
        70, "the loss scale never shrinks", "loss scale", "halves",
        ("output",),
        Edit(
            "backend.fused.optimizer",
            "next_scale = scale * backoff_factor if bad else scale",
            "next_scale = scale",
        ),
    ),
    Mutant(
        71, "the loss scale never grows", "loss scale", "halves",
        ("output",),
        Edit("backend.fused.optimizer", "if good >= growth_interval:", "if False:"),
    ),
    Mutant(
        72, "a step that overflowed is made", "loss scale", "halves",
        ("output", "loss", "twin"),
        Edit("optim.optimizer", "if control is None or on_device or not has_skipped(control):", "if True:"),
    ),
    Mutant(
        73, "gradients stay scaled", "loss scale", "halves",
        ("output", "loss", "twin"),
        Edit(
            "optim.scaler",
            "inverse = 1.0 / self._control_on(device)[LOSS_SCALE : LOSS_SCALE + 1]",
            "inverse = self._control_on(device)[LOSS_SCALE : LOSS_SCALE + 1] ** 0",
        ),
    ),
    Mutant(
        74, "the loss is not scaled", "loss scale", "halves",
        ("loss", "twin"),
        Edit(
            "optim.scaler",
            "scale = self._control_on(loss.device)[LOSS_SCALE].astype(loss.dtype)",
            "scale = self._control_on(loss.device)[LOSS_SCALE].astype(loss.dtype) ** 0",
        ),
    ),
    Mutant(
        76, "every rank reads the first rank's part", "data", "data order",
        ("output", "loss"),
        Edit(
            "data.order",
            "places = np.arange(rank, each * world_size, world_size)",
            "places = np.arange(0, each * world_size, world_size)",
        ),
    ),
    Mutant(
        77, "each rank shuffles by itself", "data", "data order",
        ("output", "loss"),
        Edit(
            "data.sampler",
            "return permutation(self.length, self.seed, epoch)[self._places]",
            "return permutation(self.length, self.seed + self.rank, epoch)[self._places]",
        ),
    ),
    Mutant(
        78, "every epoch has one order", "data", "data order",
        ("output", "loss"),
        Edit(
            "data.sampler",
            "return permutation(self.length, self.seed, epoch)[self._places]",
            "return permutation(self.length, self.seed, 0)[self._places]",
        ),
    ),
    Mutant(
        79, "the epoch is not counted", "data", "data order",
        ("output", "loss"),
        Edit("data.sampler", "self.epoch += 1", "self.epoch += 0"),
    ),
    Mutant(
        80, "an exact part lacks its last sample", "data", "evaluated",
        ("output",),
        Edit(
            "data.order",
            "return np.arange(rank, length, world_size)",
            "return np.arange(rank, length - length % world_size, world_size)",
        ),
    ),
    Mutant(
        81, "what is dropped is read", "data", "evaluated",
        ("output",),
        Edit("data.order", "else length // world_size\n    places", "else -(-length // world_size)\n    places"),
    ),
    Mutant(
        82, "what is left after rounding goes to nobody", "data", "evaluated",
        ("output",),
        Edit("data.order", "        counts[i] += 1\n", "        pass\n"),
    ),
    Mutant(
        83, "statistics are those of one rank", "buffers", "synchronised",
        ("loss", "stats", "timeline", "explain"),
        Edit(
            "distributed.ddp.syncbn",
            "merge_moments(_gathered(layer.comm, own))",
            "merge_moments(own.reshape(1, -1))",
        ),
    ),
    Mutant(
        84, "SyncBatchNorm's backward asks nobody", "buffers", "synchronised",
        ("loss", "stats", "timeline", "explain"),
        Edit("distributed.ddp.syncbn", "    layer.comm.all_reduce(sums, layout=\"SyncBatchNorm\").wait()\n", ""),
    ),
    Mutant(
        85, "parts of any size count alike", "buffers", "synchronised",
        ("loss",),
        Edit(
            "ops.statistics",
            "mean = (counts * means).sum(axis=0) / xp.maximum(count, 1.0)",
            "mean = means.mean(axis=0)",
        ),
    ),
    Mutant(
        86, "the mean's error is left out", "buffers", "synchronised",
        ("loss",),
        Edit(
            "distributed.ddp.syncbn",
            "rest = (center.astype(np.float64) - mean).astype(dtype)",
            "rest = (0.0 * center.astype(np.float64)).astype(dtype)",
        ),
    ),
    Mutant(
        87, "shards of all ranks draw the same noise", "seeds", "bitwise",
        ("loss", "timeline", "explain"),
        Edit("distributed.ddp.bitwise", "self._comm.rank * len(shards) + i, number", "i, number"),
    ),
    Mutant(
        89, "each rank takes its buffers from the next", "buffers", "statistics",
        ("output", "stats", "timeline", "explain"),
        Edit(
            "distributed.ddp.upkeep",
            "self._make_alike(active_ranks[0], averages",
            "self._make_alike(active_ranks[self._comm.rank], averages",
        ),
    ),
    Mutant(
        90, "buffers are never averaged", "buffers", "averaged statistics",
        ("stats", "timeline", "explain"),
        Edit(
            "distributed.ddp.upkeep",
            "            if averages and is_float(piece.dtype)\n",
            "            if False\n",
        ),
    ),
    Mutant(
        91, "buffers are combined a step early", "buffers", "averaged statistics",
        ("fingerprint", "timeline", "explain"),
        Edit("distributed.ddp.upkeep", "passes % self._every == 0", "passes % self._every == 1"),
    ),
    Mutant(
        92, "buffers are combined in every step", "buffers", "averaged statistics",
        ("stats", "timeline", "explain"),
        Edit("distributed.ddp.upkeep", "passes % self._every == 0", "True"),
    ),
    Mutant(
        94, "an average is a sum", "buffers", "averaged statistics",
        ("twin",),
        Edit("distributed.collectives", "        total /= len(arrays)\n", "        pass\n"),
    ),
    Mutant(
        106, "who leaves keeps its own parameters", "joining", "joined",
        ("loss", "fingerprint", "timeline", "explain"),
        Edit("distributed.ddp.join", "                broadcast_parameters(reducer.last_active[0])\n", ""),
    ),
    Mutant(
        107, "who leaves helps in one pass more only", "joining", "joined",
        ("output", "stats", "timeline", "explain"),
        Edit(
            "distributed.ddp.join",
            "            while reducer.combine(\"join\", has_data=False).active_ranks:\n                pass\n",
            "            reducer.combine(\"join\", has_data=False)\n",
        ),
    ),
    Mutant(
        108, "ranks count alike in an average of parameters", "averaging", "local steps",
        ("loss",),
        Edit(
            "distributed.average.travelling",
            "weight = xp.full(1, samples / SCALE, np.float64)",
            "weight = xp.full(1, 1.0 / SCALE, np.float64)",
        ),
    ),
    Mutant(
        109, "the last step's samples count alone", "averaging", "local steps",
        ("loss",),
        Edit(
            "distributed.average.averager",
            "[before + samples for before in self._samples]",
            "[samples for before in self._samples]",
        ),
    ),
    Mutant(
        110, "the period is a step too long", "averaging", "local steps",
        ("loss", "timeline", "explain"),
        Edit("distributed.average.policies", "due = made.batches >= self.k\n", "due = made.batches > self.k\n"),
    ),
    Mutant(
        111, "the slow momentum is forgotten", "averaging", "local steps",
        ("loss",),
        Edit("distributed.average.outer", "velocity = state[\"velocity\"] * momentum + change", "velocity = change"),
    ),
    Mutant(
        112, "waiting passes for computing", "balance", "balanced",
        ("output", "loss", "stats", "timeline", "explain"),
        Edit(
            "distributed.balance.meter",
            "return (self.whole_s or 0.0) - self.waited_s",
            "return self.whole_s or 0.0",
        ),
    ),
    Mutant(
        113, "two ranks work on one sample", "balance", "balanced",
        ("loss",),
        Edit("distributed.balance.balancer", "start = sum(sizes[:rank])", "start = sum(sizes[:rank]) - (rank > 0)"),
    ),
    Mutant(
        114, "the first division is never changed", "balance", "balanced",
        ("output", "loss", "stats", "timeline", "explain"),
        Edit("distributed.balance.balancer", "if self.balance.config.is_due(self.balance.step + 1):", "if False:"),
    ),
    Mutant(
        115, "all ranks draw the same noise", "seeds", "statistics",
        ("loss",),
        Edit("backend.random", "self.noise = _philox(seed, 1 + noise_key)", "self.noise = _philox(seed, 1)"),
    ),
    Mutant(
        116, "each rank draws its own weights", "seeds", "without wrapper",
        ("loss", "fingerprint", "twin"),
        Edit(
            "backend.random",
            "_streams.set(Streams(seed, streams.noise_key if streams is not None else 0))",
            "_streams.set(Streams(seed + streams.noise_key if streams is not None else seed, streams.noise_key if "
            "streams is not None else 0))",
        ),
    ),
    Mutant(
        121, "a broadcast leaves the last rank out", "buffers", "statistics",
        ("fingerprint", "twin"),
        Edit(
            "distributed.collectives",
            "        if array is not arrays[root]:",
            "        if array is not arrays[root] and array is not arrays[-1]:",
        ),
    ),
)
