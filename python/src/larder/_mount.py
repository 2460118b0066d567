"""Which Larder mount a path is in."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Union

from . import _ioctl

PathLike = Union[str, "os.PathLike[str]"]

MOUNTINFO = "/proc/self/mountinfo"


@dataclass(frozen=True)
class MountInfo:
    """A Larder mount, or the folder of one that a container shows."""

    path: str
    """Where it is mounted."""
    is_whole: bool
    """False: only a folder of it is mounted here, and the files below `.larder` are not visible."""

    def stats(self) -> dict[str, Any]:
        """`.larder/stats.json`: what is cached, how much was read from where, and how plans are followed."""
        return self._read("stats.json")

    def manifest(self) -> dict[str, Any]:
        """`.larder/manifest.json`: the snapshot that is mounted, and its size."""
        return self._read("manifest.json")

    def owned(self, files: int) -> bytes:
        """Which of the first `files` rows of the manifest this node is to keep: a bit for each, the lowest first.

        Raises OSError if the mount is of an earlier version.
        """
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            step = 8 * _ioctl.OWNED_BYTES
            return b"".join(_ioctl.owned(fd, at, min(step, files - at)) for at in range(0, files, step))
        finally:
            os.close(fd)

    def _read(self, name: str) -> dict[str, Any]:
        if not self.is_whole:
            raise FileNotFoundError(
                f"{self.path} shows only a folder of a Larder mount, without its .larder/{name}: mount the volume "
                "without subPath"
            )
        with open(os.path.join(self.path, ".larder", name), "rb") as file:
            found: dict[str, Any] = json.load(file)
        return found


def mount_info(path: PathLike) -> MountInfo:
    """The Larder mount that a path is in. Raises ValueError if it is in none."""
    found = find_mount(path)
    if found is None:
        raise ValueError(f"{os.fspath(path)} is not in a Larder mount; `larder stats` lists the mounts")
    return found


def find_mount(path: PathLike, mountinfo: str = MOUNTINFO) -> MountInfo | None:
    """The Larder mount that a path is in, or None. Asks the mount nothing."""
    real = os.path.realpath(path)
    found: tuple[str, bool, bool] | None = None
    try:
        with open(mountinfo, "rb") as file:
            for line in file:
                mount = _parse(line)
                if mount is not None and is_below(real, mount[0]) and (found is None or len(mount[0]) >= len(found[0])):
                    # Later lines are mounted over earlier ones.
                    found = mount
    except OSError:
        return None
    if found is None or not found[2]:
        return None
    return MountInfo(found[0], found[1])


def is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _parse(line: bytes) -> tuple[str, bool, bool] | None:
    """The place of a mount, whether all of it is there, and whether it is one of Larder."""
    before, separator, after = line.partition(b" - ")
    fields, kind = before.split(b" "), after.split(b" ")
    if not separator or len(fields) < 5 or len(kind) < 2:
        return None
    is_larder = kind[0] in (b"fuse", b"fuse.larder") and kind[1].startswith(b"larder:")
    return os.fsdecode(_unescaped(fields[4])), fields[3] == b"/", is_larder


def _unescaped(field: bytes) -> bytes:
    """The kernel writes blanks and backslashes as octal numbers."""
    first, *rest = field.split(b"\\")
    return first + b"".join(bytes((int(part[:3], 8),)) + part[3:] for part in rest)
