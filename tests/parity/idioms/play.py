"""How an idiom is run, with the modules of one library or of the other under the names that people give them."""

import contextlib
import contextvars
import io
import tempfile
import warnings
from pathlib import Path
from unittest import mock

import numpy as np

from tests.parity.idioms.value import written


def names_of(torch, nn, F, optim, data, dist, DDP):
    """The names that a snippet may use without an import; `folder` is a directory for it to write to."""
    return {
        "torch": torch,
        "nn": nn,
        "F": F,
        "optim": optim,
        "data": data,
        "dist": dist,
        "DDP": DDP,
        "fixed": _fixed(torch),
    }


def ours():
    """The names, of minigrad."""
    import minigrad
    from minigrad import data, distributed, nn, optim

    return names_of(minigrad, nn, nn.functional, optim, data, distributed, distributed.DDP)


def play(idiom, names):
    """What an idiom leaves, as `written`, or the exception that it ends with."""
    with tempfile.TemporaryDirectory() as folder:
        space = {**names, "folder": Path(folder), "__name__": "__main__"}

        def run():
            names["torch"].manual_seed(0)
            exec(compile(idiom.source, f"<{idiom.name}>", "exec"), space)
            return written(space["result"])

        try:
            return contextvars.copy_context().run(run)
        except Exception as error:
            return error


@contextlib.contextmanager
def alone(torch):
    """Nothing that a snippet prints is shown, nor what a library warns of; and no GPU is seen, as none was recorded."""
    hidden = mock.patch.multiple(torch.cuda, is_available=lambda: False, device_count=lambda: 0)
    with hidden, contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def play_ours(group):
    """What each idiom of a group leaves in minigrad; where it is for ranks, a list of what it leaves on each."""
    names = ours()
    with alone(names["torch"]):
        if group.ranks == 1:
            return {idiom.name: play(idiom, names) for idiom in group.idioms}
        return {idiom.name: _on_ranks(idiom, names, group.ranks) for idiom in group.idioms}


def together(results):
    """What the ranks leave, in one list, or the first of their exceptions."""
    return next((found for found in results if isinstance(found, Exception)), results)


def _on_ranks(idiom, names, ranks):
    return together(names["dist"].run(lambda comm: play(idiom, names), ranks))


def _fixed(torch):
    def fixed(module):
        """A module whose parameters have the same values in both libraries."""
        with torch.no_grad():
            for i, param in enumerate(module.parameters()):
                values = 0.5 * np.sin(np.arange(param.numel()) + i)
                param.copy_(torch.tensor(values.astype(np.float32)).reshape(param.shape))
        return module

    return fixed
