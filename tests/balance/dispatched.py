"""What ranks are given by a dispatcher."""

from minigrad.data import ChunkPool
from minigrad.distributed import Dispatcher, run


def fetched(mode, samples, batch_size=32, seed=0, **options):
    """What two ranks are given round after round: how many samples each, and all of them in order."""

    def body(comm):
        return list(Dispatcher(comm, ChunkPool(samples, batch_size, seed), mode, **options))

    rounds = list(zip(*run(body, 2)))
    sizes = [tuple(sum(map(len, mine)) for mine in each) for each in rounds]
    return sizes, [index for each in rounds for mine in each for batch in mine for index in batch.tolist()]
