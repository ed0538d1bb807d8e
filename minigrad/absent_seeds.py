"""The names of flodl, ferrotorch and entrenar that are not here, and what to write instead.

It is loaded when one is asked for; those of modules and tensors stand in `absent`, which every program loads.
"""

from __future__ import annotations

_GPUS = "leave it out: init(device='cuda') makes a communicator over NCCL"
_ENV = "write init(), which finds the others by the environment"
_STREAMS = "leave it out: a rank orders its own streams; cupy.cuda.Stream and cupy.cuda.Event are CuPy's"
_INSPECT = "write simulate.run(train, cluster), whose trace has what each rank did and waited for"
_BEFORE = "give it to DdpConfig, and that to Graph.distribute or Trainer.setup_with"
_CADENCE = "write ElChe.start(world_size, CadenceConfig({}))"
_OPTIMIZERS = "write group['lr'] = rate for group in each of graph.optimizers' param_groups"
_LOOP = "write a Module whose forward has the loop"
_CHOICE = "write a Module whose forward calls what it chooses"
_FIGURES = "write record_scalar(name, value) in a training function, and read EpochMetrics.scalars"
_STATE = "give the state to forward, and take it from what forward returns"
_PATH = "write graph.subgraph(path), a graph like any other"
_PIECES = "write data.ChunkPool or data.FileShards, of which each rank takes its part"
_LIST = "write comm.{}, in place, on arrays"
_WHOLE = "write DistributedDataParallel: each rank keeps a whole replica"
_GPU_FACTS = "write cuda.is_available(), cuda.device_count(), cuda.get_device_name(i) or cuda.mem_get_info(i)"

_RANKS = {  # of the room of ranks
    "NcclComms": "write NcclDevices(devices), or leave it out: Ddp.wrap takes what fits its devices",
    "NcclRankComm": "write NcclCommunicator, or init(device='cuda'), which makes it",
    "NcclUniqueId": "leave it out: the id travels by the rendezvous of init",
    "NcclAbortHandle": "write comm.abort(reason), from any thread",
    **dict.fromkeys(["CudaEvent", "CudaStream", "StreamGuard", "CudaEventFlags"], _STREAMS),
    "inspect": _INSPECT,
    "SimulatedBackend": "write run(train, world_size), or ThreadWorld(world_size).communicators()",
    "MpiBackend": "write init(backend='mpi')",
    "NcclBackend": _GPUS,
    **dict.fromkeys(["TcpBackend", "GlooBackend", "UccBackend", "HybridBackend"], _ENV),
    "SubBackend": "write comm.split(color): the ranks of one color make a group",
    "collective": _LIST.format("all_reduce(array) and its kin"),
    "FSDP": _WHOLE,
    **dict.fromkeys(["DTensor", "Pipeline", "PipelineStage"], _WHOLE),
    "RpcContext": "write all_gather_object, which all ranks call",
    **dict.fromkeys(["save_distributed", "load_distributed"], "write minigrad.save and minigrad.load, on every rank"),
    "SyncBatchNorm2d": "write SyncBatchNorm, which is for any number of axes",
    "GradientAccumulator": "write with ddp.no_sync(): around all backwards but the last",
    "DistributedComm": "write run(train, world_size) for threads, init() for processes",
    "ElCheMode": "write a policy: average.Sync(), Cadence() or Async(bound)",
}
_RUN = {  # which flodl has in one room
    "DdpBuilder": "write Trainer.builder(make_model, make_optimizer, train_fn)",
    "DdpHandle": "write train.Run, which Trainer.start(...) and .run() give",
    "DdpRunConfig": "write train.RunConfig, or leave it out: Trainer.start takes its options",
    "GpuWorker": "write train.Worker, which callbacks are given",
    **dict.fromkeys(["Coordinator", "CoordinatorBuilder"], "write train.coordinator.Coordinator, of ranks not in step"),
    "ApplyPolicy": "write 'sync', 'cadence' or 'async', or average.Sync(), EveryK(k), Cadence() or Async(bound)",
    "AverageBackend": "write .backend('nccl') or .backend('cpu') of Trainer.builder, or init(backend=...)",
    "ConvergenceGuard": "write average.TrendGuard(), LevelGuard(threshold) or GrowthGuard()",
    "MsfGuard": "write average.GrowthGuard()",
    "CpuAvgState": "leave it out: ranks on CPUs combine as all others do",
    "TrainedState": "write train.TrainedState, which run.join() gives",
}
_TRAINING = {  # of the room of training
    **{name: text.replace("train.", "") for name, text in _RUN.items() if name not in ("DdpBuilder", "TrainedState")},
    "CudaTransformerTrainer": "write SingleDeviceTrainer(model, optimizer, loss_fn), of any model",
    "LMBatch": "write data.Text and data.Sequences, whose batches are tensors",
    "DistributedComm": _RANKS["DistributedComm"],
    **dict.fromkeys(["GradientServer", "WorkerClient"], "leave it out: there is no server, ranks meet in collectives"),
    "RingAllReduceWorker": "write comm.all_reduce(array); minigrad.testing.ring has the ring, in twenty lines",
    "PerBlockGradientAccumulator": "leave it out: gradients lie in one flat layout and travel in buckets",
    "StreamingParquetLoader": _PIECES,
    "DistributedCheckpointCoordinator": "write Checkpoint(folder, every=5, keep=2)",
    "ElasticCoordinator": "write Trainer.start(..., on_failure='shrink')",
}

