"""Files in their order, with the mount ahead of the reader."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Optional

from ._mount import PathLike
from ._plan import LEASE, Item, Plan

# Items that are taken from an iterable before they are wanted.
LOOK_AHEAD = 4096

# The mount learns where the reader is after this many files, or this many seconds.
FILES_APART = 32
SECONDS_APART = 2.0


def files(
    folder: PathLike,
    order: Optional[Iterable[PathLike]] = None,
    *,
    shuffle: Optional[int] = None,
    in_flight: int = 1024,
) -> Iterator[str]:
    """Yields the paths of files below `folder`, and has the mount fetch them ahead.

    `order`: paths below `folder`, in the order in which they are read; an iterator is read ahead by some thousands.
    None: all files, sorted, or shuffled with the seed `shuffle`. `in_flight`: at most so many of the files that were
    yielded are not read yet. Of large files, such as shards, give the number of those that are read at a time.
    """
    root = os.fspath(folder)
    if order is not None and shuffle is not None:
        raise ValueError("files: give order= or shuffle=, not both")
    if order is None:
        names: Iterable[str] = sorted(_walk(root))
        if shuffle is not None:
            names = list(names)
            random.Random(shuffle).shuffle(names)
    else:
        names = (os.fspath(name) for name in order)
    return _planned(root, names, in_flight)


def _planned(root: str, names: Iterable[str], in_flight: int) -> Iterator[str]:
    coming = iter(names)
    # The paths that were taken and not yielded, from the position `first` on.
    taken: list[str] = []
    first = 0

    def items(start: int, stop: int) -> Sequence[Item]:
        # Those before `first` were yielded. An empty path is no file.
        return [""] * min(first - start, stop - start) + taken[max(start - first, 0) : max(stop - first, 0)]

    plan = Plan(root, items)
    is_over = False
    # When the mount last learned where the reader is.
    said = time.monotonic()
    while True:
        # In steps, so that the list is not copied for each file.
        if not is_over and len(taken) < LOOK_AHEAD:
            taken = taken + [os.path.join(root, name) for _, name in zip(range(LOOK_AHEAD), coming)]
            is_over = len(taken) < LOOK_AHEAD
            if is_over:
                plan.finish(first + len(taken))
        if not taken:
            return
        step = taken[:256]
        for nth, path in enumerate(step):
            silent = time.monotonic() - said
            if nth % FILES_APART == 0 or silent >= SECONDS_APART:
                # By the end of a lease, all that was yielded before has been read.
                passed = first + nth if silent >= LEASE else max(first + nth - in_flight, 0)
                plan.advance(passed, first + len(taken))
                said = time.monotonic()
            yield path
        first += len(step)
        taken = taken[len(step) :]


def _walk(root: str) -> Iterator[str]:
    """The files below a folder, which are not looked at: listings say what is a folder."""
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(os.path.join(root, folder)) as entries:
            for entry in entries:
                name = os.path.join(folder, entry.name)
                if entry.is_dir(follow_symlinks=False):
                    if name != ".larder":
                        folders.append(name)
                else:
                    yield name
