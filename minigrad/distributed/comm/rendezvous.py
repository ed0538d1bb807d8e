"""How processes that know only an address find each other: small bytes to and from rank 0 over TCP, never pickle.

Each side proves to the other that it knows the key, by the HMAC-SHA256 of what the other drew at random. Rank 0
listens; an exchange gathers one message of each rank there and sends all of them back to everybody.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import secrets
import socket
import time
from multiprocessing.connection import Connection

from minigrad.distributed.comm.checks import check_world
from minigrad.errors import ArgumentError, CollectiveTimeoutError, DistributedError, RankFailedError

_RETRY_S = 0.05
_NONCE_BYTES = _PROOF_BYTES = 32
_LENGTH_BYTES = 8  # before each message
_FAILED = 1 << 63  # added to the length of a message: rank 0 says why it gives up
_GRACE_S = 2.0  # how much longer a peer waits for rank 0, which says who is missing
_MAPPED = "::ffff:"  # before an address of IPv4
_GREETING_S = 5.0  # how long one that connects may take to show that it knows the key


class Rendezvous:
    """A star of connections around rank 0.

    Args:
        rank, world_size: This process.
        address, port: Where rank 0 listens: a name, an IPv4 or an IPv6 address, with brackets or without.
        key: The shared secret; not empty.
        timeout_s: How long to wait for the others, in the constructor and in each exchange.
        server: What rank 0 listens at already, in place of address and port; it is closed.

    Raises:
        CollectiveTimeoutError: ranks did not come in time; those missing are named.
        RankFailedError: a peer is gone, or knows another key.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        address: str,
        port: int,
        key: bytes,
        timeout_s: float,
        *,
        server: socket.socket | None = None,
    ) -> None:
        check_world("Rendezvous", rank, world_size)
        if not key:
            raise ArgumentError("Rendezvous: expected a key, got an empty one: set MINIGRAD_AUTHKEY")
        self.rank, self.world_size, self.timeout_s = rank, world_size, timeout_s
        self._key = key
        self._peers: dict[int, socket.socket] = {}
        if world_size > 1:
            deadline = time.monotonic() + timeout_s
            if rank == 0:
                with server if server is not None else _listen(address, port, world_size) as server:
                    while len(self._peers) < world_size - 1:
                        self._accept(server, deadline)
            else:
                self._peers[0] = self._connect(address, port, deadline)

    # ------------------------------------------------------------------------------------------- getting together

    def _accept(self, server: socket.socket, deadline: float) -> None:
        """Let one peer in; one that does not know the key is turned away, and the wait goes on."""
        server.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            raw, _ = server.accept()
        except TimeoutError as error:
            absent = [r for r in range(1, self.world_size) if r not in self._peers]
            raise self._given_up(
                CollectiveTimeoutError(
                    f"expected {self.world_size} ranks within {self.timeout_s:g} s, got none of ranks {absent}"
                )
            ) from error
        nonce = secrets.token_bytes(_NONCE_BYTES)
        try:
            raw.sendall(nonce)
            answer = _read(raw, _PROOF_BYTES + 4 + _NONCE_BYTES, min(deadline, time.monotonic() + _GREETING_S))
            proof, rank, theirs = answer[:_PROOF_BYTES], answer[_PROOF_BYTES:-_NONCE_BYTES], answer[-_NONCE_BYTES:]
            if not hmac.compare_digest(proof, self._proof(b"peer" + rank + nonce)):
                raise ConnectionError("another key")
            raw.sendall(self._proof(b"root" + theirs))
        except OSError:
            raw.close()
            return
        self._admit(int.from_bytes(rank, "little"), raw)

    def _admit(self, rank: int, raw: socket.socket) -> None:
        """Take in a peer that knows the key, if it is one of those that are still missing."""
        known = rank in self._peers
        if known or not 0 < rank < self.world_size:
            raw.close()
            raise self._given_up(
                RankFailedError(
                    f"expected each of ranks 1 to {self.world_size - 1} once, got rank {rank}"
                    f"{' twice' if known else ''}: give every process its own rank, and all the same world size"
                )
            )
        _send_small_messages_at_once(raw)
        self._peers[rank] = raw

    def _connect(self, address: str, port: int, deadline: float) -> socket.socket:
        while True:
            try:
                raw = socket.create_connection((_bare(address), port), timeout=max(0.01, deadline - time.monotonic()))
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise CollectiveTimeoutError(
                        f"rank {self.rank}: rendezvous: expected rank 0 at {_place(address, port)} within "
                        f"{self.timeout_s:g} s, got {error!r}"
                    ) from error
                time.sleep(_RETRY_S)
        try:
            self._greet(raw, f"rank 0 at {_place(address, port)}", deadline)
        except BaseException:
            raw.close()
            raise
        _send_small_messages_at_once(raw)
        return raw

    def _greet(self, raw: socket.socket, root: str, deadline: float) -> None:
        rank, mine, proof = self.rank.to_bytes(4, "little"), secrets.token_bytes(_NONCE_BYTES), b""
        try:
            nonce = _read(raw, _NONCE_BYTES, deadline)
            raw.sendall(self._proof(b"peer" + rank + nonce) + rank + mine)
            proof = _read(raw, _PROOF_BYTES, deadline)
        except TimeoutError as error:
            raise CollectiveTimeoutError(
                f"rank {self.rank}: rendezvous: expected {root} within {self.timeout_s:g} s, got nothing"
            ) from error
        except OSError:
            pass  # turned away
        if not hmac.compare_digest(proof, self._proof(b"root" + mine)):
            raise RankFailedError(
                f"rank {self.rank}: rendezvous: expected the key of {root}, got another: "
                "set MINIGRAD_AUTHKEY alike on all ranks"
            )

    def _proof(self, message: bytes) -> bytes:
        return hmac.digest(self._key, message, hashlib.sha256)

    # --------------------------------------------------------------------------------------------------- exchange

    def all_gather(self, data: bytes) -> list[bytes]:
        """The data of all ranks, in order of rank; blocks."""
        deadline = time.monotonic() + self.timeout_s
        if self.rank != 0:
            self._send(0, data, deadline)
            return [self._receive(0, deadline) for _ in range(self.world_size)]
        parts = [data] + [self._receive(peer, deadline) for peer in range(1, self.world_size)]
        for peer in self._peers:
            for part in parts:
                self._send(peer, part, deadline)
        return parts

    def _send(self, peer: int, data: bytes, deadline: float) -> None:
        raw = self._peers[peer]
        raw.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            raw.sendall(len(data).to_bytes(_LENGTH_BYTES, "little") + data)
        except OSError as error:
            raise self._lost(peer, error) from error

    def _receive(self, peer: int, deadline: float) -> bytes:
        raw = self._peers[peer]
        try:
            patience_s = 0.0 if self.rank == 0 else min(_GRACE_S, self.timeout_s)
            length = int.from_bytes(_read(raw, _LENGTH_BYTES, deadline + patience_s), "little")
            data = _read(raw, length & ~_FAILED, deadline + patience_s)
        except OSError as error:
            raise self._lost(peer, error) from error
        if length & _FAILED:
            late, text = data[:1] == b"T", data[1:].decode()
            raise self._given_up((CollectiveTimeoutError if late else RankFailedError)(text))
        return data

    def _lost(self, peer: int, error: OSError) -> DistributedError:
        """The error where a peer is late, or gone."""
        if isinstance(error, TimeoutError):
            return self._given_up(
                CollectiveTimeoutError(f"expected rank {peer} within {self.timeout_s:g} s, got nothing")
            )
        return self._given_up(RankFailedError(f"expected rank {peer}, which is gone"))

    def _given_up(self, error: DistributedError) -> DistributedError:
        """Close all connections, whose messages can't be told apart any more; rank 0 tells the others why first."""
        if self.rank == 0:
            told = (b"T" if isinstance(error, CollectiveTimeoutError) else b"F") + str(error).encode()
            for raw in self._peers.values():
                with contextlib.suppress(OSError):
                    raw.settimeout(_GREETING_S)
                    raw.sendall((len(told) | _FAILED).to_bytes(_LENGTH_BYTES, "little") + told)
        self.close()
        return type(error)(f"rank {self.rank}: rendezvous: {error}")

    def take_over(self) -> dict[int, Connection]:
        """The connections by rank, to rank 0 or from it; from now on they are the caller's."""
        peers, self._peers = self._peers, {}
        for raw in peers.values():
            raw.setblocking(True)
        return {rank: Connection(raw.detach()) for rank, raw in peers.items()}

    def close(self) -> None:
        """Close all connections; idempotent."""
        for raw in self._peers.values():
            raw.close()
        self._peers.clear()


