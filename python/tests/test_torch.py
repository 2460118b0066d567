"""`larder.torch`, with a fake mount. Needs torch: without it, these tests fail in CI and are skipped elsewhere."""

from __future__ import annotations

import copy
import errno
import hashlib
import itertools
import os
import pickle
import random
import re
import tempfile
import unittest
import warnings
from array import array
from typing import Any, Callable, Iterator
from unittest import mock

from fake import FakeMount

try:
    import torch
    from torch.utils import data
    from torch.utils.data.distributed import DistributedSampler

    import larder.torch as lt
    from larder._mount import MountInfo
except ImportError as missing:
    if os.environ.get("CI"):
        raise
    raise unittest.SkipTest(f"SKIPPED, not passed: {missing}") from missing

N = 103
PATHS = [f"/data/{n % 7}/{n:04}" for n in range(N)]
NAMES = [path[len("/data/") :] for path in PATHS]


class Samples(data.Dataset):  # type: ignore[misc, type-arg]
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: Any) -> Any:
        # A transform that draws random numbers.
        return index, torch.rand(1)


class Stream(data.IterableDataset):  # type: ignore[misc, type-arg]
    pass


class Lazy(data.Sampler):  # type: ignore[misc, type-arg]
    """Draws from the global generator one by one."""

    def __init__(self) -> None:
        pass

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        for _ in range(N):
            yield int(torch.randint(N, (1,)))


