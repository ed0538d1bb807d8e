"""Write the table of ONNX's node tests: python -m tests.onnx (needs the package onnx)."""

from tests.onnx.table import TABLE, written
from tests.onnx.run import outcomes


def main() -> None:
    """Run them all, write the table, and print what fails."""
    found = list(outcomes())
    TABLE.write_text(written(found))
    for outcome in found:
        if outcome.verdict == "fails":
            print(outcome.name, outcome.why, sep=": ")


if __name__ == "__main__":
    main()
