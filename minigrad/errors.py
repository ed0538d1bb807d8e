"""Every exception that minigrad raises on purpose.

MinigradError
├── ArgumentError            (ValueError)    a value out of its range, an unknown name, a missing argument
│   └── CallError            (TypeError)     a call that does not fit the signature, which is shown
├── AbsentNameError          (AttributeError) a name of PyTorch's that is not here, or not there
├── AbsentModuleError        (ModuleNotFoundError) the same, where it is imported
├── ShapeError               (ValueError)    shapes that do not fit
├── DtypeError               (TypeError)     dtypes that do not fit, or a type that is no tensor
├── IndexRangeError          (IndexError)    an index or a label out of range
├── DivisionByZeroError      (ZeroDivisionError)  integers divided by 0
├── DeviceError              (RuntimeError)  an absent device, or operands on different devices
├── AutogradError            (RuntimeError)  backward called where it can't work, data changed after it was saved
├── StateDictError           (ValueError)    keys, shapes or dtypes of a state_dict that do not fit
├── WiringError              (ValueError)    the wiring of a graph has faults; all of them are listed
├── LayoutError              (RuntimeError)  a parameter was moved or replaced after its flat layout was made
├── NonFiniteError           (RuntimeError)  NaN or infinity where the caller asked for an error
├── MissingPackageError      (ImportError)   an optional package that a function needs is not installed
├── KernelError              (RuntimeError)  a CUDA source is missing or does not compile
├── CaptureError             (RuntimeError)  a step that is captured as a CUDA graph does what a graph can't repeat
└── DistributedError         (RuntimeError)
    ├── CollectiveMismatchError              ranks made different calls
    ├── CollectiveTimeoutError (TimeoutError) a rank did not come in time
    ├── RankFailedError                      another rank failed first
    ├── ReplicaMismatchError                 replicas differ in names, shapes, dtypes, order or values
    ├── TwinMismatchError                    a step of the ranks is not what one process gets from their batches
    ├── UnreducedGradientError               a bucket could not be reduced: some of its parameters got no gradient
    └── InjectedFaultError                   a fault that FaultInjecting was asked for

A message reads `<who>: <what was expected>, got <what came>[: <what to do>]`.
"""

import typing


class MinigradError(Exception):
    """Base of all errors raised by minigrad."""


class ArgumentError(MinigradError, ValueError):
    """A value is out of its range, a name is unknown, or an argument is missing."""


class CallError(ArgumentError, TypeError):
    """A call does not fit the signature: an unknown keyword, or arguments too many or too few."""


class AbsentNameError(MinigradError, AttributeError):
    """A module or a tensor has no such name; the message says what to write where PyTorch has one."""


class AbsentModuleError(MinigradError, ModuleNotFoundError):
    """There is no such module, or no such name in the room that it is imported from; the message says what to write."""


class ShapeError(MinigradError, ValueError):
    """Shapes do not fit each other or the operation."""


class DtypeError(MinigradError, TypeError):
    """Dtypes do not fit each other or the operation, or an object is not a tensor at all."""


class IndexRangeError(MinigradError, IndexError):
    """An index or a label is out of range."""


class DivisionByZeroError(MinigradError, ZeroDivisionError):
    """Integers are divided by 0, for which they have no infinity and no NaN."""


class DeviceError(MinigradError, RuntimeError):
    """A device is absent, or operands live on different devices."""


class AutogradError(MinigradError, RuntimeError):
    """Backward can't run: no graph, a freed graph, a non-scalar root, or data changed after it was saved."""


class StateDictError(MinigradError, ValueError):
    """The keys, shapes or dtypes of a state_dict do not fit the object that loads it."""


class WiringError(MinigradError, ValueError):
    """The wiring of a graph has faults.

    Attributes:
        faults: A line for each.
    """

    def __init__(self, message: str, faults: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.faults = faults


class LayoutError(MinigradError, RuntimeError):
    """A parameter was moved or replaced after its flat layout was made."""


class NonFiniteError(MinigradError, RuntimeError):
    """A value is NaN or infinite where the caller asked for an error instead of going on."""


class MissingPackageError(MinigradError, ImportError):
    """An optional package that a function needs is not installed."""


class KernelError(MinigradError, RuntimeError):
    """A CUDA source is missing or does not compile, or a library of CUDA refuses a call."""


class CaptureError(MinigradError, RuntimeError):
    """A step that is captured as a CUDA graph does what a graph can't repeat, or its replay would not be that step."""


class DistributedError(MinigradError, RuntimeError):
    """Base of the errors of `minigrad.distributed`.

    Attributes:
        buckets: Those of gradients that it is about: the number of each, and the names of its parameters.
        report: Where ranks did not come together: the last calls of all, side by side, a `distributed.HangReport`.
    """

    report: typing.Any = None
    buckets: tuple[tuple[int, tuple[str, ...]], ...] = ()


class CollectiveMismatchError(DistributedError):
    """Ranks made different collective calls: another kind, shape, dtype, operation or order."""


class CollectiveTimeoutError(DistributedError, TimeoutError):
    """A rank did not reach a collective in time."""


class RankFailedError(DistributedError):
    """Another rank failed, so this collective can never finish."""


class ReplicaMismatchError(DistributedError):
    """Replicas differ in the names, shapes, dtypes, order or values of their parameters."""


class TwinMismatchError(DistributedError):
    """A step of the ranks is not what one process gets from their batches.

    Attributes:
        report: A `distributed.TwinReport`: what differs, and what would explain it.
    """

    def __init__(self, message: str, report: typing.Any = None) -> None:
        super().__init__(message)
        self.report = report


class UnreducedGradientError(DistributedError):
    """A bucket could not be reduced because some of its parameters got no gradient."""


class InjectedFaultError(DistributedError):
    """What `distributed.FaultInjecting` raises where its faults say so."""
