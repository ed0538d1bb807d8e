"""What users of torchmetrics, torchft, Lightning and PyTorch's model averaging type runs, or says what to write."""

import pytest

from minigrad import Trainer, metrics, tensor
from minigrad.distributed import SoloCommunicator, average
from minigrad.distributed.average import DiLoCo, EveryK, PostLocalSGD, SlowMo, StreamingDiLoCo
from minigrad.errors import AbsentNameError, ArgumentError, CallError
from minigrad.train import Accuracy, Checkpoint, Mean, MetricCollection, RunConfig

SOLO = SoloCommunicator()


def test_other_names_of_what_is_here():
    assert EveryK(period=4) == EveryK(sync_every=4) == EveryK(4) == EveryK(4, warmup_steps=0)
    assert PostLocalSGD(start_localSGD_iter=10, period=4) == PostLocalSGD(switch=10, k=4)
    assert SlowMo(slowmo_factor=0.6, slowmo_lr=0.9) == SlowMo(momentum=0.6, lr=0.9)
    renamed = StreamingDiLoCo(fragments=2, fragment_sync_delay=1, fragment_update_alpha=0.5)
    assert renamed == StreamingDiLoCo(fragments=2, delay=1, alpha=0.5)
    mean, accuracy = Mean(dist_sync_on_step=False, sync_on_compute=True), Accuracy(task="multiclass", num_classes=3)
    mean.update(2.0, weight=3)
    accuracy.update(preds=tensor([1, 2]), target=tensor([1, 0]))
    assert (mean.result(SOLO), accuracy.result(SOLO)) == (2.0, 0.5)
    Accuracy(top_k=1, average="micro")


FOUR, SIZES = (len, len, len, [1, 2]), {"batch_size": 2, "max_epochs": 1}


def test_epochs_and_folders_have_the_names_of_lightning_too():
    config = RunConfig(*FOUR, batch_size=2, max_epochs=3, gradient_clip_val=0.5, accumulate_grad_batches=1)
    assert (config.epochs, config.max_grad_norm, Checkpoint(dirpath="/run").dir.name) == (3, 0.5, "run")


@pytest.mark.parametrize("call, error, words", [
    (lambda: Accuracy(task="binary"), ArgumentError, "expected no task, got 'binary': write accuracy.update.x > 0, la"),
    (lambda: Accuracy(top_k=5), ArgumentError, "expected no top_k, got 5: write accuracy.update.fraction, n"),
    (lambda: Accuracy(average="macro"), ArgumentError, "got 'macro': it is that over all samples"),
    (lambda: Mean(nan_strategy="ignore"), ArgumentError, "Mean: expected no nan_strategy, .* met a NaN is NaN"),
    (lambda: Mean(dist_sync_on_step=True), ArgumentError, "write result.comm. where all ranks are to meet"),
    (lambda: Mean(sync_on_compute=False), ArgumentError, "write result.SoloCommunicator"),
    (lambda: Mean()(1.0), CallError, "Mean: expected update.value, n., and result.comm. .*, got a call"),
    (lambda: Mean().compute(), AbsentNameError, "Metric: .* 'compute': write result.comm., which all ranks call"),
    (lambda: Accuracy().to("cuda"), AbsentNameError, "Metric: .* 'to': leave it out"),
    (lambda: MetricCollection({}).update(1.0), AbsentNameError, "write metrics.name..update.value, n."),
    (lambda: DiLoCo(0.7, sync_every=20), ArgumentError, "write ParameterAverager.model, comm, EveryK.sync"),
    (lambda: SlowMo(sync_every=20), ArgumentError, "expected no sync_every, got 20"),
    (lambda: StreamingDiLoCo(sync_every=20), ArgumentError, "expected no sync_every, got 20"),
    (lambda: DiLoCo(outer_optimizer=None), ArgumentError, "got None: write its lr and momentum"),
    (lambda: StreamingDiLoCo(outer_optimizer=None), ArgumentError, "got None: write its lr and momentum"),
    (lambda: EveryK(4, warmup_steps=9), ArgumentError, "got 9: write PostLocalSGD.switch, k., which begins apart"),
    (lambda: average.PeriodicModelAverager, AbsentNameError, "average.EveryK.period.., and averager.step"),
    (lambda: metrics.MeanMetric, AbsentNameError, "got 'MeanMetric': write Mean"),
    (lambda: Trainer(max_epochs=2), CallError, "Trainer: expected Trainer.start"),
    (lambda: Trainer.start(*FOUR), CallError, "expected Trainer.start.*, got no batch_size, epochs"),
    (lambda: Trainer.start(*FOUR, ckpt_path="last", **SIZES), ArgumentError, "got 'last': write resume=True, and a Ch"),
    (lambda: Trainer.start(*FOUR, precision=16, **SIZES), ArgumentError, "expected no precision, got 16: write autoca"),
    (lambda: Trainer.start(*FOUR, accumulate_grad_batches=4, **SIZES), ArgumentError, "got 4: write policy=EveryK.k"),
    (lambda: Trainer.start(*FOUR, strategy="ddp", **SIZES), ArgumentError, "write ranks=, devices=, comm= or cluster="),
    (lambda: Trainer.start(*FOUR, accelerator="cpu", **SIZES), ArgumentError, "write ranks=, devices=, comm= or clus"),
    (lambda: Trainer.start(*FOUR, num_nodes=1, **SIZES), ArgumentError, "write ranks=, devices=, comm= or cluster="),
    (lambda: Checkpoint("run", monitor="loss"), ArgumentError, "got 'loss': keep= keeps the newest"),
    (lambda: Checkpoint("run", save_top_k=3), ArgumentError, "got 3: write keep=, of the newest"),
    (lambda: Checkpoint("run", every_n_epochs=3), ArgumentError, "got 3: write every="),
    (lambda: Checkpoint("run", every_n_train_steps=3), ArgumentError, "got 3: write every=, and on='step'"),
    (lambda: DiLoCo(None), ArgumentError, "DiLoCo: expected lr"),
])
def test_what_is_not_here_says_what_to_write(call, error, words):
    with pytest.raises(error, match=words):
        call()
