"""Plans and their ioctls, without a mount and without torch."""

from __future__ import annotations

import errno
import os
import struct
import tempfile
import unittest
from typing import Any
from unittest import mock

import larder
from fake import FakeMount
from larder import Plan, _ioctl
from larder._mount import find_mount


class IoctlTest(unittest.TestCase):
    def test_the_numbers_and_layouts_are_those_of_the_mount(self) -> None:
        numbers = [_ioctl.OPEN, _ioctl.ROWS, _ioctl.PATHS, _ioctl.RANGES, _ioctl.AT, _ioctl.CLOSE]
        self.assertEqual(_ioctl.OWNED, 0xC7D04C16)
        self.assertEqual(numbers, [0x40404C10, 0x7E804C11, 0x7E804C12, 0x7E804C13, 0x40404C14, 0x40404C15])
        plan = bytes(range(16))
        opened = _ioctl.encode_open(plan, b"\x03" * 32, 9)
        self.assertEqual((len(opened), opened[16:48], opened[48:56]), (64, b"\x03" * 32, struct.pack("<Q", 9)))
        rows = _ioctl.encode_rows(plan, 100, 90, True, [1, 256])
        self.assertEqual((len(rows), rows[:16]), (16_000, plan))
        self.assertEqual(rows[16:48], struct.pack("<QQIIII", 100, 90, 2, 1, 1, 256))
        ranges = _ioctl.encode_ranges(plan, 0, 0, False, [(7, 4096, 50)])
        self.assertEqual(ranges[32:56], struct.pack("<IIQII", 1, 0, 4096, 7, 50))
        self.assertEqual(_ioctl.encode_paths(plan, 0, 0, False, [b"a/b", b"", b"c"])[40:48], b"a/b\0\0c\0\0")
        self.assertEqual(len(_ioctl.encode_rows(plan, 0, 0, False, [0] * _ioctl.ROWS_MOST)), 16_000)
        self.assertEqual(_ioctl.paths_that_fit([b"x" * 7_979] * 3), 2)

    def test_another_file_system_answers_enotty(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            fd = os.open(folder, os.O_RDONLY)
            try:
                with self.assertRaises(OSError) as caught:
                    _ioctl.ioctl(fd, _ioctl.AT, _ioctl.encode_at(b"x" * 16, 0))
            finally:
                os.close(fd)
        self.assertEqual(caught.exception.errno, errno.ENOTTY)

    def test_owners_are_asked_for_in_parts(self) -> None:
        asked = []

        def owned(_: int, first: int, count: int) -> bytes:
            asked.append((first, count))
            return bytes((count + 7) // 8)

        with mock.patch("larder._ioctl.owned", owned):
            self.assertEqual(len(larder.MountInfo("/", True).owned(40_001)), 5_001)
        self.assertEqual(asked, [(0, 16_000), (16_000, 16_000), (32_000, 8_001)])
        with self.assertRaises(OSError):
            larder.MountInfo("/proc", True).owned(1)


class MountTest(unittest.TestCase):
    def found(self, text: str, path: str) -> object:
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(text)
            file.flush()
            return find_mount(path, file.name)

    def test_the_innermost_mount_decides(self) -> None:
        text = (
            "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
            "2 1 0:98 / /mnt/a\\040b ro shared:1 - fuse larder:set ro\n"
            "3 2 0:99 /sub /mnt/part ro - fuse.larder larder:set ro\n"
            "4 2 8:2 / /mnt/part/inner rw - ext4 larder:no rw\n"
            "torn\n"
        )
        self.assertEqual(self.found(text, "/mnt/a b/x"), larder.MountInfo("/mnt/a b", True))
        self.assertEqual(self.found(text, "/mnt/part"), larder.MountInfo("/mnt/part", False))
        for path in ("/mnt/part/inner/x", "/mnt/partial", "/other"):
            self.assertIsNone(self.found(text, path))
        self.assertIsNone(find_mount("/", "/nonexistent"))

    def test_what_is_not_visible_is_an_error_that_says_what_to_do(self) -> None:
        with self.assertRaisesRegex(ValueError, "not in a Larder mount; `larder stats`"):
            larder.mount_info("/proc")
        for read in (larder.MountInfo("/mnt", False).stats, larder.MountInfo("/mnt", False).manifest):
            with self.assertRaisesRegex(FileNotFoundError, "without subPath"):
                read()


class PlanTest(unittest.TestCase):
    def setUp(self) -> None:
        self.paths = [f"/data/d/{n:05}" for n in range(100_000)]

    def plan(self, mount: FakeMount, count: int) -> Plan:
        return Plan("/data", lambda start, stop: self.paths[start:stop], count)

    def test_items_are_put_as_the_mount_wants_them(self) -> None:
        mount = FakeMount()
        mount.takes = 5_000
        with mount.mounted():
            plan = self.plan(mount, 20_000)
            at = 0
            while at < 20_000:
                plan.advance(at, 20_000)
                self.assertLessEqual(len(mount.items()), at + 5_000)
                self.assertGreater(len(mount.items()), at)
                at += 1_000
            self.assertEqual(mount.items(), [path[len("/data/") :] for path in self.paths[:20_000]])
            self.assertLess(len(mount.calls), 100)

    def test_items_are_asked_for_about_once(self) -> None:
        for items in (self.paths, range(100_000)):
            mount = FakeMount()
            asked = 0

            def of(start: int, stop: int) -> Any:
                nonlocal asked
                asked += stop - start
                return items[start:stop]

            with mount.mounted():
                plan = Plan("/data", of, 100_000)
                for _ in range(100):
                    plan.advance(0, 100_000)
            self.assertEqual(len(mount.items()), 65_536)
            self.assertLess(asked, 1.25 * 65_536)

    def test_it_goes_on_after_a_restart_from_where_its_reader_is(self) -> None:
        mount = FakeMount()
        mount.takes = 1_000
        with mount.mounted():
            plan = self.plan(mount, 0)
            plan.advance(0, 2_000)
            mount.restart()
            plan.advance(500, 2_000)
            self.assertEqual(mount.history[-1]["puts"][0][0], 500)
            self.assertEqual(mount.items()[0], "d/00500")

    def test_a_mount_that_takes_no_plans_is_left_alone(self) -> None:
        for error in (errno.ENOTTY, errno.ENOSPC, errno.ENOTCONN, errno.EPERM):
            mount = FakeMount()
            mount.errors = [error]
            with mount.mounted():
                plan = self.plan(mount, 10)
                self.assertFalse(plan.is_active)
                plan.advance(0, 10)
                plan.close()
            self.assertEqual(len(mount.calls), 1)
        mount = FakeMount()
        with mount.mounted():
            plan = self.plan(mount, 10)
            mount.errors = [errno.ENOTCONN]
            plan.advance(0, 10)
            self.assertFalse(plan.is_active, "the mount is dead")

    def test_a_folder_in_no_mount_is_never_asked(self) -> None:
        mount = FakeMount()
        with mount.mounted():
            plan = Plan("/elsewhere", lambda start, stop: self.paths[start:stop])
            plan.advance(0, 10)
            self.assertEqual((plan.is_active, mount.calls), (False, []))

    def test_paths_outside_of_the_mount_keep_their_positions(self) -> None:
        mount = FakeMount()
        with mount.mounted():
            long = "/data/d/" + "n" * 5_000
            items = ["/data/a", "/other/b", "/data/../x", long, "/data/d/..", "/data/d/", "/data/d/c"]
            Plan("/data", lambda start, stop: items[start:stop]).advance(0, 7)
            self.assertEqual(mount.items(), ["a", "", "", "", "", "", "d/c"])

    def test_rows_and_ranges(self) -> None:
        mount = FakeMount()
        with mount.mounted(), mock.patch("os.stat", lambda _: mock.Mock(st_ino=1 + 3 + 7)):
            Plan("/data", lambda start, stop: range(50)[start:stop]).advance(0, 50)
            self.assertEqual(mount.items(), list(range(50)))
            items = [("/data/big", 4096, 10), ("/data/big", 0, 0)]
            Plan("/data", lambda start, stop: items[start:stop]).advance(0, 2)
            self.assertEqual(mount.items(), [(7, 4096, 10), (7, 0, 1)])
        with mount.mounted(is_whole=False), mock.patch("os.stat", lambda _: mock.Mock(st_ino=11)):
            Plan("/data", lambda start, stop: items[start:stop]).advance(0, 1)
            self.assertEqual(mount.items(), [(0, (1 << 64) - 1, 1)], "the rows are not known")


class FilesTest(unittest.TestCase):
    def test_the_order_is_kept_and_planned(self) -> None:
        mount = FakeMount()
        names = [f"d/{n * 7919 % 10_007:05}" for n in range(10_007)]
        with mount.mounted():
            read = list(larder.files("/data", order=iter(names), in_flight=100))
        self.assertEqual(read, [f"/data/{name}" for name in names])
        self.assertEqual(mount.items(), names)
        self.assertEqual(mount.history[-1]["count"], len(names))
        self.assertLess(mount.history[-1]["passed"], len(names) - 100)

    def test_an_iterator_is_not_taken_to_its_end_before_the_first_file(self) -> None:
        taken = []

        def names() -> "object":
            for n in range(100_000):
                taken.append(n)
                yield str(n)

        with FakeMount().mounted():
            next(larder.files("/data", order=names()))  # type: ignore[arg-type]
        self.assertLess(len(taken), 5_000)

    def test_a_reader_of_large_files_gives_signs_and_a_pause_passes_what_was_yielded(self) -> None:
        names = [f"{n:03}" for n in range(100)]
        for seconds, signs, first in ((10.0, 99, 0), (100.0, 99, 50)):
            mount, now = FakeMount(), 0.0
            with mount.mounted(), mock.patch("larder._files.time.monotonic", lambda: now):
                for nth, _ in enumerate(larder.files("/data", order=names)):
                    now += seconds
                    if nth == 49:
                        mount.restart()
            self.assertGreaterEqual(len(mount.calls), signs, "a lease is shorter than 32 large files")
            self.assertEqual(mount.history[-1]["puts"][0][0], first)

    def test_an_order_is_given_or_chosen(self) -> None:
        with self.assertRaisesRegex(ValueError, "order= or shuffle="):
            larder.files("/data", order=["a"], shuffle=1)

    def test_a_plan_that_is_put_again_keeps_its_positions(self) -> None:
        mount = FakeMount()
        names = [f"{n:05}" for n in range(9_000)]
        with mount.mounted():
            for nth, _ in enumerate(larder.files("/data", order=names, in_flight=500)):
                if nth == 6_000:
                    mount.restart()
        items = mount.history[-1]["items"]
        self.assertTrue(all(item in ("", names[at]) for at, item in items.items()))
        self.assertEqual(items[8_999], names[8_999])

    def test_all_files_are_found_and_shuffled_by_a_seed(self) -> None:
        with tempfile.TemporaryDirectory() as root:
            for name in ("b/2", "b/1", "a", "c/d/3", ".larder/stats.json"):
                os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
                open(os.path.join(root, name), "w").close()
            expected = [os.path.join(root, name) for name in ("a", "b/1", "b/2", "c/d/3")]
            self.assertEqual(list(larder.files(root)), expected)
            shuffled = [list(larder.files(root, shuffle=seed)) for seed in range(20)]
            self.assertEqual(shuffled[3], list(larder.files(root, shuffle=3)))
            self.assertTrue(all(sorted(order) == expected for order in shuffled))
            self.assertGreater(len({tuple(order) for order in shuffled}), 1)
            self.assertEqual(list(larder.files(root, order=[])), [])


if __name__ == "__main__":
    unittest.main()
