"""What minigrad computes with the network of `cnn.py`, beside the values of PyTorch."""

from minigrad import Tensor, nn, no_grad
from minigrad.testing import assert_close
from tests.parity.cnn import loss_of


def assert_same(model, values, tolerance):
    """The outputs, the loss, every gradient and every buffer of a model are those of PyTorch.

    values: arrays by name, as `cnn_theirs.run` gives them.
    """

    def check(name, actual):
        exact = values[name].dtype.kind != "f"
        assert_close(actual, values[name], tolerance=0.0 if exact else tolerance, what=name)

    x, target = Tensor(values["input"]), Tensor(values["target"])
    output = model(x)
    loss = loss_of(nn)(output, target)
    loss.backward()
    check("output", output)
    check("loss", loss)
    assert {f"gradient/{name}" for name, _ in model.named_parameters()} == {n for n in values if n[:9] == "gradient/"}
    for name, param in model.named_parameters():
        check(f"gradient/{name}", param.grad)
    for name, buffer in model.named_buffers():
        check(f"buffer/{name}", buffer)
    with no_grad():
        check("evaluated", model.eval()(x))
