"""A mount that takes plans, without a mount."""

from __future__ import annotations

import errno
import struct
from contextlib import contextmanager
from typing import Any, Iterator
from unittest import mock

from larder import _ioctl
from larder._mount import MountInfo

ITEMS_MOST = 65_536


class FakeMount:
    """Does with ioctls what larderd does, as far as programs see it."""

    def __init__(self, root: str = "/data", dirs: int = 3) -> None:
        self.root, self.dirs = root, dirs
        self.plans: dict[bytes, dict[str, Any]] = {}
        # All plans that were ever opened, in order.
        self.history: list[dict[str, Any]] = []
        self.calls: list[int] = []
        # Raised by the next calls.
        self.errors: list[int] = []
        self.takes = ITEMS_MOST

    def restart(self) -> None:
        self.plans.clear()

    def manifest(self) -> dict[str, Any]:
        return {"snapshot": "ab" * 32, "dirs": self.dirs, "files": 1_000}

    def ioctl(self, fd: int, number: int, data: bytes) -> int:
        assert len(data) == number >> 16 & 0x3FFF, "the size that the number says"
        self.calls.append(number)
        if self.errors:
            raise OSError(self.errors.pop(0), "on purpose")
        plan_id = data[:16]
        if number == _ioctl.OPEN:
            count = struct.unpack_from("<Q", data, 48)[0]
            if plan_id not in self.plans:
                plan: dict[str, Any] = {"items": {}, "end": 0, "passed": 0, "puts": []}
                self.plans[plan_id] = plan
                self.history.append(plan)
            self.plans[plan_id]["count"] = count
            return self._wanted(plan_id)
        if plan_id not in self.plans:
            raise OSError(errno.ENOENT, "no such plan")
        plan = self.plans[plan_id]
        if number == _ioctl.CLOSE:
            del self.plans[plan_id]
            return 0
        if number == _ioctl.AT:
            plan["passed"] = max(plan["passed"], struct.unpack_from("<Q", data, 16)[0])
            return self._wanted(plan_id)
        position, passed, count, flags = struct.unpack_from("<QQII", data, 16)
        if plan["count"] and position + count > plan["count"]:
            raise OSError(errno.EINVAL, "more than its count")
        if flags & 1:
            plan["items"] = {at: item for at, item in plan["items"].items() if at < position}
            plan["end"] = min(plan["end"], position)
        items = self._items(number, count, data[40:])
        for nth, item in enumerate(items):
            if position + nth >= plan["end"] or position > plan["end"]:
                plan["items"][position + nth] = item
        plan["end"] = max(plan["end"], position + count)
        plan["passed"] = max(plan["passed"], passed)
        plan["puts"].append((position, count))
        return self._wanted(plan_id)

    def _items(self, number: int, count: int, data: bytes) -> list[Any]:
        if number == _ioctl.ROWS:
            return list(struct.unpack_from(f"<{count}I", data))
        if number == _ioctl.RANGES:
            return [(row, offset, size) for offset, row, size in struct.iter_unpack("<QII", data[: count * 16])]
        return [path.decode() for path in data.split(b"\0")[:count]]

    def _wanted(self, plan_id: bytes) -> int:
        plan = self.plans[plan_id]
        rest = plan["count"] - plan["end"] if plan["count"] else ITEMS_MOST
        return max(min(self.takes - (plan["end"] - plan["passed"]), rest), 0)

    def items(self, nth: int = -1) -> list[Any]:
        """The items of a plan, by position."""
        return [item for _, item in sorted(self.history[nth]["items"].items())]

    @contextmanager
    def mounted(self, is_whole: bool = True) -> Iterator["FakeMount"]:
        def find(path: Any, *_: Any) -> Any:
            is_here = str(path) == self.root or str(path).startswith(self.root + "/")
            return MountInfo(self.root, is_whole) if is_here else None

        with mock.patch("larder._plan.find_mount", find), mock.patch.object(
            MountInfo, "manifest", lambda _: self.manifest()
        ), mock.patch("larder._ioctl.ioctl", self.ioctl), mock.patch("os.open", self._os_open(self.root)):
            yield self

    def _os_open(self, root: str) -> Any:
        import os

        real = os.open

        def opened(path: Any, *args: Any, **named: Any) -> int:
            return real("/" if path == root else path, *args, **named)

        return opened
