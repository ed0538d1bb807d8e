"""Models as graphs of named nodes: FlowBuilder writes one down, GraphModule runs it, shows it, saves it."""

from minigrad.graph.checkpoint import CheckpointReport
from minigrad.graph.flow import FlowBuilder
from minigrad.graph.module import GraphModule
from minigrad.graph.profile import NodeTime
from minigrad.graph.wiring import Wiring, WiringNode

__all__ = ["CheckpointReport", "FlowBuilder", "GraphModule", "NodeTime", "Wiring", "WiringNode"]
