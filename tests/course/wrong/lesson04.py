"""Wrong solutions of lesson 4."""

import threading

from minigrad.course.lesson04_machines import solution
from minigrad.course.lesson04_machines.solution import Over, Solo, Threads
from minigrad.distributed import SoloCommunicator, collectives
from minigrad.errors import CollectiveTimeoutError
from tests.course.wrong import Wrong


class NotCopied(Solo):
    def _all_gather(self, what, output, source):
        output = source  # noqa: F841
        return Over()


class NoWork(Solo):
    def _meet(self, what):
        return None


class GivesTheArray(Solo):
    def _reduce(self, what, array, op, weight=None):
        return array


class LeavesAThread(Solo):
    def __init__(self):
        super().__init__()
        threading.Thread(target=threading.Event().wait, args=(4.0,), daemon=True, name="helper").start()


def of_threads(kind):
    """Ours, but for a class."""

    def get_thread_communicators(world_size, timeout_s):
        board = solution.Noticeboard()
        return [kind(rank, world_size, timeout_s, board) for rank in range(world_size)]

    return get_thread_communicators


class OwnFirst(Threads):
    def _reduce(self, what, array, op, weight=None):
        arrays = self.exchange(what, array)
        arrays = arrays[self.rank :] + arrays[: self.rank]
        collectives.all_reduce(arrays, op)
        array[...] = arrays[0].reshape(array.shape)
        return Over()


class SumsOnly(Threads):
    def _reduce(self, what, array, op, weight=None):
        array[...] = sum(self.exchange(what, array)).reshape(array.shape)
        return Over()


class TellsNobody(Threads):
    def _tell(self, error):
        pass


class WaitsForEver(Threads):
    def __init__(self, rank, world_size, timeout_s, board):
        super().__init__(rank, world_size, 30.0, board)


class RootZero(Threads):
    def _broadcast(self, what, array, root):
        return super()._broadcast(what, array, 0)


class NamesNobody(Threads):
    def _fail(self, error):
        named = isinstance(error, CollectiveTimeoutError)
        super()._fail(CollectiveTimeoutError(str(error).replace("rank 1", "somebody")) if named else error)


class ComparesNothing(Threads):
    def _next(self, what, array=None):
        return super()._next(("call", ""))


def torchrun_only(environ):
    return int(environ.get("RANK", 0)), int(environ.get("WORLD_SIZE", 1)), int(environ.get("LOCAL_RANK", 0))


def _by(names):
    def read_seat(environ):
        for rank, size, local in names:
            if rank in environ and size in environ:
                mine = int(environ[rank])
                return mine, int(environ[size]), int(environ.get(local, mine))
        return 0, 1, 0

    return read_seat


def any_slurm(environ):
    return solution.read_seat({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8", **environ})


def last_wins(environ):
    names = solution.LAUNCHERS[::-1]
    if "SLURM_STEP_ID" not in environ:
        names = names[1:]
    return _by(names)(environ)


def guesses(environ):
    return _by(solution.LAUNCHERS if "SLURM_STEP_ID" in environ else solution.LAUNCHERS[:3])(environ)


WRONG = {
    "get_solo_communicator": [
        Wrong(NotCopied, "reduce_scatter_then_all_gather_is_all_reduce"),
        Wrong(NoWork, "'NoneType' object has no attribute 'wait'"),
        Wrong(GivesTheArray, "'numpy.ndarray' object has no attribute 'wait'"),
        Wrong(LeavesAThread, "expected no thread to be left after close(), got helper"),
        Wrong(SoloCommunicator, "expected a class of your own, derived from Front"),
    ],
    "get_thread_communicators": [
        Wrong(of_threads(OwnFirst), "sums_are_added_up_in_the_one_order-float32, with 3 ranks"),
        Wrong(of_threads(SumsOnly), "all_reduce-float64, with 2 ranks"),
        Wrong(of_threads(TellsNobody), "abort_reaches_everybody_and_stays, with 2 ranks"),
        Wrong(of_threads(WaitsForEver), "a wait without end?"),
        Wrong(of_threads(RootZero), "broadcast_from_each_root, with 2 ranks"),
        Wrong(of_threads(NamesNobody), "expected rank 0 to raise an error that names rank 1"),
        Wrong(of_threads(ComparesNothing), "expected CollectiveMismatchError on rank"),
    ],
    "read_seat": [
        Wrong(torchrun_only, "read_seat of Open MPI"),
        Wrong(any_slurm, "read_seat of nobody has set anything"),
        Wrong(last_wins, "read_seat of torchrun in a step of Slurm"),
        Wrong(guesses, "to guess is to start as many worlds of one"),
    ],
}
