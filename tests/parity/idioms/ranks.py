"""Scripts for several ranks, as torchrun starts them; `result` is a list, of each rank's."""

from tests.parity.idioms.idiom import read

IDIOMS = read(
    r"""
## rank and world size
dist.init_process_group(backend="gloo")
result = (dist.get_rank(), dist.get_world_size())
dist.destroy_process_group()
"""
)
