"""How processes meet: with the key, in time, or with an error that names who is missing."""

import socket
import threading
import time

import pytest

from minigrad.distributed.comm.rendezvous import Rendezvous, free_port
from minigrad.errors import CollectiveTimeoutError, RankFailedError


def _meet(world_size, keys, timeout_s=5.0, before=None, address="127.0.0.1"):
    """What each rank got: the gathered bytes, or its error."""
    port, found = free_port(), [None] * world_size

    def body(rank):
        try:
            meeting = Rendezvous(rank, world_size, address, port, keys[rank], timeout_s)
            found[rank] = [meeting.all_gather(f"{rank} {i}".encode()) for i in range(2)]
            meeting.close()
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(world_size) if keys[rank] is not None]
    threads[0].start()
    if before is not None:
        before(port)
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_exchange(world_size):
    expected = [[f"{rank} {i}".encode() for rank in range(world_size)] for i in range(2)]
    assert _meet(world_size, [b"key"] * world_size) == [expected] * world_size


@pytest.mark.parametrize("address", ["::1", "[::1]", "localhost", "::FFFF:127.0.0.1"])
def test_an_address_may_be_a_name_or_of_ipv6(address):
    assert _meet(2, [b"key"] * 2, address=address) == [[[b"0 0", b"1 0"], [b"0 1", b"1 1"]]] * 2


def test_errors_name_a_port_of_ipv6_as_it_is_written():
    port = free_port("::1")
    with socket.create_server(("::1", port), family=socket.AF_INET6):
        with pytest.raises(RankFailedError, match=rf"expected to listen at \[::1\]:{port}, got .* choose another"):
            Rendezvous(0, 2, "::1", port, b"key", 1.0)


def test_another_key_is_turned_away():
    zero, one = _meet(2, [b"key", b"other"], 1.0)
    assert isinstance(one, RankFailedError) and "the key of rank 0" in str(one)
    assert isinstance(zero, CollectiveTimeoutError) and "none of ranks [1]" in str(zero)


def test_a_stranger_does_not_hold_up_the_others():
    def stranger(port):
        time.sleep(0.2)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")

    assert _meet(2, [b"key", b"key"], before=stranger)[0][0] == [b"0 0", b"1 0"]


def test_a_stranger_that_says_little_and_stays_does_not_hold_up_the_others(monkeypatch):
    """Its first bytes look like the length of a large message, or come one at a time."""
    monkeypatch.setattr("minigrad.distributed.comm.rendezvous._GREETING_S", 0.3)
    strangers = []

    def stranger(port):
        time.sleep(0.2)
        strangers.append(socket.create_connection(("127.0.0.1", port)))
        strangers[0].sendall(b"GET ")

    assert _meet(2, [b"key", b"key"], before=stranger)[0][0] == [b"0 0", b"1 0"]
    strangers[0].close()


@pytest.mark.parametrize("number, words", [(1, "got rank 1 twice"), (7, "got rank 7:")])
def test_a_rank_that_comes_twice_or_from_a_larger_world_is_named(number, words):
    port, errors = free_port(), []

    def body(rank, world_size):
        try:
            Rendezvous(rank, world_size, "127.0.0.1", port, b"key", 2.0).all_gather(b"")
        except (CollectiveTimeoutError, RankFailedError) as error:
            errors.append(str(error))

    threads = [threading.Thread(target=body, args=numbers) for numbers in [(0, 3), (1, 3), (number, 8)]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 3 and any(words in error for error in errors), errors


def test_missing_ranks_are_named():
    started = time.monotonic()
    found = _meet(3, [b"key", None, b"key"], 0.5)
    assert isinstance(found[0], CollectiveTimeoutError) and "none of ranks [1]" in str(found[0])
    assert isinstance(found[2], CollectiveTimeoutError)  # told by rank 0, which is not to blame
    assert str(found[2]) == str(found[0]).replace("rank 0:", "rank 2:")
    assert time.monotonic() - started < 5.0


def test_a_port_in_use_says_what_to_do():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(RankFailedError, match="choose another MASTER_PORT"):
            Rendezvous(0, 2, "127.0.0.1", taken.getsockname()[1], b"key", 1.0)


@pytest.mark.parametrize(
    "sent, answer", [(b"", 0), (b"\x05", 0), (b"\x05\0\0\0\0\0\0\0ab", 0), (bytes(8), 64 * 1024 * 1024)]
)
def test_a_peer_that_stops_is_named_in_time(sent, answer):
    """Its message never ends, as that of a stopped process; or it takes nothing, and no buffer holds the answer."""
    port, found = free_port(), []

    def root():
        meeting = Rendezvous(0, 2, "127.0.0.1", port, b"key", 0.4)
        with pytest.raises(CollectiveTimeoutError, match="rank 0: rendezvous: expected rank 1 within 0.4 s"):
            meeting.all_gather(bytes(answer))
        found.append(True)
        meeting.close()

    thread = threading.Thread(target=root)
    thread.start()
    peer = Rendezvous(1, 2, "127.0.0.1", port, b"key", 2.0)
    peer._peers[0].sendall(sent)
    thread.join(10.0)
    peer.close()
    assert found == [True]
