"""A plan: the files that are read next, in their order, kept ahead of the reader."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Sequence
from typing import Callable, Optional, Union

from . import _ioctl
from ._mount import PathLike, find_mount, is_below

# Asked of a mount in one step, so that no step takes long: half a millisecond with rows, some with paths.
CALLS_AT_ONCE = 8

# A plan without a sign of its program ends after this many seconds.
LEASE = 60.0

# Folders and files whose places in the mount are remembered.
REMEMBERED = 1 << 16

# A file, a row of the manifest, or a range: the file, the offset and the length.
Item = Union[str, "os.PathLike[str]", int, "tuple[PathLike, int, int]"]

# The items from one position up to another. It may return fewer: then no more is known now.
Items = Callable[[int, int], Sequence[Item]]


class Plan:
    """The files that are read next.

    `items(start, stop)` returns what is read at these positions, as far as it is known. `advance` passes as many of
    them to the mount as it wants. A plan on a folder that is in no mount does nothing. Not for several threads.
    """

    def __init__(
        self, folder: PathLike, items: Items, count: int = 0, *, ioctl: Optional[_ioctl.Ioctl] = None
    ) -> None:
        """`folder`: any folder of the mount. `count`: the number of all items; 0 if it is not known."""
        self.items = items
        self.count = count
        self._ioctl = ioctl or _ioctl.ioctl
        self._id = os.urandom(16)
        self._fd = -1
        # The position of the next item to be put.
        self._position = 0
        self._wanted = 0
        self._replaces = False
        # How many items the next call takes, about: paths differ in their lengths.
        self._fit = 256
        self._dirs: Optional[int] = None
        mount = find_mount(folder)
        if mount is None:
            return
        self._root = mount.path
        self._below = functools.lru_cache(REMEMBERED)(functools.partial(_below, mount.path))
        self._inode = functools.lru_cache(REMEMBERED)(_inode)
        if mount.is_whole:
            try:
                manifest = mount.manifest()
                self._snapshot: Optional[bytes] = bytes.fromhex(manifest["snapshot"])
                self._dirs = int(manifest["dirs"])
            except (OSError, ValueError, KeyError, TypeError):
                self._snapshot = None
        else:
            self._snapshot = None
        try:
            self._fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return
        self._open()

    def __del__(self) -> None:
        # Without a call to the mount: whoever drops a plan must not wait. It ends by its lease.
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)

    @property
    def is_active(self) -> bool:
        """False: there is no mount, or it takes no plans."""
        return self._fd >= 0

    def advance(self, passed: int, known: int) -> None:
        """All items before `passed` were read; those before `known` can be put."""
        for _ in range(CALLS_AT_ONCE):
            if not self.is_active:
                return
            if self._position < passed:
                # It was put, or need not be.
                self._position = passed
            wanted = min(known - self._position, self._wanted, self._fit)
            items = self.items(self._position, self._position + wanted) if wanted > 0 else ()
            if not items:
                if self._call(_ioctl.AT, _ioctl.encode_at(self._id, passed), passed):
                    return
                # It is put again.
                continue
            number, data, put = self._encode(items, passed)
            self._fit = min(2 * put if put == len(items) else put + put // 8 + 1, _ioctl.ROWS_MOST)
            if self._call(number, data, passed):
                self._position += put
                self._replaces = False

    def replace_from(self, position: int) -> None:
        """What was put from `position` on is wrong, or the reader goes on there. It is put again."""
        self._position, self._replaces = position, True
        # What is replaced makes room for it.
        self._wanted = max(self._wanted, 1)

    def finish(self, count: int) -> None:
        """There are `count` items in all. The plan ends when they were read."""
        self.count = count
        if self.is_active:
            self._open()

    def close(self) -> None:
        """Ends the plan at once."""
        if self.is_active:
            self._call(_ioctl.CLOSE, _ioctl.encode_at(self._id, 0), 0)
            self.__del__()

    def row_of(self, inode: int) -> Optional[int]:
        """The row of the file with this inode number. None: not known here."""
        return None if self._dirs is None or self._snapshot is None else inode - 1 - self._dirs

    def _open(self) -> bool:
        try:
            self._wanted = self._ioctl(self._fd, _ioctl.OPEN, _ioctl.encode_open(self._id, self._snapshot, self.count))
        except OSError:
            # No Larder that takes plans, or too many of them. Reads go on without.
            self.__del__()
            return False
        return True

    def _call(self, number: int, data: bytes, passed: int) -> bool:
        try:
            self._wanted = self._ioctl(self._fd, number, data)
        except OSError as error:
            # ENOENT: its lease was over, or the process that serves the mount was restarted.
            if error.errno == errno.ENOENT and number != _ioctl.CLOSE and self._open():
                self._position = passed
            else:
                self.__del__()
            return False
        return True

    def _encode(self, items: Sequence[Item], passed: int) -> tuple[int, bytes, int]:
        """The call that puts the first of the items, and how many it puts: all must be of the same kind."""
        first = items[0]
        head = (self._id, self._position, passed, self._replaces)
        if isinstance(first, int):
            rows = items[: _ioctl.ROWS_MOST]
            return _ioctl.ROWS, _ioctl.encode_rows(*head, rows), len(rows)  # type: ignore[arg-type]
        if isinstance(first, tuple):
            ranges = [self._range(item) for item in items[: _ioctl.RANGES_MOST]]  # type: ignore[arg-type]
            return _ioctl.RANGES, _ioctl.encode_ranges(*head, ranges), len(ranges)
        paths = [self._relative(os.fspath(item)) for item in items[: _ioctl.ROWS_MOST]]  # type: ignore[arg-type]
        fit = _ioctl.paths_that_fit(paths)
        return _ioctl.PATHS, _ioctl.encode_paths(*head, paths[:fit]), fit

    def _range(self, item: tuple[PathLike, int, int]) -> tuple[int, int, int]:
        path, offset, length = item
        row = self.row_of(self._inode(os.fspath(path)))
        if row is None or not 0 <= row < 1 << 32:
            # Row 0 at an offset beyond any file is nothing.
            return 0, (1 << 64) - 1, 1
        # A length of 0 would reach to the end of the file.
        return row, offset, max(length, 1)

    def _relative(self, path: str) -> bytes:
        """The path below the mount. Empty: it is not there, or too long."""
        folder, name = os.path.split(path)
        below = None if name in ("", ".", "..") else self._below(folder)
        if below is None:
            return b""
        relative = below + os.fsencode(name)
        return relative if len(relative) <= 4096 and b"\0" not in relative else b""


def _below(root: str, folder: str) -> Optional[bytes]:
    """The path of a folder below a mount, with a slash behind it. None: it is elsewhere."""
    real = os.path.realpath(folder)
    if not is_below(real, root):
        return None
    relative = os.path.relpath(real, root)
    return b"" if relative == "." else os.fsencode(relative) + b"/"


def _inode(path: str) -> int:
    """The inode number of a file; 0 if there is none."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0
