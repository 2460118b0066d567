"""Reads a real mount with plans: live.py MOUNT PID. Prints nothing, and fails if something is wrong.

PID serves the mount. It is stopped for a while, during which every thread of this program but the one that asks the
mount must go on.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time

import larder


def main(root: str, pid: int) -> None:
    info = larder.mount_info(root)
    assert info.is_whole and info.path == os.path.realpath(root), info
    lookups = looked_up(info)
    names = [os.path.relpath(path, root) for path in larder.files(root)]
    random.Random(1).shuffle(names)
    assert looked_up(info) - lookups < len(names) / 2, "listing looked at the files"
    before = counted(info)
    for path in larder.files(root, order=names):
        with open(path, "rb") as file:
            assert len(file.read()) > 0
    after = counted(info)
    planned = sum(after.values()) - sum(before.values())
    assert planned > len(names) / 2, (before, after)
    assert after["fs_plan_blocks_wasted_total"] == before["fs_plan_blocks_wasted_total"], (before, after)

    rows = larder.Plan(root, lambda start, stop: range(len(names))[start:stop], len(names))
    rows.advance(0, len(names))
    assert rows.is_active and rows.row_of(os.stat(os.path.join(root, names[0])).st_ino) in range(len(names))
    rows.close()
    # It has no peers.
    owned = int.from_bytes(info.owned(len(names) + 1), "little")
    assert owned == (1 << len(names)) - 1, bin(owned)

    threads_go_on_while_the_mount_does_not_answer(root, names, pid)


def looked_up(info: larder.MountInfo) -> int:
    # The file keeps its content for 50 ms.
    time.sleep(0.1)
    lookups: int = info.stats()["metrics"]["fs_lookups_total"]
    return lookups


def counted(info: larder.MountInfo) -> dict[str, int]:
    # The file keeps its content for 50 ms.
    time.sleep(0.1)
    return {name: value for name, value in info.stats()["metrics"].items() if name.startswith("fs_plan_blocks")}


def threads_go_on_while_the_mount_does_not_answer(root: str, names: list[str], pid: int) -> None:
    paths = [os.path.join(root, name) for name in names]
    plan = larder.Plan(root, lambda start, stop: paths[start:stop], len(paths))
    turns = 0
    is_over = threading.Event()

    def turn() -> None:
        nonlocal turns
        while not is_over.is_set():
            turns += 1
            time.sleep(0.001)

    def go_on_after_100_turns() -> None:
        begun = turns
        while turns < begun + 100:
            time.sleep(0.001)
        os.kill(pid, signal.SIGCONT)

    threading.Thread(target=turn, daemon=True).start()
    # If the threads do not go on, nothing here can end the wait.
    rescue = subprocess.Popen(["sh", "-c", f"sleep 60; kill -CONT {pid}"], start_new_session=True)
    os.kill(pid, signal.SIGSTOP)
    starter = threading.Thread(target=go_on_after_100_turns)
    starter.start()
    begun = turns
    plan.advance(0, len(names))
    assert turns > begun, "no thread went on while the mount did not answer"
    starter.join()
    is_over.set()
    # With its sleep, which would keep this program's output open until it ends.
    os.killpg(rescue.pid, signal.SIGKILL)
    rescue.wait()
    assert plan.is_active
    plan.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
