"""The code in README.md runs as it stands there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_code_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    names = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
