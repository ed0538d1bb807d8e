"""The suite of tests/device_suite on a GPU."""

import pytest

from tests.device_suite.checks import *  # noqa: F401, F403
from tests.device_suite.mixed import *  # noqa: F401, F403
from tests.device_suite.modules import *  # noqa: F401, F403
from tests.device_suite.products import *  # noqa: F401, F403
from tests.device_suite.tensors import *  # noqa: F401, F403
from tests.device_suite.training import *  # noqa: F401, F403

pytestmark = pytest.mark.gpu
