"""Record a PyTorch network: its state_dict, and what it computes in float64. Run by hand:

    python -m tests.parity.record_cnn
"""

from safetensors.torch import save_file

from tests.parity.cnn_theirs import make_model, run
from tests.parity.store import FOLDER


def main():
    """Write both files."""
    model = make_model(0)
    save_file(model.state_dict(), FOLDER / "cnn_state.safetensors")
    save_file(run(model.double(), 1), FOLDER / "cnn_values.safetensors")


if __name__ == "__main__":
    main()
