"""The suite of tests/kernel_suite on a GPU."""

import pytest

from minigrad.backend.device import to_device
from tests.kernel_suite.activation import *  # noqa: F401, F403
from tests.kernel_suite.addresses import *  # noqa: F401, F403
from tests.kernel_suite.attention import *  # noqa: F401, F403
from tests.kernel_suite.bits import *  # noqa: F401, F403
from tests.kernel_suite.convolution import *  # noqa: F401, F403
from tests.kernel_suite.channel_norm import *  # noqa: F401, F403
from tests.kernel_suite.dropout import *  # noqa: F401, F403
from tests.kernel_suite.embedding import *  # noqa: F401, F403
from tests.kernel_suite.grad_scale import *  # noqa: F401, F403
from tests.kernel_suite.layer_norm import *  # noqa: F401, F403
from tests.kernel_suite.norm import *  # noqa: F401, F403
from tests.kernel_suite.optimizer import *  # noqa: F401, F403
from tests.kernel_suite.pool import *  # noqa: F401, F403
from tests.kernel_suite.range_check import *  # noqa: F401, F403
from tests.kernel_suite.replicas import *  # noqa: F401, F403
from tests.kernel_suite.rows import *  # noqa: F401, F403

pytestmark = pytest.mark.gpu


@pytest.fixture
def on(cuda):
    """Moves an array to the GPU."""
    return lambda array: to_device(array, cuda)
