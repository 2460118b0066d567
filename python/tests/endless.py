"""Reads a real mount in an endless plan, while the process that serves it is stopped and killed.

    endless.py MOUNT EXPECTED

Compares each file with the one in the folder EXPECTED. For each line of its standard input, it prints one once it has
read 100 files more. Ends some thousand files after its standard input.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from typing import Iterator

import larder


def main(root: str, expected: str) -> None:
    names = [os.path.relpath(path, expected) for path in larder.files(expected)]
    asked, is_over = threading.Semaphore(0), threading.Event()

    def listen() -> None:
        for _ in sys.stdin:
            asked.release()
        is_over.set()

    threading.Thread(target=listen, daemon=True).start()

    def order() -> Iterator[str]:
        while not is_over.is_set():
            random.shuffle(names)
            yield from names

    # The files to read until the next answer.
    missing = 0
    for path in larder.files(root, order=order()):
        with open(path, "rb") as file, open(os.path.join(expected, os.path.relpath(path, root)), "rb") as other:
            assert file.read() == other.read(), path
            # So that the next read of this file asks the mount again.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if missing:
            missing -= 1
            if not missing:
                print("read", flush=True)
        elif asked.acquire(blocking=False):
            missing = 100


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
