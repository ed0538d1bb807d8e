"""Messages between the ranks of a star of connections: how they are written down, and sent. Bytes, never pickle."""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from multiprocessing.connection import Connection
from typing import NamedTuple

_HEAD = struct.Struct("<BIQI")  # kind, rank, number, bytes of the text that follows
_LENGTH = struct.Struct("<Q")


class Kind(IntEnum):
    """What a message is about."""

    ITEM = 0  # what a rank brings to a gathering
    BUNDLE = 1  # several messages in one
    STATE = 2  # how far a rank is
    LEFT = 3
    FAILED = 4
    GAVE_UP = 5
    CALLS = 6  # rank 0's calls, for a rank that has made others
    MEET = 7  # ranks are to say in which pass they are
    PASS = 8  # that pass
    MEET_AT = 9  # the pass in which they meet
    TELL = 10  # ranks are to say how far they are, once they are so far
    SAME = 11  # all are found to be alike so far
    POST = 12  # a rank sends another one a message, or asks for one
    MATCH = 13  # the two ends of one
    PAIR_ID = 14  # of a communicator of NCCL's, of two ranks


class Message(NamedTuple):
    """A message, whose rank is that which it tells of."""

    kind: Kind
    rank: int
    number: int
    text: str = ""
    data: bytes = b""

    def packed(self) -> bytes:
        """It as bytes."""
        encoded = self.text.encode()
        return _HEAD.pack(self.kind, self.rank, self.number, len(encoded)) + encoded + self.data


def unpacked(message: bytes) -> Message:
    """What `Message.packed` made bytes of."""
    kind, rank, number, size = _HEAD.unpack_from(message)
    text = message[_HEAD.size : _HEAD.size + size].decode()
    return Message(Kind(kind), rank, number, text, message[_HEAD.size + size :])


def bundle(messages: Iterable[Message]) -> Message:
    """Several messages as one."""
    packed = [message.packed() for message in messages]
    return Message(Kind.BUNDLE, 0, 0, "", b"".join(_LENGTH.pack(len(each)) + each for each in packed))


def unbundled(message: Message) -> Iterator[Message]:
    """The messages of a bundle; one that is none is alone."""
    if message.kind != Kind.BUNDLE:
        yield message
        return
    at, data = 0, message.data
    while at < len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + size
        yield unpacked(data[at - size : at])


def write(link: Connection, message: bytes) -> None:
    """Send a message; waits for room."""
    try:
        link.send_bytes(message)
    except OSError:
        pass  # the thread that reads sees its end, and says what it means


def has_room(link: Connection) -> bool:
    """Whether a small message can be sent without waiting."""
    poll = select.poll()
    poll.register(link.fileno(), select.POLLOUT)
    return bool(poll.poll(0))


def end_writing(link: Connection) -> None:
    """Let the other side read to the end; closing would throw away what it has not read yet."""
    try:
        with socket.socket(fileno=os.dup(link.fileno())) as same:
            same.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # it has ended already