class Reversed(data.SequentialSampler):  # type: ignore[misc]
    """A known sampler with another order."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(N - 1, -1, -1))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "sequential": lambda: {},
    "shuffle": lambda: {"shuffle": True},
    "generator": lambda: {"sampler": data.RandomSampler(range(N), generator=generator())},
    "loader's generator": lambda: {"shuffle": True, "generator": generator()},
    "replacement": lambda: {"sampler": data.RandomSampler(range(N), replacement=True, num_samples=80)},
    "subset": lambda: {"sampler": data.SubsetRandomSampler(list(range(0, N, 2)))},
    "weighted": lambda: {"sampler": data.WeightedRandomSampler([1.0 + n for n in range(N)], 90)},
    "distributed": lambda: {"sampler": DistributedSampler(range(N), 4, 1)},
    "distributed, dropped": lambda: {"sampler": DistributedSampler(range(N), 4, 3, drop_last=True)},
    "lazy": lambda: {"sampler": Lazy()},
    "subclass": lambda: {"sampler": Reversed(range(N))},
    "ours": lambda: {"sampler": lt.Sampler(range(N), seed=3, num_replicas=2, rank=1)},
    "batch sampler": lambda: {"batch_sampler": data.BatchSampler(data.RandomSampler(range(N)), 9, True)},
    "no batches": lambda: {"batch_size": None, "sampler": data.RandomSampler(range(N))},
}


def epochs(kind: str, workers: int, is_planned: bool, path: Callable[[int], str] = PATHS.__getitem__) -> Any:
    """The samples of three epochs, and the random states after them."""
    torch.manual_seed(1)
    random.seed(1)
    arguments = SAMPLERS[kind]()
    if "batch_sampler" not in arguments:
        arguments = {"batch_size": 8, **arguments}
    loader = data.DataLoader(Samples(), num_workers=workers, persistent_workers=workers > 0, **arguments)
    if is_planned:
        assert lt.planned(loader, path) is loader
    seen: list[Any] = []
    digest = hashlib.sha256()
    for epoch in range(3):
        if hasattr(arguments.get("sampler"), "set_epoch"):
            arguments["sampler"].set_epoch(epoch)
        for indices, values in loader:
            seen += indices.tolist() if isinstance(indices, torch.Tensor) else [indices]
            digest.update(pickle.dumps(values.tolist()))
    return seen, digest.hexdigest(), torch.get_rng_state().tolist(), random.getstate()


class PlannedTest(unittest.TestCase):
    def test_samples_order_and_random_states_are_equal_with_and_without_a_plan(self) -> None:
        for kind in SAMPLERS:
            for workers in (0, 2):
                with self.subTest(kind, workers=workers):
                    expected = epochs(kind, workers, False)
                    mount = FakeMount()
                    with mount.mounted():
                        found = epochs(kind, workers, True)
                    self.assertEqual(found, expected)
                    self.assertEqual(len(mount.history), 3, "a plan for each epoch")
                    planned = [name for epoch in range(3) for name in mount.items(epoch)]
                    self.assertEqual(planned, [NAMES[index] for index in expected[0]])

    def test_known_orders_are_put_before_they_are_handed_over(self) -> None:
        ahead = {kind for kind in SAMPLERS if self.items_after_one_batch(kind) > 9}
        self.assertEqual(set(SAMPLERS) - ahead, {"replacement", "lazy", "subclass"})

    def items_after_one_batch(self, kind: str) -> int:
        mount = FakeMount()
        arguments = {"batch_size": 8, **SAMPLERS[kind]()}
        if "batch_sampler" in arguments:
            del arguments["batch_size"]
        with mount.mounted():
            next(iter(lt.planned(data.DataLoader(Samples(), **arguments), PATHS.__getitem__)))
        return len(mount.items())

    def test_what_was_read_passes(self) -> None:
        for workers, lag in ((0, 8), (2, 8 * (2 * 2 + 1))):
            mount = FakeMount()
            with mount.mounted():
                loader = lt.planned(data.DataLoader(Samples(), 8, num_workers=workers), PATHS.__getitem__)
                for _ in loader:
                    pass
            self.assertEqual(mount.history[0]["passed"], N - (lag - 8 + N % 8), "all but the last batches")

    def test_an_order_that_turns_out_wrong_is_replaced_by_what_is_handed_over(self) -> None:
        order = torch.arange(N)
        mount = FakeMount()
        with mount.mounted():
            watch = lt._Watch(PATHS.__getitem__, mock.Mock(num_workers=0))
            watch.begin(order)
            batches = [[0, 1, 2], [3, 4, 5], [90, 7, 20], [8, 9, 10]]
            for batch in batches:
                watch.handed_over(batch)
            watch.end()
        self.assertEqual(mount.items(), [NAMES[index] for batch in batches for index in batch])
        self.assertEqual(mount.history[0]["count"], 12)

    def test_a_wrong_order_is_replaced_at_once_also_if_the_plan_is_full_of_it(self) -> None:
        mount = FakeMount()
        mount.takes = 40
        with mount.mounted():
            # Nothing counts as read yet.
            watch = lt._Watch(PATHS.__getitem__, mock.Mock(num_workers=8, prefetch_factor=4))
            watch.begin(torch.arange(N))
            watch.handed_over(list(range(8)))
            self.assertEqual(len(mount.items()), 40)
            watch.handed_over([90, 7, 20])
        self.assertEqual(mount.items()[8:], [NAMES[index] for index in (90, 7, 20)])

    def test_a_wrong_order_is_not_followed_from_place_to_place(self) -> None:
        mount = FakeMount()
        with mount.mounted():
            watch = lt._Watch(PATHS.__getitem__, mock.Mock(num_workers=0))
            watch.begin(torch.arange(N))
            for index in (0, 50, 7, 90, 3):
                watch.handed_over([index])
        self.assertIsNone(watch.order)
        items = mount.history[0]["items"]
        self.assertEqual([items[at] for at in sorted(items)[-3:]], [NAMES[index] for index in (7, 90, 3)])

    def test_batches_of_any_kind_are_planned(self) -> None:
        for kind in (list, tuple, torch.as_tensor, lambda batch: array("l", batch)):
            mount = FakeMount()
            with mount.mounted():
                watch = lt._Watch(PATHS.__getitem__, mock.Mock(num_workers=0))
                watch.begin(None)
                watch.handed_over(kind([5, 3, 8]))
                watch.handed_over(kind([1]))
            self.assertEqual(mount.items(), [NAMES[index] for index in (5, 3, 8, 1)])

    def test_a_resumed_epoch_is_found_in_the_order(self) -> None:
        order = torch.randperm(N, generator=generator())
        mount = FakeMount()
        with mount.mounted():
            watch = lt._Watch(PATHS.__getitem__, mock.Mock(num_workers=0))
            watch.begin(order)
            for at in range(40, 103, 8):
                watch.handed_over(order[at : at + 8].tolist())
        items = mount.history[0]["items"]
        self.assertEqual([items[at] for at in range(40, 103)], [NAMES[index] for index in order[40:].tolist()])
        self.assertIs(watch.order, order)

    def test_a_restart_in_mid_epoch_costs_only_the_plan(self) -> None:
        expected = epochs("shuffle", 0, False)
        mount = FakeMount()
        calls = 0

        def path(index: int) -> str:
            nonlocal calls
            calls += 1
            if calls % 50 == 0:
                mount.restart()
            return PATHS[index]

        with mount.mounted():
            self.assertEqual(epochs("shuffle", 0, True, path), expected)

    def test_after_a_pause_what_was_handed_over_counts_as_read(self) -> None:
        for pause, first in ((1.0, 70), (100.0, 80)):
            mount, now = FakeMount(), 0.0
            with mount.mounted(), mock.patch("larder.torch.time.monotonic", lambda: now):
                watch = lt._Watch(PATHS.__getitem__, mock.Mock(num_workers=1, prefetch_factor=1))
                watch.begin(torch.arange(N))
                for at in range(0, 80, 10):
                    watch.handed_over(list(range(at, at + 10)))
                # The lease of its plan ends meanwhile.
                mount.restart()
                now += pause
                watch.handed_over(list(range(80, 90)))
            self.assertEqual(mount.history[-1]["puts"][0][0], first)

    def test_each_mount_of_the_samples_has_a_plan_and_what_is_in_none_ends_none(self) -> None:
        # The first samples are in no mount.
        paths = [f"/{('elsewhere', 'data', 'other')[n % 3 if n > 7 else 0]}/{n:04}" for n in range(N)]
        mounts = FakeMount("/data"), FakeMount("/other")

        def find(path: Any) -> Any:
            return next((MountInfo(one.root, False) for one in mounts if path.startswith(one.root)), None)

        def opened(path: str, *_: Any) -> int:
            # Each mount has a descriptor of its own, by which its calls are known.
            fd = os.dup(0)
            known[fd] = next(one for one in mounts if one.root == path)
            return fd

        known: dict[int, FakeMount] = {}
        ioctl = mock.patch("larder._ioctl.ioctl", lambda fd, number, data: known[fd].ioctl(fd, number, data))
        with mock.patch("larder._plan.find_mount", find), mock.patch("larder._plan.os.open", opened), ioctl:
            for order in (None, torch.arange(N)):
                watch = lt._Watch(paths.__getitem__, mock.Mock(num_workers=0))
                watch.begin(order)
                for at in range(0, N, 8):
                    watch.handed_over(list(range(at, min(at + 8, N))))
                for one in mounts:
                    items = one.history[-1]["items"]
                    expected = {at: path[len(one.root) + 1 :] for at, path in enumerate(paths) if one.root in path}
                    found = {at: item for at, item in items.items() if item}
                    self.assertGreater(len(found), 25)
                    self.assertTrue(found.items() <= expected.items())
                watch.begin(None)

    def test_a_plan_that_was_refused_is_tried_in_the_next_epoch(self) -> None:
        mount = FakeMount()
        with mount.mounted():
            loader = lt.planned(data.DataLoader(Samples(), 8), PATHS.__getitem__)
            mount.errors = [errno.ENOSPC]
            list(loader)
            self.assertEqual(mount.history, [])
            list(loader)
        self.assertEqual((mount.items(), mount.history[0]["puts"]), (NAMES, [(0, N)]), "its order is known")

    def test_whatever_goes_wrong_ends_the_plan_and_not_the_epoch(self) -> None:
        expected = epochs("shuffle", 2, False)

        def broken(index: int) -> str:
            raise KeyError(index)

        with FakeMount().mounted(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.assertEqual(epochs("shuffle", 2, True, broken), expected)
        self.assertEqual(len([w for w in caught if "not planned any more" in str(w.message)]), 1)
        for error in (errno.ENOTTY, errno.ENOTCONN, errno.EIO):
            mount = FakeMount()
            with mount.mounted():
                mount.errors = [error] * 1_000
                self.assertEqual(epochs("shuffle", 0, True), expected_of("shuffle"))

    def test_a_folder_in_no_mount_is_not_planned(self) -> None:
        mount = FakeMount(root="/elsewhere")
        with mount.mounted(), mock.patch("larder.torch.order_of", return_value=None) as order_of:
            self.assertEqual(epochs("shuffle", 0, True), expected_of("shuffle"))
        self.assertEqual((mount.calls, order_of.call_count), ([], 1), "its order is not computed again")

    def test_the_loader_is_still_one_and_its_copies_are_plain(self) -> None:
        loader = data.DataLoader(Samples(), 8)
        lt.planned(loader, PATHS.__getitem__)
        self.assertIsInstance(loader, data.DataLoader)
        self.assertEqual(type(loader).__name__, "DataLoader")
        for other in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
            self.assertIs(type(other), data.DataLoader)
            self.assertEqual(len(list(other)), 13)
        with self.assertRaisesRegex(TypeError, "planned already"):
            lt.planned(loader, PATHS.__getitem__)
        with self.assertRaisesRegex(TypeError, "give path="):
            lt.planned(data.DataLoader(Samples(), 8))
        with self.assertRaisesRegex(TypeError, "no DataLoader"):
            lt.planned(object(), PATHS.__getitem__)
        with self.assertRaisesRegex(TypeError, "larder.files"):
            lt.planned(data.DataLoader(Stream()), PATHS.__getitem__)

    def test_adapters_plan_the_loader_that_they_hold(self) -> None:
        adapter = mock.Mock(base_dataloader=data.DataLoader(Samples(), 8))
        self.assertIs(lt.planned(adapter, PATHS.__getitem__), adapter)
        mount = FakeMount()
        with mount.mounted():
            list(adapter.base_dataloader)
        self.assertEqual(mount.items(), NAMES)


def of_ranks(kind: str, world: int, workers: int, is_planned: bool) -> Any:
    """For each rank of `world` the samples of three epochs, of which the second begins in its middle, and random states
    after them."""
    every = []
    for rank in range(world):
        torch.manual_seed(rank)
        random.seed(rank)
        if kind == "distributed":
            sampler: Any = DistributedSampler(range(N), world, rank, seed=5)
        else:
            sampler = lt.Sampler(range(N), seed=5, num_replicas=world, rank=rank)
        loader = data.DataLoader(Samples(), 4, sampler=sampler, num_workers=workers)
        if is_planned:
            lt.planned(loader, PATHS.__getitem__)
        seen: list[list[int]] = []
        digest = hashlib.sha256()
        for epoch in range(3):
            begins_in_the_middle = kind == "ours" and epoch == 1
            sampler.set_epoch(epoch, *([12] if begins_in_the_middle else []))
            seen.append([])
            for indices, values in loader:
                seen[-1] += indices.tolist()
                digest.update(pickle.dumps((indices.tolist(), values.tolist())))
        every.append((seen, digest.hexdigest(), torch.get_rng_state().tolist(), random.getstate()))
    return every


class RanksTest(unittest.TestCase):
    def test_ranks_read_the_same_with_and_without_a_plan_also_from_the_middle_of_an_epoch(self) -> None:
        for kind, world, workers in itertools.product(("distributed", "ours"), (1, 4), (0, 2)):
            with self.subTest(kind, world=world, workers=workers):
                expected = of_ranks(kind, world, workers, False)
                mount = FakeMount()
                with mount.mounted():
                    self.assertEqual(of_ranks(kind, world, workers, True), expected)
                read = [names for rank in expected for names in rank[0]]
                self.assertEqual([mount.items(nth) for nth in range(3 * world)], [[NAMES[i] for i in e] for e in read])
                for epoch in (0, 2):
                    together = {index for rank in expected for index in rank[0][epoch]}
                    self.assertEqual(together, set(range(N)))

    def test_a_plan_changes_nothing_of_an_epoch_that_is_left_and_begun_again(self) -> None:
        def read(is_planned: bool) -> Any:
            torch.manual_seed(3)
            loader = data.DataLoader(Samples(), 8, shuffle=True, num_workers=2)
            if is_planned:
                lt.planned(loader, PATHS.__getitem__)
            part = [indices.tolist() for indices, _ in itertools.islice(loader, 5)]
            whole = [(indices.tolist(), values.tolist()) for indices, values in loader]
            return part, whole, torch.get_rng_state().tolist()

        with FakeMount().mounted():
            self.assertEqual(read(True), read(False))


def expected_of(kind: str, _known: dict[str, Any] = {}) -> Any:
    if kind not in _known:
        _known[kind] = epochs(kind, 0, False)
    return _known[kind]


class Stateful:
    """As torchdata's: the sampler and its iterator have a state, and share it."""

    def __init__(self) -> None:
        self.at = 0

    def __len__(self) -> int:
        return N

    def __iter__(self) -> "Stateful":
        return self

    def __next__(self) -> list[int]:
        if self.at >= N:
            self.at = 0
            raise StopIteration
        self.at += 4
        return list(range(self.at - 4, min(self.at, N)))

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class StateTest(unittest.TestCase):
    def test_a_sampler_has_a_state_exactly_if_the_real_one_has(self) -> None:
        watch = lt._Watch(PATHS.__getitem__, mock.Mock(num_workers=0))
        plain = lt._WatchedSampler(data.SequentialSampler(range(N)), watch)
        self.assertFalse(hasattr(plain, "state_dict") or hasattr(iter(plain), "state_dict"))
        stateful = lt._StatefulSampler(Stateful(), watch)
        with FakeMount().mounted():
            batches = iter(stateful)
            self.assertEqual([next(batches), next(batches)], [[0, 1, 2, 3], [4, 5, 6, 7]])
        state = stateful.state_dict()
        self.assertEqual(state, {"at": 8})
        stateful.load_state_dict({"at": 40})
        self.assertEqual(next(batches)[0], 40)


