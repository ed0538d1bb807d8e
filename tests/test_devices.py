"""Where work runs on a machine with several GPUs: on the device of its rank, whoever's thread it is.

A rank's device is current in its thread because `init`, `run` and the communicators see to it. A test that entered one
for them would hide where they do not, and one on cuda:0 could not tell: that is current anyhow. (The fixture
`strict_cupy` refuses a test whose arrays are all on cuda:0.)
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]

SEVERAL = "one thread with several devices enters each"
EARLIER = "runs on commits whose ranks were not on their device, too"
ENTERS = {  # who enters a device, and why it has to
    "tests/benchmarks/nccl_step.py::body": EARLIER,
    "tests/benchmarks/nccl_step.py::count": EARLIER,
    "tests/conftest.py::strict_cupy": "leaves this thread as it was",
    "tests/device_suite/pairs.py::test_any_layout_moves_to_another_gpu": SEVERAL,
    "tests/device_suite/pairs.py::test_images_move_to_another_gpu": SEVERAL,
    "tests/device_suite/pairs.py::test_replicas_on_two_gpus_have_the_gradient_of_one_device": SEVERAL,
    "tests/device_suite/pairs.py::test_what_moves_is_what_was_there": SEVERAL,
    "tests/distributed/test_buffers_on_tape.py::replicas_on": SEVERAL,
    "tests/distributed/test_nccl.py::test_replicas_of_one_process": SEVERAL,
    "tests/distributed/test_streams.py::test_the_twin_for_the_cpu_has_done_everything_at_once": "a stream's",
    "tests/gpu/test_nccl.py::test_a_collective_follows_the_stream_it_was_called_on": "a stream's",
    "tests/gpu/convolution.py::small_calls": "measures what it costs",
    "tests/gpu/convolution.py::enter": "measures what it costs",
    "tests/gradcheck/test_strict.py::test_numbers_follow_their_partner": SEVERAL,
    "tests/distributed/test_noted.py::test_on_two_devices_replicas_have_their_own_time": SEVERAL,
    "tests/unit/optim/test_optimizer.py::test_a_bare_tensor_on_a_gpu_is_trained_there": SEVERAL,
}
ABOUT_IT = {  # files that are about the current device, or about the stand-in itself
    *("tests/unit/test_device.py", "tests/unit/test_two_devices.py", "tests/unit/backend/test_cublas.py"),
    *("tests/unit/test_strict_cupy.py", "tests/unit/test_strict_streams.py"),
}
THREADS = {
    "minigrad/backend/thread.py": "makes them",
    "minigrad/distributed/comm/where.py": "looks at another thread's stack, and must not keep what a context holds",
}


def entered():
    """The functions of the tests, by file and name, that make a device the current one, or a stream."""
    for path in (ROOT / "tests").rglob("*.py"):
        place = path.relative_to(ROOT).as_posix()
        if place not in ABOUT_IT and path.parent.name != "strict_cupy":
            for function in ast.walk(ast.parse(path.read_text())):
                if isinstance(function, ast.FunctionDef) and any(map(enters, ast.walk(function))):
                    yield f"{place}::{function.name}"


def enters(node):
    """`x.current()`, `x.use()`, `with x.cuda.Device(i)`."""
    if isinstance(node, ast.With):
        return any(getattr(getattr(item.context_expr, "func", None), "attr", "") == "Device" for item in node.items)
    is_bare = isinstance(node, ast.Call) and not node.args and not node.keywords
    return is_bare and getattr(node.func, "attr", "") in ("current", "use")


def test_no_test_enters_a_device_for_the_library():
    assert set(entered()) == set(ENTERS)


def test_threads_begin_where_the_one_that_starts_them_is():
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "minigrad").rglob("*.py")}
    assert {name for name, text in texts.items() if "threading.Thread(" in text} == set(THREADS)
