"""Parameters combined every so often: when (policies), what then (outer optimizers), and a shell that does it."""

from minigrad.distributed.average.outer import EASGD, DiLoCo, Mean, OuterOptimizer, SlowMo, StreamingDiLoCo
from minigrad.distributed.average.policies import PostLocalSGD

__all__ = ["DiLoCo", "EASGD", "Mean", "OuterOptimizer", "PostLocalSGD", "SlowMo", "StreamingDiLoCo"]