class SamplerTest(unittest.TestCase):
    def test_without_dealing_it_is_the_distributed_sampler(self) -> None:
        for n in (1, 7, 100, 103):
            for replicas in (1, 4):
                for shuffle in (False, True):
                    for drop_last in (False, True):
                        for rank in range(replicas):
                            theirs = DistributedSampler(range(n), replicas, rank, shuffle, 3, drop_last)
                            ours = lt.Sampler(
                                range(n), seed=3, shuffle=shuffle, num_replicas=replicas, rank=rank, drop_last=drop_last
                            )
                            for epoch in range(2):
                                theirs.set_epoch(epoch)
                                ours.set_epoch(epoch)
                                self.assertEqual(len(ours), len(theirs))
                                self.assertEqual(list(ours), list(theirs))

    def test_an_epoch_begins_in_its_middle_by_an_integer(self) -> None:
        sampler = lt.Sampler(range(N), seed=1, num_replicas=2, rank=0)
        sampler.set_epoch(4)
        whole = list(sampler)
        sampler.set_epoch(4, 20)
        self.assertEqual((len(sampler), list(sampler)), (len(whole) - 20, whole[20:]))
        self.assertEqual(len(sampler), len(whole), "the next one is whole")
        sampler.set_epoch(4)
        part = iter(sampler)
        [next(part) for _ in range(7)]
        other = lt.Sampler(range(N), seed=1, num_replicas=2, rank=0)
        other.load_state_dict(sampler.state_dict())
        # A framework sets the epoch that the state has once more.
        other.set_epoch(4)
        self.assertEqual(list(other), whole[7:])
        # A loader may have drawn all of them before it hands over the last.
        other.load_state_dict(other.state_dict())
        self.assertEqual((len(other), list(other)), (0, []))
        other.set_epoch(5)
        self.assertEqual(len(list(other)), len(whole))

    def test_dealing_keeps_each_global_batch_and_gives_ranks_what_is_theirs(self) -> None:
        def owner(index: int) -> list[int]:
            return [] if index % 11 == 0 else [index * 7 % 4]

        plain = [list(lt.Sampler(range(N), seed=2, num_replicas=4, rank=rank)) for rank in range(4)]
        dealt = [
            list(lt.Sampler(range(N), seed=2, num_replicas=4, rank=rank, deal=owner, batch_size=8)) for rank in range(4)
        ]
        own = lambda hands: sum(rank in owner(index) for rank, hand in enumerate(hands) for index in hand)
        for at in range(0, 26, 8):
            batch = lambda hands: sorted(index for hand in hands for index in hand[at : at + 8])
            self.assertEqual(batch(dealt), batch(plain))
        self.assertEqual([len(hand) for hand in dealt], [26] * 4)
        self.assertGreater(own(dealt), 0.75 * N)
        self.assertLess(own(plain), 0.5 * N)

    def test_of_large_batches_ranks_get_nearly_all_that_their_node_is_to_keep(self) -> None:
        # 4 nodes, of which each is to keep files at random, and 256 samples of each in a batch.
        chosen = random.Random(1)
        owners = [[chosen.randrange(4)] for _ in range(20_000)]
        sampler = [
            lt.Sampler(owners, seed=2, num_replicas=4, rank=rank, deal=owners.__getitem__, batch_size=256)
            for rank in range(4)
        ]
        hands = [list(one) for one in sampler]
        of_others = sum(owners[index] != [rank] for rank, hand in enumerate(hands) for index in hand)
        self.assertLess(of_others, 0.03 * len(owners))

    def test_owners_are_those_whose_nodes_say_so(self) -> None:
        # Two nodes with two ranks each, of which the first is to keep the even rows.
        even, odd = bytes([0b01010101] * 13), bytes([0b10101010] * 13)
        folder = mock.Mock(_rows=list(range(N)), root="/data")
        owned = mock.patch("larder._mount.MountInfo.owned", lambda _, files: odd if files == N else b"")
        gathered = mock.patch("larder.torch.torch.distributed.is_initialized", lambda: True)

        # Of each rank of the data, two processes share the work of a batch.
        world = mock.patch("larder.torch.torch.distributed.get_world_size", lambda: 8)

        def gather(every: Any, mine: Any) -> None:
            self.assertEqual((mine, len(every)), ((2, odd), 8))
            every[:] = [(rank // 2, bits) for rank, bits in enumerate([even] * 4 + [odd] * 2 + [b""] * 2)]

        found = mock.patch("larder.torch.find_mount", mounted_at("/data"))
        exchange = mock.patch("larder.torch.torch.distributed.all_gather_object", gather)
        with owned, gathered, found, exchange, world:
            owners = lt._owners(folder, 4, 2)
        self.assertEqual([owners(index) for index in (0, 1, 102)], [[0, 1], [2], [0, 1]])
        with mock.patch("larder.torch.find_mount", lambda _: None):
            self.assertEqual(lt._owners(folder, 1, 0)(3), [])
            folder._rows = None
            sampler = lt.Sampler(range(N), seed=2, deal="owner", batch_size=8)
            self.assertEqual(sorted(sampler), list(range(N)), "it is in no mount")

    def test_mistakes_are_named(self) -> None:
        with self.assertRaisesRegex(ValueError, "deal='some'"):
            lt.Sampler(range(N), deal="some")
        with self.assertRaisesRegex(ValueError, "batch_size="):
            lt.Sampler(range(N), deal=lambda index: [0])
        with self.assertRaisesRegex(ValueError, "rank 2"):
            lt.Sampler(range(N), num_replicas=2, rank=2)


class ImageFolderTest(unittest.TestCase):
    def test_samples_are_those_of_torchvision_and_rows_follow_from_the_inodes(self) -> None:
        with tempfile.TemporaryDirectory() as root:
            names = ["b/2.png", "b/10.JPG", "b/x/1.png", "b/x.png", "a/1.jpeg", "a/readme.txt", ".larder/stats.json"]
            for name in [*names, "top.png"]:
                os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
                open(os.path.join(root, name), "w").close()
            folder = lt.ImageFolder(root, transform=lambda x: x + "!", target_transform=str, loader=os.path.basename)
            self.assertEqual(folder.classes, ["a", "b"])
            found = [os.path.relpath(path, root) for path, _ in folder.samples]
            self.assertEqual(found, ["a/1.jpeg", "b/10.JPG", "b/2.png", "b/x.png", "b/x/1.png"])
            self.assertEqual((folder.targets, len(folder), folder[1]), ([0, 1, 1, 1, 1], 5, ("10.JPG!", "1")))
            self.assertEqual(folder.larder_item(0), folder.samples[0][0], "it is in no mount")
            inodes = [os.stat(path).st_ino for path, _ in folder.samples]
            mount = FakeMount(root, dirs=min(inodes) - 1)
            with mount.mounted() as mounted, mock.patch("larder.torch.find_mount", mounted_at(root)), mock.patch.object(
                FakeMount, "manifest", lambda _: {"snapshot": "ab" * 32, "dirs": min(inodes) - 1, "files": 1 << 31}
            ):
                rows = lt.ImageFolder(root)._rows
                loader = lt.planned(data.DataLoader(folder, 2, collate_fn=list))
                self.assertEqual(len(list(loader)), 3)
            self.assertEqual(list(rows or []), [inode - min(inodes) for inode in inodes])
            self.assertEqual(mount.items(), found)
            with self.assertRaisesRegex(FileNotFoundError, "no class"):
                lt.ImageFolder(os.path.join(root, "a"))


class PageTest(unittest.TestCase):
    def test_the_examples_of_the_page_run(self) -> None:
        page = os.path.join(os.path.dirname(__file__), "../../docs/PYTHON.md")
        with open(page) as file, tempfile.TemporaryDirectory() as root:
            os.mkdir(os.path.join(root, "class"))
            open(os.path.join(root, "class", "1.jpg"), "w").close()
            ds = lt.ImageFolder(root)
            names: dict[str, Any] = {"ds": ds, "any_sampler": data.SequentialSampler(ds), "t": str, "epoch": 1}
            names |= {"names": ["class/1.jpg"], "tf": mock.MagicMock(), "webdataset": mock.MagicMock()}
            read: list[Any] = []
            names["tf"].data.Dataset.from_generator = lambda make, _: read.extend(make())
            names["webdataset"].DataPipeline = lambda make, *_: read.extend(make())
            examples = re.findall("```python\n(.*?)```", file.read(), re.DOTALL)
            for example in examples:
                with self.subTest(example):
                    exec(re.sub('"/data/[a-z]*"', repr(root), example), names)
        self.assertEqual(len(examples), 5)
        path = os.path.join(root, "class/1.jpg")
        self.assertEqual((names["path"], read), (path, [path, {"url": path}]))


def mounted_at(root: str) -> Callable[[Any], Any]:
    return lambda path: MountInfo(root, True)


if __name__ == "__main__":
    unittest.main()