SEEDS: dict[str, dict[str, str]] = {  # by module or class
    "minigrad": {
        **dict.fromkeys(["cuda_available", "cuda_device_count"], _GPU_FACTS),
        **dict.fromkeys(["cuda_device_name_idx", "cuda_memory_info_idx"], _GPU_FACTS),
        "cross_entropy_loss": "write nn.functional.cross_entropy",
        "mse_loss_fn": "write nn.functional.mse_loss",
        "Timeline": "write minigrad.distributed.Timeline()",
        "inspect": "write minigrad.summary(model, input), or graph.to_text()",
        "monitor": _FIGURES,
        "MergeOp": "write merge('add'), merge('mean') or merge('cat')",
        "verbose": "write logging.getLogger(__name__).info(...)",
        "backward": "write loss.backward()",
        "Ddp": "write minigrad.distributed.Ddp",
    },
    "minigrad.distributed": {**_RANKS, **_RUN},
    "minigrad.train": _TRAINING,
    "DdpConfig": {"new": "write DdpConfig(speed_hint=(1, 2.3), ...): options are keywords"},
    "ElChe": {
        "new": _CADENCE.format("anchor=10"),
        "with_overhead_target": _CADENCE.format("overhead_target=0.1"),
        "with_max_anchor": _CADENCE.format("max_anchor=200"),
        "with_min_anchor": _CADENCE.format("min_anchor=5"),
        "with_max_batch_diff": _CADENCE.format("max_batch_diff=3"),
        "with_speed_ratio": _CADENCE.format("speed_hint=(slow_rank, ratio)"),
        "relax_anchor_up": "leave it out: the anchor grows by itself where the overhead asks for it",
    },
    "Graph": {
        "set_training": "write graph.train() or graph.eval()",
        "set_training_at": "write graph.train(mode, path)",
        **dict.fromkeys(["set_lr", "set_lr_scale"], _OPTIMIZERS),
        "training_step": "write graph.distributed.step_count",
        "is_distributed": "write graph.distributed is not None",
        "data_num_batches": "write len(loader)",
        "auto_distribute": "write Trainer.setup(graph, graph.replicate, make_optimizer)",
        "configure_el_che": _BEFORE,
        "child_graph": _PATH,
        "tree_children": "write graph.subgraphs()",
        "validate_path": _PATH,
        "is_composed": "write bool(graph.subgraphs())",
        **dict.fromkeys(["parameters_at", "named_parameters_at"], "write graph.subgraph(path).named_parameters()"),
        "tagged_at": "write graph.tagged(path)",
        **dict.fromkeys(["collect", "collect_with", "record", "flush", "latest_metrics", "end_epoch"], _FIGURES),
        **dict.fromkeys(["trend", "trends", "end_step", "end_sequence"], _FIGURES),
        **dict.fromkeys(["reset_state", "detach_state"], _STATE),
    },
    "FlowBuilder": {
        "new": "write FlowBuilder()",
        **dict.fromkeys(["loop_body", "for_n", "while_cond", "until_cond"], _LOOP),
        **dict.fromkeys(["gate", "switch", "map"], _CHOICE),
        **dict.fromkeys(["internal", "verbose"], "leave it out: label(name) and tag(name) name what is shown"),
    },
    "DistributedDataParallel": {
        "with_bucket_size": "write DistributedDataParallel(module, comm, bucket_cap_bytes=bytes)",
        "module_mut": "write ddp.module",
        "into_inner": "write ddp.unwrap()",
        "backend": "write ddp.comm",
    },
    "ReduceOp": {
        **{name.capitalize(): f"write ReduceOp.{name}" for name in ("SUM", "AVG", "MIN", "MAX", "PROD")},
        "Mean": "write ReduceOp.AVG",
    },
    "DdpBuilder": {
        "meta_controller": "leave it out: nothing cuts the cadence where the rate falls, but a guard can",
        "elche_relax_up": "leave it out: the anchor grows by itself where the overhead asks for it",
    },
    "Run": {
        "poll_metrics": "write run.history",
        "next_metrics": "write next(figures, None), with figures = run.metrics()",
        "setup_monitor": "write for metrics in run.metrics(), and show them as you like",
        "architecture_svg": "write graph.to_dot() of a Graph",
        "devices": "write run.world_size",
    },
    "Worker": {
        **dict.fromkeys(["set_lr", "current_lr"], "write worker.lr = rate, or read it"),
        "set_lr_scale": "write worker.scale_lr(factor)",
        "set_scheduler": "give schedule= to Trainer.start",
        "local_step": "write worker.step",
        "current_epoch": "write worker.epoch",
        "current_version": "write worker.epoch",
    },
    "DistributedTrainer": {"trainer_mut": "write trainer.trainer", "config": "write trainer.dist_config"},
}
