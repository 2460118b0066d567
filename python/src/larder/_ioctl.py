"""The ioctls of a mount about plans. Their layout is in `cachenode/src/plan/command.rs`.

They are called through ctypes, which releases the GIL. CPython's own `fcntl.ioctl` holds it for arguments of more than
1,024 bytes: while the process that serves the mount does not answer, every thread of this one would stand still.
"""

from __future__ import annotations

import ctypes
import os
import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import Callable

PART_BYTES = 16_000
SHORT_BYTES = 64
HEAD_BYTES = 40

# The most items in a call.
ROWS_MOST = (PART_BYTES - HEAD_BYTES) // 4
RANGES_MOST = (PART_BYTES - HEAD_BYTES) // 16


def _write_ioctl(number: int, size: int) -> int:
    """`_IOW('L', number, [u8; size])`"""
    return 1 << 30 | size << 16 | ord("L") << 8 | number


OPEN = _write_ioctl(16, SHORT_BYTES)
ROWS = _write_ioctl(17, PART_BYTES)
PATHS = _write_ioctl(18, PART_BYTES)
RANGES = _write_ioctl(19, PART_BYTES)
AT = _write_ioctl(20, SHORT_BYTES)
CLOSE = _write_ioctl(21, SHORT_BYTES)
OWNED_BYTES = 2000
OWNED = 1 << 31 | _write_ioctl(22, OWNED_BYTES)

# Takes a descriptor, a number and the bytes, and returns a number. Raises OSError.
Ioctl = Callable[[int, int, bytes], int]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p)
_libc.ioctl.restype = ctypes.c_int


def ioctl(fd: int, number: int, data: bytes) -> int:
    result: int = _libc.ioctl(fd, number, data)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def owned(fd: int, first: int, count: int) -> bytes:
    """A bit for each of `count` rows, at most 16,000: the node is to keep its file."""
    data = ctypes.create_string_buffer(struct.pack("<II", first, count), OWNED_BYTES)
    if _libc.ioctl(fd, OWNED, data) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return data.raw[: (count + 7) // 8]


def encode_open(plan: bytes, snapshot: bytes | None, count: int) -> bytes:
    return struct.pack("<16s32sQ8x", plan, snapshot or b"", count)


def encode_at(plan: bytes, passed: int) -> bytes:
    return struct.pack("<16sQ40x", plan, passed)


def _encode_items(plan: bytes, position: int, passed: int, replaces: bool, count: int, items: bytes) -> bytes:
    head = struct.pack("<16sQQII", plan, position, passed, count, replaces)
    return (head + items).ljust(PART_BYTES, b"\0")


def encode_rows(plan: bytes, position: int, passed: int, replaces: bool, rows: Sequence[int]) -> bytes:
    words = array("I", rows)
    if struct.pack("=I", 1) != struct.pack("<I", 1):
        words.byteswap()
    return _encode_items(plan, position, passed, replaces, len(words), words.tobytes())


def encode_paths(plan: bytes, position: int, passed: int, replaces: bool, paths: Sequence[bytes]) -> bytes:
    items = b"".join(path + b"\0" for path in paths)
    return _encode_items(plan, position, passed, replaces, len(paths), items)


def encode_ranges(
    plan: bytes, position: int, passed: int, replaces: bool, ranges: Iterable[tuple[int, int, int]]
) -> bytes:
    items = [struct.pack("<QII", offset, row, length) for row, offset, length in ranges]
    return _encode_items(plan, position, passed, replaces, len(items), b"".join(items))


def paths_that_fit(paths: Sequence[bytes]) -> int:
    """How many of the paths fit into a call."""
    room = PART_BYTES - HEAD_BYTES
    for count, path in enumerate(paths):
        room -= len(path) + 1
        if room < 0:
            return count
    return len(paths)
