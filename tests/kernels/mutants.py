"""Typical bugs, to be planted into the real kernels, each with the test of tests/kernel_suite that has to see it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from minigrad.backend.kernels import kernel_source
from tests.kernel_suite import (
    activation,
    addresses,
    attention,
    bits,
    channel_norm,
    convolution,
    dropout,
    embedding,
    grad_scale,
    layer_norm as layer_norm_suite,
    norm,
    optimizer,
    pool,
    range_check,
    replicas,
    rows,
)

# Lines that make kernels of one dtype: for speed only those of float32 are kept.
_OTHER_DTYPES = re.compile(r"^[A-Z_]+\((?:f64|f16|bf16|8|16|64), .*\)$", re.MULTILINE)


class Mutant(NamedTuple):
    """One bug: what in the text of a kernel file is replaced by what, and the test that sees it."""

    name: str
    file: str
    old: str
    new: str
    test: Callable[[Any], None]

    def source(self) -> str:
        """The text with the bug; its first place where there are several."""
        text = reduced_source(self.file)
        assert self.old in text, f"{self.name}: {self.file} no longer holds {self.old!r}"
        return text.replace(self.old, self.new, 1)


def reduced_source(file: str) -> str:
    """A kernel file with its kernels for float32."""
    return _OTHER_DTYPES.sub("", kernel_source(file))


def pack(on: Any) -> None:
    with grad_scale.pytest.MonkeyPatch.context() as patch:
        grad_scale.test_pack(on, "f32", "bf16", 32, patch)


def scale(on: Any) -> None:
    grad_scale.test_scale(on, "f32", 0)


def scale_shifted(on: Any) -> None:
    grad_scale.test_scale(on, "f32", 1)


def zero_weight(on: Any) -> None:
    grad_scale.test_a_weight_of_zero_writes_zeros_even_over_nan(on, "f32")


def bad_value(on: Any) -> None:
    grad_scale.test_one_bad_value_is_seen_wherever_it_is(on, "f32", np.inf)


def overflow(on: Any) -> None:
    grad_scale.test_overflow_of_the_wire_sets_the_flag(on, "f16", 65504.0)


def squares(on: Any) -> None:
    norm.test_sum_of_squares(on, "f32", 0)


def sgd(options: str) -> Callable[[Any], None]:
    return lambda on: optimizer.test_sgd(on, "f32", optimizer.SGD[options])


def adam(options: str) -> Callable[[Any], None]:
    return lambda on: optimizer.test_adam(on, "f32", optimizer.ADAM[options])


def skipped_sgd(on: Any) -> None:
    optimizer.test_a_skipped_step_changes_nothing_and_does_not_count(on, optimizer.sgd_, 1, optimizer.SGD["momentum"])


def clocked_sgd(on: Any) -> None:
    optimizer.test_a_clock_takes_the_place_of_step_and_rate(on, optimizer.sgd_, 1, optimizer.SGD["momentum"])


def clocked_adam(on: Any) -> None:
    optimizer.test_a_clock_takes_the_place_of_step_and_rate(on, optimizer.adam_, 2, optimizer.ADAM["adamw"])


def skipped_adam(on: Any) -> None:
    optimizer.test_a_skipped_step_changes_nothing_and_does_not_count(on, optimizer.adam_, 2, optimizer.ADAM["adamw"])


def factor(on: Any) -> None:
    optimizer.test_gradients_are_multiplied_by_the_factor(on, "f32")


def masters(on: Any) -> None:
    optimizer.check_updates(on, optimizer.sgd_, optimizer.sgd_update, 1, optimizer.SGD["nesterov"], "f32", master=True)


def fresh_masters(on: Any) -> None:
    optimizer.test_a_master_starts_from_a_parameter_that_is_no_copy_of_it(
        on, optimizer.sgd_, 1, optimizer.SGD["momentum"], "f32"
    )


def replicas_in_pairs(on: Any) -> None:
    for count in (3, 5, 7):
        replicas.test_replicas_are_summed_in_pairs(on, "f32", count)


def replicas_shifted(on: Any) -> None:
    replicas.test_replicas_that_are_not_aligned(on, "f32")


def in_range(on: Any) -> None:
    range_check.test_one_that_is_too_large_or_too_small_is_found_wherever_it_is(on, "int64", 33)


def cross_entropy(on: Any) -> None:
    rows.test_cross_entropy_of_rows(on, "f32", True, 0.2)


def bad_label(on: Any) -> None:
    rows.test_a_label_that_is_no_class_gives_nan(on, 3)


def many(on: Any) -> None:
    grad_scale.test_as_many_arrays_as_there_are(on, 49)


def layer_norm(on: Any) -> None:
    for length in (33, 1000):
        layer_norm_suite.check(on, length, "f32", affine=True, centered=True)


def long_rows(on: Any) -> None:
    layer_norm_suite.check(on, 1032, "f32", affine=True, centered=True)


def rms_norm(on: Any) -> None:
    for length in (33, 1032):
        layer_norm_suite.check(on, length, "f32", affine=True, centered=False)


def many_rows(on: Any) -> None:
    layer_norm_suite.check(on, 36, "f32", affine=True, centered=True, rows=50)


def softmax(on: Any) -> None:
    attention.test_softmax_of_rows(on, "f32")


def masks(name: str, bools: bool) -> Callable[[Any], None]:
    return lambda on: attention.check_attention(on, "f32", name, True, bools, (33,))


def names(most_looks: int) -> Callable[[Any], None]:
    def test(on: Any) -> None:
        with grad_scale.pytest.MonkeyPatch.context() as patch:
            patch.setattr(embedding.embedding, "_MOST_LOOKS", most_looks)
            embedding.check_sums(on, "f32")
            embedding.check_skipped(on)

    return test


looking, sorting = names(2**40), names(0)


def wrapping(on: Any) -> None:
    for bad in (-1, 7, -8):
        embedding.test_an_index_out_of_range_wraps_around_and_is_kept(on, bad)


def channels(shape: str) -> Callable[[Any], None]:
    return lambda on: channel_norm.test_channels(on, shape, "f32")


def merged_by_a_block(on: Any) -> None:
    with channel_norm.pytest.MonkeyPatch.context() as patch:
        channel_norm.test_a_block_merges_what_is_many(on, "batch", patch)


def channels_shifted(on: Any) -> None:
    channel_norm.test_channels_without_gain_and_off_a_good_address(on, "f32")


def running(on: Any) -> None:
    channel_norm.test_running_statistics_move_and_batches_are_counted(on, "f32")


def live(on: Any) -> None:
    dropout.test_a_place_in_device_memory(on, dropout.COUNTERS[1])


def words(on: Any) -> None:
    for counter in dropout.COUNTERS:
        dropout.test_words_of_philox(on, counter)


def drop(on: Any) -> None:
    dropout.test_dropout_by_words(on, "f32", 0)


def columns(on: Any) -> None:
    convolution.test_columns(on, "f32")


def some_columns(on: Any) -> None:
    convolution.test_some_of_the_columns(on)


def pixels(on: Any) -> None:
    convolution.test_pixels(on, "f32", True)


def weight_pieces(on: Any) -> None:
    with convolution.pytest.MonkeyPatch.context() as patch:
        convolution.test_pieces_of_a_weight_are_added_in_order(on, "f32", 4, patch)


def fingerprint(on: Any) -> None:
    bits.test_fingerprint(on, "uint32", 0)


def activated(kind: str) -> Callable[[Any], None]:
    return lambda on: activation.test_an_activation_and_its_gradient(on, "f32", kind)


def biased(kind: str) -> Callable[[Any], None]:
    return lambda on: activation.test_a_bias_and_an_activation(on, "f32", kind)


def column_sums(on: Any) -> None:
    activation.test_columns_are_summed(on, "f32")


def largest(on: Any) -> None:
    for axes in pool.SLIDING:
        pool.test_the_largest_of_windows(on, "f32", axes)


def means(on: Any) -> None:
    for axes in (pool.SLIDING[1], pool.SLIDING[3], *pool.EVEN):
        pool.test_the_mean_of_windows(on, "f32", axes)


_BARRIER = "    __syncthreads();\n"
_WARPS_MEET = "            __syncthreads();\n#pragma unroll 1\n            for (int k = warp"
_WARPS_MEET_FIRST = "            __syncthreads();\n            for (int k = 0"

MUTANTS = [
    # common.cuh
    Mutant("a shuffle short", "norm", "distance > 0; distance /= 2", "distance > 1; distance /= 2", squares),
    Mutant("half a warp", "norm", "all_lanes = 0xffffffffu", "all_lanes = 0x0000ffffu", squares),
    Mutant("no barrier before", "cross_entropy", _BARRIER, "", cross_entropy),
    Mutant("no barrier after", "norm", "partial[warp] = x;\n" + _BARRIER, "partial[warp] = x;\n", squares),
    Mutant("a warp too many", "norm", "lane < warps ?", "lane <= warps ?", squares),
    Mutant("too little shared memory", "norm", "partial[max_warps]", "partial[2]", squares),
    Mutant("NaN loses", "norm", "x > y || x != x ? x : y", "x > y ? x : y",
           lambda on: norm.test_nan_and_infinity_win(on, 500)),
    # vector.cuh
    Mutant("one element too many", "grad_scale", "i < count; i += worker", "i <= count; i += worker", scale),
    Mutant("the rest forgotten", "grad_scale", "i = vectors * N + worker.index", "i = (vectors + 1) * N + worker.index",
           scale),
    Mutant("alignment not checked", "grad_scale", "% sizeof(Vector<T, N>) == 0", "% sizeof(T) == 0", scale_shifted),
    # grad_scale.cu
    Mutant("0 times NaN", "grad_scale", "weight == A(0) ? A(0) : ", "", zero_weight),
    Mutant("the last element decides", "grad_scale", "nonfinite |= !", "nonfinite = !", bad_value),
    Mutant("the last thread decides", "grad_scale", "if (flag && nonfinite) atomicOr(flag, 1u)",
           "if (flag) *flag = nonfinite", bad_value),
    Mutant("looks before the cast", "grad_scale", "found.add(mg::widen(out.at[k]))", "found.add(scaled)", overflow),
    Mutant("all arrays to one place", "grad_scale", "bucket + pieces.offsets[p] + start, count, factor",
           "bucket + pieces.offsets[0] + start, count, factor", pack),
    Mutant("a part of each chunk", "grad_scale", "mg::block_worker(), x", "mg::grid_worker(), x", pack),
    # pieces.cuh
    Mutant("chunks forgotten", "grad_scale", "c += gridDim.x", "c += 2 * gridDim.x", pack),
    Mutant("the last chunk too long", "grad_scale", "left < pieces.chunk ? left", "left < 0 ? left", pack),
    Mutant("every chunk begins at the first", "grad_scale", "start = (c - pieces.firsts[p]) * pieces.chunk",
           "start = 0", pack),
    Mutant("an array too late", "grad_scale", "pieces.firsts[p + 1] <= c", "pieces.firsts[p + 1] < c", many),
    Mutant("an array at a time", "grad_scale", "while (p + 1", "if (p + 1", many),
    Mutant("blocks overwrite each other", "grad_scale", "squares_of_blocks[blockIdx.x]", "squares_of_blocks[0]", scale),
    # norm.cu
    Mutant("some blocks forgotten", "norm", "i < count; i += blockDim.x) total",
           "i < blockDim.x; i += blockDim.x) total", squares),
    Mutant("no absolute value", "norm", "return fabs(x);", "return x;", lambda on: norm.test_largest(on, "f32")),
    # optimizer.cu
    Mutant("no first step", "optimizer", "first ? d : m.at[k]", "m.at[k]", sgd("momentum")),
    Mutant("nesterov the wrong way", "optimizer", "d + m.at[k] * kept : m.at[k]", "m.at[k] + d * kept : m.at[k]",
           sgd("nesterov")),
    Mutant("decay twice", "optimizer", "A(decoupled ? 0.0 : weight_decay)", "A(weight_decay)", adam("adamw")),
    Mutant("the old average", "optimizer", "p[k] -= m.at[k] / (sqrt(top.at[k])", "p[k] -= d / (sqrt(top.at[k])",
           adam("adam")),
    Mutant("skips nothing", "optimizer", "if (step.skipped) return;", "", skipped_sgd),
    Mutant("skipped steps count", "optimizer", "number -= static_cast<long long>(control[skipped_steps]);", "",
           skipped_adam),
    Mutant("no clock", "optimizer", "if (clock) lr = clock[learning_rate];", "", clocked_adam),
    Mutant("the step of the host", "optimizer", "clock ? static_cast<long long>(clock[attempts]) : attempt", "attempt",
           clocked_sgd),
    Mutant("the rate of the host", "optimizer", "A(clock ? clock[learning_rate] : lr)", "A(lr)", clocked_sgd),
    Mutant("rates of the host", "optimizer", "control || clock ? rates_of_step", "control ? rates_of_step",
           clocked_adam),
    Mutant("no factor", "optimizer", "gradient *= factor;", "", factor),
    Mutant("rates read too early", "optimizer", _BARRIER + "    return rates;", "    return rates;", factor),
    Mutant("no decrease of the scale", "optimizer", "if (bad) control[loss_scale] = scale * backoff;", "",
           optimizer.test_the_loss_scale_grows_and_shrinks),
    Mutant("masters stay", "optimizer", "if (master) mg::store<A", "if (!param) mg::store<A", masters),
    Mutant("masters of old", "optimizer", "if (mg::widen(mg::narrow<T>(wide.at[k])) == values[k]) ", "", fresh_masters),
    # reduce_replicas.cu
    Mutant("a carry lost", "reduce_replicas", "carries = carries && full;", "carries = false;", replicas_in_pairs),
    Mutant("the odd one first", "reduce_replicas", "index >> level & 1", "(index >> level & 1) && level < 1",
           replicas_in_pairs),
    Mutant("one replica written", "reduce_replicas", "r < replica_count; ++r) mg::store", "r < 1; ++r) mg::store",
           replicas_in_pairs),
    Mutant("the first alignment only", "reduce_replicas", "aligned<N>(replicas[r]);", "aligned<N>(replicas[0]);",
           replicas_shifted),
    # cross_entropy.cu
    Mutant("not rescaled", "cross_entropy", "total * exp(largest - x) + A(1)", "total + A(1)", cross_entropy),
    Mutant("lanes not rescaled", "cross_entropy", "total * exp(largest - all.largest)", "total", cross_entropy),
    Mutant("starts at 0", "cross_entropy", "A largest = lowest<A>()", "A largest = 0",
           rows.test_large_logits_do_not_overflow),
    Mutant("sums not shifted", "cross_entropy", "sum + mass * (from - to)", "sum", cross_entropy),
    Mutant("the first block reduces", "cross_entropy", "== gridDim.x - 1", "== 0",
           rows.test_the_last_block_reduces_the_losses_of_all),
    Mutant("blocks count on", "cross_entropy", "if (last) atomicExch(arrived, 0u);", "",
           rows.test_the_last_block_reduces_the_losses_of_all),
    Mutant("ignored labels kept", "cross_entropy", "found && !ignored && !valid", "found && !valid",
           rows.test_labels_that_are_classes_or_ignored_are_not_kept),
    Mutant("the label beside", "cross_entropy", "if (c == label)", "if (c == label + 1)", cross_entropy),
    Mutant("ignored rows pull", "cross_entropy", "ignored ? A(0) : value", "ignored ? value : value",
           rows.test_an_ignored_row_counts_for_nothing_even_if_it_is_nan),
    Mutant("any label is read", "cross_entropy", "label >= 0 && label < classes", "true", bad_label),
    Mutant("weights forgotten", "cross_entropy", "everywhere * mg::widen(weight[c])", "everywhere", cross_entropy),
    # layer_norm.cu
    Mutant("nothing to start from", "layer_norm", "return base ? mg::widen(base[i]) : A(0);", "return A(0);",
           layer_norm),
    Mutant("the mean left in", "layer_norm", "(value - mean) * (value - mean)", "value * value", layer_norm),
    Mutant("eps forgotten", "layer_norm", "variance + A(eps)", "variance", layer_norm),
    Mutant("warps without a barrier", "layer_norm", _WARPS_MEET, "            for (int k = warp", many_rows),
    Mutant("warps without the first barrier", "layer_norm", _WARPS_MEET_FIRST, "            for (int k = 0", many_rows),
    Mutant("one warp twice", "layer_norm", "int w = 1; w < warps; ++w) sum", "int w = 0; w < warps; ++w) sum",
           many_rows),
    Mutant("a vector beyond the row", "layer_norm", "if (at(v) >= length) continue;", "", many_rows),
    Mutant("parts overlap", "layer_norm", "(part + 1) * height < rows ? (part + 1) * height : rows",
           "(part + 1) * height < rows ? (part + 1) * height + 1 : rows", many_rows),
    Mutant("every row starts", "layer_norm", "row == part * all.height", "row >= part * all.height", long_rows),
    Mutant("the first part forgotten", "layer_norm", "long long part = warp; part < parts",
           "long long part = warp + 1; part < parts", many_rows),
    Mutant("rms norm with a mean", "layer_norm", "if (!all.means) sum = 0;", "", rms_norm),
    # columns.cuh
    Mutant("lanes of others", "channel_norm", "distance >= lanes", "distance > lanes", channels("batch")),
    Mutant("one warp of columns", "channel_norm", "for (int w = 1; w < warps; ++w)\n",
           "for (int w = 1; w < warps / 2; ++w)\n", channels("batch")),
    Mutant("sums read too early", "channel_norm", "values[k];\n" + _BARRIER, "values[k];\n", channels("batch")),
    Mutant("a column too far", "channel_norm", "return at(k) < total;", "return true;", channels("tiles")),
    Mutant("rows not aligned", "channel_norm", "columns % vector_length<T>() == 0 && aligned<vector_length<T>()>(x)",
           "columns % vector_length<T>() == 0", channels_shifted),
    # channel_norm.cu
    Mutant("squares about zero", "channel_norm", "values[k] - first[k]", "values[k]",
           lambda on: channel_norm.test_a_large_mean_costs_no_digit(on, "f32", "batch")),
    Mutant("squares about the first", "channel_norm", "square[k] -= sum[k] * shift;", "", channels("batch")),
    Mutant("threads apart", "channel_norm", "square[k] += (own[k] - mean[k])", "square[k] += 0 * (own[k] - mean[k])",
           channels("batch")),
    Mutant("parts apart", "channel_norm", "squares[run + i] + distance * distance *",
           "squares[run + i] + 0 * distance *",
           channels("group")),
    Mutant("parts of one height", "channel_norm", "part + 1 < parts ? height : length - part * height", "height",
           channels("group")),
    Mutant("what rounding took", "channel_norm", "((values[k] - mean[k]) - rest[k]) * scale[k]",
           "((values[k] - mean[k]) - 0 * rest[k]) * scale[k]",
           lambda on: channel_norm.test_a_large_mean_costs_no_digit(on, "f32", "batch")),
    Mutant("the next tile's statistics", "channel_norm", "        __syncthreads();\n        if (number == 0",
           "        if (number == 0", channels("tiles")),
    Mutant("written by each tile", "channel_norm", "return part == 0 && group * shape.inside >= first_channel();",
           "return true;", channels("layer")),
    Mutant("the biased variance runs", "channel_norm", "found.variance * unbiased * share",
           "found.variance * (0 * unbiased + 1) * share",
           running),
    Mutant("every block counts", "channel_norm", "number == 0 && threadIdx.x == 0", "threadIdx.x == 0", running),
    Mutant("a gain of another channel", "channel_norm", "gain[channel + i / shape.parts]", "gain[channel]",
           channels("group")),
    Mutant("no mean of the gradient", "channel_norm", " - total[k] - normal",
           " - 0 * total[k] - normal", channels("instance")),
    Mutant("the first part alone", "channel_norm", "i < shape.segments * shape.parts", "i < shape.segments",
           merged_by_a_block),
    # activation.cuh and activation.cu
    Mutant("infinity times 0", "activation", "y != A(0) ? grad : A(0)", "grad * A(y != A(0))",
           activation.test_relu_gives_nothing_of_an_infinite_gradient_where_it_is_0),
    Mutant("the cube's slope", "activation", "A(3 * inner * cubic)", "A(inner * cubic)", activated("gelu_tanh")),
    # bias.cu
    Mutant("a bias across rows", "bias", "length % N == 0 && ", "", biased("relu")),
    Mutant("rows forgotten", "bias", "row += lines)", "row += lines + 1)", column_sums),
    Mutant("sums without a barrier", "bias", "        __syncthreads();\n        if (line == 0",
           "        if (line == 0", column_sums),
    Mutant("sums without the second", "bias", "        __syncthreads();\n    }\n}", "    }\n}", column_sums),
    Mutant("parts one on the other", "bias", "parts[part * length + column] = sum", "parts[column] = sum", column_sums),
    Mutant("no mean", "bias", "sum * A(scale)", "sum",
           lambda on: activation.test_means_of_groups_of_rows(on, "f32")),
    # pool.cu
    Mutant("padding is read", "pool", "if (column < 0 || ", "if (", largest),
    Mutant("the last of equals", "pool", "value > best[k] ||", "value >= best[k] ||", largest),
    Mutant("the last NaN", "pool", "(value != value && best[k] == best[k])", "value != value",
           pool.test_the_first_nan_is_the_largest),
    Mutant("between the strides", "pool", "left % wide.stride || ", "", largest),
    Mutant("a window before", "pool", "(place + before - kernel) / stride + 1", "(place + before - kernel) / stride",
           means),
    Mutant("regions that do not overlap", "pool", "outputs + length - 1) / length) - 1", "outputs) / length)", means),
    # dropout.cu
    Mutant("nine rounds", "dropout", "round < 10", "round < 9", words),
    Mutant("no carry", "dropout", "carry = counter.at[i] < carry;", "carry = 0;", words),
    Mutant("one key", "dropout", "key1 += weyl1", "key1 += weyl0", words),
    Mutant("bits of a neighbour", "dropout", ">> (16 * k) &", ">> (8 * k) &", drop),
    Mutant("forgets words that wait", "dropout", "(words + 3 - waiting) / 4", "(words + 3) / 4", live),
    Mutant("waits for the wrong ones", "dropout", "waiting + 4 * blocks - words", "4 * blocks - words", live),
    Mutant("words of elsewhere", "dropout", "b < 0 && !is_moved ? drawn", "b < 0 ? drawn", live),
    Mutant("a vector too many", "dropout", "wide && i + per_word <= count", "wide && i < count", drop),
    # addresses.cu
    Mutant("inner for outer", "addresses", "place / inner_count * outer", "place / outer_count * outer",
           lambda on: addresses.test_addresses_of_matrices(on, 3, (2, 3))),
    Mutant("one array for all", "addresses", "starts[array]", "starts[0]",
           lambda on: addresses.test_addresses_of_matrices(on, 3, (2, 3))),
    # softmax.cu
    Mutant("no logarithm", "softmax", "logs ? value - log_total : exp(value)",
           "logs ? value - 0 * log_total : exp(value)", softmax),
    Mutant("the gradient of one for both", "softmax", "sum += logs ? value : value *", "sum += value *", softmax),
    Mutant("the total forgotten", "softmax", "exp(value) / all.total", "exp(value)", softmax),
    # attention.cu
    Mutant("no row of nothing", "attention", "all.total == A(0) ? A(1) : all.total", "all.total",
           attention.test_attention_of_what_is_not_finite),
    Mutant("sees the next", "attention", "key > query ?", "key > query + 1 ?", masks("none", True)),
    Mutant("hidden is seen", "attention", "!mask.seen[", "mask.seen[", masks("of_keys", True)),
    Mutant("one batch for all", "attention", "batch / mask.inner * mask.steps[0]", "0", masks("of_a_batch", True)),
    Mutant("one head for all", "attention", "batch % mask.inner * mask.steps[1]", "0", masks("of_heads", False)),
    Mutant("one query for all", "attention", "query * mask.steps[2]", "0", masks("of_queries_and_keys", False)),
    Mutant("one key for all", "attention", "place + key * mask.steps[3]];\n        return", "place];\n        return",
           masks("of_keys", False)),
    Mutant("no factor of attention", "attention", "x *= factor;", "", masks("none", True)),
    Mutant("factor in both", "attention", "(found.at[k] - sum) *", "A(factor) * (found.at[k] - sum) *",
           masks("none", True)),
    # embedding.cu
    Mutant("no wrap", "embedding", "return rest < 0 ? rest + length : rest", "return rest", wrapping),
    Mutant("a bad index passes", "embedding", "Team::leads() && name != place", "Team::leads() && name > place",
           wrapping),
    Mutant("one lane on", "embedding", "__ffs(static_cast<int>(left)) - 1", "__ffs(static_cast<int>(left))", looking),
    Mutant("bits of lanes beyond", "embedding", "first + lane < count && wrapped", "wrapped", looking),
    Mutant("one row of a warp", "embedding", "left; left &= left - 1", "left; left = 0", looking),
    Mutant("nothing skipped", "embedding", "name == skipped ? 0 : count", "count", looking),
    Mutant("sums that are not there yet", "embedding", "    partial[warp][lane] = sum;\n    __syncthreads();\n",
           "    partial[warp][lane] = sum;\n", looking),
    Mutant("each of a run begins it", "embedding", " || (first > 0 && index[order[first - 1]] == name)", "", sorting),
    Mutant("runs run on", "embedding", "i < count && index[order[i]] == name", "i < count", sorting),
    Mutant("in no order", "embedding", "rows[order[i] * width + column]", "rows[i * width + column]", sorting),
    # fingerprint.cu
    Mutant("counts from 0", "fingerprint", "static_cast<Word>(first + k) + 1)", "static_cast<Word>(first + k))",
           fingerprint),
    Mutant("blocks add at once", "fingerprint", "atomicAdd(total, sum)", "*total += sum", fingerprint),
    # range_check.cu
    Mutant("the end allowed", "range_check", "value < high", "value <= high", in_range),
    Mutant("all found at once", "range_check", "atomicCAS(&found[flagged], 0ull, 1ull) == 0ull", "(found[flagged] = 1)",
           range_check.test_value_and_range_are_of_one_launch),
    Mutant("the last kept", "range_check", "0ull, 1ull) == 0ull", "0ull, 1ull) <= 1ull",
           range_check.test_the_first_launch_that_found_something_is_kept),
    # convolution.cu
    Mutant("no padding", "convolution", "y_of < at.height && 0 <= x_of", "0 <= x_of", columns),
    Mutant("the stride of the other axis", "convolution", "cut(rest, at.out_height) * at.stride_y",
           "cut(rest, at.out_height) * at.stride_x", columns),
    Mutant("the first group for all", "convolution", "cut(rest, at.groups) * inside + offset",
           "cut(rest, at.groups) * 0 + offset", columns),
    Mutant("rows from the start", "convolution", "rest += static_cast<I>(first);", "", some_columns),
    Mutant("an image that is not aligned", "convolution", "mg::aligned<N>(x) && ", "", some_columns),
    Mutant("a weight as it lies", "convolution", "turned[i] = weight[(rest * inside + channel) * taps + tap]",
           "turned[i] = weight[(rest * taps + tap) * inside + channel]", columns),
    Mutant("a window between two", "convolution", "stride > 1 && start % stride", "false", pixels),
    Mutant("the last tap alone", "convolution", "total[k] += mg::widen(seen.at[k])", "total[k] = mg::widen(seen.at[k])",
           pixels),
    Mutant("a piece forgotten", "convolution", "int part = 1; part < count", "int part = 2; part < count",
           weight_pieces),
    Mutant("the sum so far forgotten", "convolution", "else parts[i] = sum;", "", weight_pieces),
]
