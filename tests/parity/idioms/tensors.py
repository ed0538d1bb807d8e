"""Making tensors, and asking them what they are."""

from tests.parity.idioms.idiom import read

IDIOMS = read(
    r"""
## a tensor of a list
result = torch.tensor([[1, 2], [3, 4]])
"""
)
