"""The suite of graphs on a GPU."""

import pytest

from tests.device_suite.graphs import *  # noqa: F401, F403

pytestmark = pytest.mark.gpu
