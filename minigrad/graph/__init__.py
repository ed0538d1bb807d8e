"""Models as graphs of named nodes: FlowBuilder writes one down, Graph runs it, shows it, saves it."""

from minigrad.graph.checkpoint import CheckpointReport
from minigrad.graph.distribute import DistributedState
from minigrad.graph.flow import FlowBuilder
from minigrad.graph.graph import Graph
from minigrad.graph.plan import Plan, PlanNode
from minigrad.graph.profile import NodeTime

__all__ = ["CheckpointReport", "DistributedState", "FlowBuilder", "Graph", "NodeTime", "Plan", "PlanNode"]