def _listen(address: str, port: int, backlog: int) -> socket.socket:
    """A server at the first of the addresses of a name, IPv4 or IPv6, that this machine has.

    Raises:
        RankFailedError: it has none of them, or the port is taken.
    """
    problem: OSError | None = None
    try:
        for family, _, _, _, place in socket.getaddrinfo(_bare(address), port, type=socket.SOCK_STREAM):
            try:
                return socket.create_server(place, family=family, backlog=backlog)
            except OSError as error:
                problem = problem or error
    except OSError as error:  # nobody knows the name
        problem = error
    taken = problem is not None and problem.errno in (errno.EADDRINUSE, errno.EACCES)
    advice = "choose another MASTER_PORT" if taken else "MASTER_ADDR has to be an address of rank 0's machine"
    raise RankFailedError(
        f"rank 0: rendezvous: expected to listen at {_place(address, port)}, got {problem}: {advice}"
    ) from problem


def listen_anywhere(backlog: int) -> socket.socket:
    """A server at every address of this machine, IPv4 and IPv6, and a port that is free."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=backlog)


def _bare(address: str) -> str:
    """An address without the brackets that IPv6 has where a port follows; IPv4 written as IPv6 is IPv4."""
    bare = address.removeprefix("[").removesuffix("]")
    return bare[len(_MAPPED) :] if bare.lower().startswith(_MAPPED) and "." in bare else bare


def _place(address: str, port: int) -> str:
    bare = _bare(address)
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def _read(raw: socket.socket, count: int, deadline: float) -> bytes:
    """So many bytes, however few come at a time.

    Raises:
        TimeoutError: they are not there in time. ConnectionError: they never will be.
    """
    data = bytearray()
    while len(data) < count:
        raw.settimeout(max(0.01, deadline - time.monotonic()))
        part = raw.recv(count - len(data))
        if not part:
            raise ConnectionError(f"expected {count} bytes, got {len(data)}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"expected {count} bytes, got {len(data)} in time")
        data += part
    return bytes(data)


def _send_small_messages_at_once(raw: socket.socket) -> None:
    """Else each second one waits 40 ms."""
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def free_port(address: str = "127.0.0.1") -> int:
    """A port that was free a moment ago."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
