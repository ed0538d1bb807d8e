"""How gradients are combined: weights, samples, sums, what is left out."""

from minigrad.testing.mutants.edit import Edit
from minigrad.testing.mutants.mutant import Mutant

PLANTED = (
    Mutant(
        1, "the samples of the last micro-batch count alone", "samples", "accumulated",
        ("loss", "twin", "explain"),
        Edit("distributed.ddp.own", "self.samples += sum(samples)", "self.samples = sum(samples)"),
    ),
    Mutant(
        2, "samples are never forgotten", "samples", "accumulated",
        ("twin", "explain"),
        Edit(
            "distributed.ddp.own",
            "self.samples, self.weighed, self.combined, self.spoilt = 0.0, False, True, False",
            "self.combined, self.spoilt = True, False",
        ),
    ),
    Mutant(
        3, "a combined gradient is not known as one", "samples", "careless: summed twice",
        ("output",),
        Edit(
            "distributed.ddp.own",
            "self.samples, self.weighed, self.combined, self.spoilt = 0.0, False, True, False",
            "self.samples, self.weighed, self.spoilt = 0.0, False, False",
        ),
    ),
    Mutant(
        4, "no_sync is ignored", "samples", "accumulated",
        ("loss", "twin", "stats", "timeline", "explain"),
        Edit("distributed.ddp.reducer", "if not self.syncing:", "if False:"),
    ),
    Mutant(
        7, "an unused parameter is refused where it is allowed", "unused", "unused",
        ("output", "stats", "timeline", "explain"),
        Edit("distributed.ddp.reducer", "self._start(reached, not find_unused, ", "self._start(reached, True, "),
    ),
    Mutant(
        8, "a bucket waits for its unused parameters", "unused", "unused",
        ("output", "stats", "timeline", "explain"),
        Edit("distributed.ddp.reducer", "whole else missing)", "whole else missing[1:])"),
    ),
    Mutant(
        9, "nobody looks which parameters are used", "unused", "unused",
        ("stats", "timeline", "explain"),
        Edit("distributed.ddp.reducer", "if self.options.find_unused:\n", "if False:\n"),
    ),
    Mutant(
        10, "old gradients of missing parameters are sent", "old gradients", "unused",
        ("twin",),
        Edit("distributed.ddp.passes", "buckets.layout.filled(bucket)", "buckets.layout.gradients(bucket)"),
    ),
    Mutant(
        11, "gradients are not weighted", "weights", "unequal",
        ("loss", "twin"),
        Edit("distributed.ddp.passes", " and self._own.mean and not self._weighted:", " and False:"),
    ),
    Mutant(
        12, "sums are weighted too", "weights", "sums",
        ("loss", "twin"),
        Edit("distributed.ddp.passes", " and self._own.mean and not self._weighted:", " and not self._weighted:"),
    ),
    Mutant(
        13, "what is weighted already is weighted again", "weights", "bitwise",
        ("loss",),
        Edit("distributed.ddp.passes", " and self._own.mean and not self._weighted:", " and self._own.mean:"),
    ),
    Mutant(
        14, "the weight is dropped where there is a factor", "precision", "predivided",
        ("loss", "twin"),
        Edit("distributed.ddp.hooks", "self._weight if factor == 1.0 else self._weight * factor", "self._weight"),
    ),
    Mutant(
        15, "the sum is weighted too", "weights", "predivided",
        ("loss", "fingerprint", "twin"),
        Edit("distributed.ddp.hooks", "        self._weight = None\n        if wire", "        if wire"),
    ),
    Mutant(
        16, "buckets go out before they are complete", "reduction", "unequal",
        ("output", "stats", "timeline", "explain"),
        Edit("distributed.ddp.passes", "while len(self._works) < until and", "while not self._works or"),
    ),
    Mutant(
        17, "the last bucket stays at home", "reduction", "unequal",
        ("output", "stats", "timeline", "explain"),
        Edit(
            "distributed.ddp.passes",
            "until = len(self._pending) if until is None else until",
            "until = max(1, len(self._pending) - 1)",
        ),
    ),
    Mutant(
        18, "backward does not wait for its buckets", "reduction", "unequal",
        ("loss", "fingerprint", "twin", "stats", "timeline", "explain"),
        Edit(
            "distributed.ddp.passes",
            "            self._wait()\n        self._adopt()\n",
            "        self._adopt()\n",
        ),
    ),
    Mutant(
        19, "the combined gradient of a parameter without one is dropped", "reduction", "unequal",
        ("output", "fingerprint", "twin", "stats"),
        Edit(
            "distributed.ddp.passes",
            "            adopt_gradients([layout.params[i] for i in reduced])\n",
            "            pass\n",
        ),
    ),
    Mutant(
        32, "freezing makes no new plan", "unused", "frozen",
        ("output", "stats", "timeline", "explain"),
        Edit("distributed.ddp.reducer", "if trainable != self._trainable:", "if False:"),
    ),
    Mutant(
        33, "a bucket is ready one gradient early", "reduction", "unequal",
        ("fingerprint", "twin", "stats", "timeline", "explain"),
        Edit(
            "distributed.ddp.passes",
            "self._pending[len(self._works)] == 0",
            "self._pending[len(self._works)] <= 1",
        ),
    ),
    Mutant(
        35, "each rank counts as much", "weights", "unequal",
        ("loss", "twin"),
        Edit("distributed.ddp.passes", "weight_of(self.samples, self.total)", "1 / self._comm.world_size"),
    ),
    Mutant(
        36, "the weight is that of the others", "weights", "unequal",
        ("loss", "twin"),
        Edit(
            "distributed.ddp.passes",
            "weight_of(self.samples, self.total)",
            "weight_of(self.total - self.samples, self.total)",
        ),
    ),
    Mutant(
        42, "gradients are scaled in a copy", "weights", "unequal",
        ("loss", "twin"),
        Edit("backend.fused.grad_scale", "_scale_to(x, x, weight", "_scale_to(x.copy(), x, weight"),
    ),
    Mutant(
        43, "a bucket begins one element late", "reduction", "unequal",
        ("fingerprint", "twin", "stats", "timeline", "explain"),
        Edit("distributed.ddp.layout", "[bucket.start : bucket.stop]", "[bucket.start + 1 : bucket.stop]"),
    ),
    Mutant(
        44, "frozen parameters are in buckets", "unused", "frozen",
        ("output", "stats", "timeline", "explain"),
        Edit("distributed.ddp.layout", "buffer.dtype.itemsize, param.requires_grad)", "buffer.dtype.itemsize, True)"),
    ),
    Mutant(
        45, "present gradients are zeroed, missing ones sent", "reduction", "unequal",
        ("loss", "twin"),
        Edit("nn.flat", "        if param.grad_array is None:", "        if param.grad_array is not None:"),
    ),
    Mutant(
        47, "a bucket lacks its last parameter", "reduction", "frozen",
        ("fingerprint", "twin", "stats", "timeline", "explain"),
        Edit(
            "distributed.ddp.buckets",
            "first.buffer, first.start, last.stop, tuple(group)",
            "first.buffer, first.start, max(first.stop, last.start), tuple(group)",
        ),
    ),
    Mutant(
        53, "a backward counts the forwards that it does not reach", "samples", "accumulated",
        ("twin", "explain"),
        Edit("distributed.ddp.own", "after < len(numbers) and numbers[after] < ended", "True"),
    ),
    Mutant(
        54, "samples of gradients that were dropped count on", "samples", "dropped",
        ("twin", "explain"),
        Edit(
            "distributed.ddp.own",
            "if self.weighed or self.spoilt or not self.mean or not any(samples):",
            "if False:",
        ),
    ),
    Mutant(
        55, "a hook's sum is not written back", "reduction", "predivided",
        ("loss", "fingerprint", "twin"),
        Edit("distributed.ddp.hooks", "        self._bucket.unpack(self._wire, self._factor)\n", ""),
    ),
    Mutant(
        56, "what was divided is not multiplied", "precision", "predivided",
        ("loss", "twin"),
        Edit("distributed.ddp.hooks", "bucket, wire, 1.0 / factor)", "bucket, wire, 1.0)"),
    ),
    Mutant(
        58, "the odd rank out is left out of sums", "reduction", "unequal",
        ("loss", "twin"),
        Edit("distributed.collectives", "while stride < len(values):", "while 2 * stride <= len(values):"),
    ),
    Mutant(
        75, "zeroed gradients are kept", "old gradients", "accumulated",
        ("loss", "twin"),
        Edit(
            "optim.optimizer",
            "        zero_gradients(f\"{self.name}.zero_grad\", self.params(), set_to_none)",
            "        return",
        ),
    ),
    Mutant(
        88, "the last sum of shards is lost", "reduction", "bitwise",
        ("loss",),
        Edit(
            "distributed.ddp.bitwise",
            "for level in self._levels[:carries]:",
            "for level in self._levels[:carries - last]:",
        ),
    ),
    Mutant(
        93, "replicas begin apart", "reduction", "joined",
        ("loss", "fingerprint", "timeline", "explain"),
        Edit("distributed.ddp.parallel", "values in self.reducer.layout.values()]", "values in ()]"),
    ),
    Mutant(
        117, "samples are counted along another axis", "samples", "unequal",
        ("loss", "twin", "stats", "timeline", "explain"),
        Edit("distributed.ddp.parallel", "return float(value.shape[axis])", "return float(value.shape[-1])"),
    ),
    Mutant(
        118, "gradients are added up unweighted", "weights", "without wrapper",
        ("loss", "twin"),
        Edit("distributed.ddp.combine", "weight = as_weight(gradients, weight_of(samples, total))", "weight = None"),
    ),
    Mutant(
        119, "who asks for an average gets its own gradients", "reduction", "without wrapper",
        ("loss", "fingerprint", "twin"),
        Edit("distributed.ddp.combine", "    for work in works:\n        work.wait()\n", ""),
    ),
    Mutant(
        120, "weights are those of the other ranks", "weights", "without wrapper",
        ("loss", "twin"),
        Edit(
            "distributed.ddp.combine",
            "return samples / total if total else 0.0",
            "return (total - samples) / total if total else 0.0",
        ),
    ),
    Mutant(
        122, "the sum reaches the first rank alone", "reduction", "without wrapper",
        ("loss", "fingerprint", "twin"),
        Edit(
            "distributed.collectives",
            "    total = reduced(arrays, op)\n    for array in arrays:",
            "    total = reduced(arrays, op)\n    for array in arrays[:1]:",
        ),
    ),
    Mutant(
        123, "a weight is rounded to a tenth", "weights", "unequal",
        ("twin",),
        Edit(
            "distributed.ddp.combine",
            "return samples / total if total else 0.0",
            "return round(samples / total, 1) if total else 0.0",
        ),
    ),
)
