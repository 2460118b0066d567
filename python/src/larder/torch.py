"""For PyTorch: a DataLoader whose next samples are fetched ahead, a dataset of pictures, and a sampler.

    dl = larder.torch.planned(DataLoader(ds, sampler=any_sampler, num_workers=8), path=lambda i: ds.samples[i][0])
    ds = larder.torch.ImageFolder("/data/train", transform=t)
    s = larder.torch.Sampler(ds, seed=0)
"""

from __future__ import annotations

import functools
import os
import time
import warnings
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional, Protocol, TypeVar, Union

import torch
from torch.utils.data import Dataset, IterableDataset
from torch.utils.data import Sampler as _TorchSampler

from . import _plan
from ._mount import PathLike, find_mount
from ._order import order_of
from ._plan import LEASE, Item, Plan

__all__ = ["ImageFolder", "Sampler", "planned"]

L = TypeVar("L")

# Folders whose mounts are remembered.
REMEMBERED = 1 << 16

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class _Sized(Protocol):
    def __len__(self) -> int: ...


def planned(
    loader: L,
    path: Optional[Callable[[int], PathLike]] = None,
    *,
    ranges: Optional[Callable[[int], "tuple[PathLike, int, int]"]] = None,
) -> L:
    """Has the mount fetch what a DataLoader reads next. Returns the same loader.

    `path` returns the file of the sample with an index; `ranges` returns its file, offset and length. Of a
    `larder.torch.ImageFolder`, neither is needed. Samples, their order and all random states stay as they are. Files
    that are in no Larder mount are not planned.

    With accelerate, call it after `prepare`.
    """
    base = getattr(loader, "base_dataloader", None)
    if base is not None:
        # accelerate's adapters hold the loader that reads.
        planned(base, path, ranges=ranges)
        return loader
    dataset = getattr(loader, "dataset", None)
    if isinstance(dataset, IterableDataset):
        raise TypeError("planned: an IterableDataset chooses its files itself: have it iterate over larder.files")
    item = ranges or path or getattr(dataset, "larder_item", None)
    if item is None:
        raise TypeError("planned: give path=, a function from an index to the path of the sample's file")
    cls = type(loader)
    if hasattr(cls, "_larder_watch"):
        raise TypeError("planned: the loader is planned already")
    if not hasattr(cls, "_index_sampler"):
        raise TypeError(f"planned: {cls.__name__} is no DataLoader")
    watch = _Watch(item, loader)

    # With no other base, so that the loader can become one.
    class Planned(cls):  # type: ignore[misc, valid-type]
        _larder_watch = watch

        @property
        def _index_sampler(self) -> Any:
            inner = super()._index_sampler
            return (_StatefulSampler if hasattr(inner, "state_dict") else _WatchedSampler)(inner, watch)

        def __reduce_ex__(self, protocol: Any) -> Any:
            # A copy, also in another process, is the loader without its plan.
            return _without_plan, (cls,), self.__dict__.copy()

    Planned.__name__, Planned.__qualname__, Planned.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    loader.__class__ = Planned
    return loader


def _without_plan(cls: Any) -> Any:
    return object.__new__(cls)


class _Watch:
    """Follows one loader: what it has handed to its workers, and what it will."""

    def __init__(self, item: Callable[[int], Item], loader: Any) -> None:
        self.item = item
        workers = getattr(loader, "num_workers", 0)
        # Batches that were handed over and are not read yet.
        self.in_flight = workers * (getattr(loader, "prefetch_factor", None) or 2) if workers else 0
        # By mount. All have the same positions, and each leaves out what is not below its mount.
        self.plans: dict[str, Plan] = {}
        self.mount_of = functools.lru_cache(REMEMBERED)(lambda folder: _plan.find_mount(folder))
        self.is_first = True
        self.is_off = False

    @property
    def wants_order(self) -> bool:
        """False: no sample of the last epoch was in a mount, so the order of the next one would be of no use."""
        return not self.is_off and (self.is_first or bool(self.plans))

    def begin(self, order: Optional[torch.Tensor]) -> None:
        """An epoch begins."""
        for plan in self.plans.values():
            plan.close()
        self.plans = {}
        self.is_first = False
        # None: only what was handed over is known.
        self.order = order
        # Without an order: the indices from the position `first` on.
        self.handed: list[int] = []
        self.first = 0
        self.at = 0
        self.sizes: deque[int] = deque()
        # The last batch was elsewhere in the order than expected.
        self.has_jumped = False
        self.handed_at = time.monotonic()

    def handed_over(self, batch: Any) -> None:
        """A batch of indices goes to a worker, or is read now."""
        if self.is_off:
            return
        try:
            # A tensor or an array of numpy.
            batch = batch.tolist() if hasattr(batch, "tolist") else batch
            indices = list(batch) if isinstance(batch, (list, tuple)) else [batch]
            if indices:
                self._handed_over(indices)
        except Exception as error:
            # A plan is a hint. Whatever is wrong with it must not end the epoch.
            self.is_off = True
            warnings.warn(
                f"larder: samples are not planned any more; check path= or ranges= of planned: {error!r}", stacklevel=2
            )

    def end(self) -> None:
        """All batches of the epoch were handed over."""
        if not self.is_off:
            for plan in self.plans.values():
                plan.finish(self.at)

    def _handed_over(self, indices: Sequence[int]) -> None:
        # The first sample of each batch is enough to come to all mounts soon.
        folder = self._folder(indices[0])
        mount = self.mount_of(folder)
        if mount is not None and mount.path not in self.plans:
            self.plans[mount.path] = Plan(folder, self._items, 0 if self.order is None else len(self.order))
        start = self.at
        if self.order is not None and not self._follow(indices):
            # The order was wrong: from here on, only what is handed over is known.
            self.order, self.first = None, self.at
            for plan in self.plans.values():
                plan.finish(0)
                plan.replace_from(self.at)
        elif self.at != start:
            # A resumed epoch: it goes on elsewhere in the order.
            for plan in self.plans.values():
                plan.replace_from(self.at)
            self.sizes.clear()
        now = time.monotonic()
        if now - self.handed_at >= LEASE:
            # After a pause, as that of a validation, the workers have read all that they were handed.
            self.sizes.clear()
        self.handed_at = now
        if self.order is None:
            self.handed += indices
        self.at += len(indices)
        self.sizes.append(len(indices))
        while len(self.sizes) > self.in_flight + 1:
            self.sizes.popleft()
        passed = max(self.at - sum(self.sizes), 0)
        if self.order is None and passed - self.first > 4096:
            del self.handed[: passed - self.first]
            self.first = passed
        for plan in self.plans.values():
            plan.advance(passed, self.at if self.order is None else len(self.order))

    def _follow(self, indices: Sequence[int]) -> bool:
        """Finds the batch in the order. Usually it is at the next position; after a resume or a skip, elsewhere."""
        order = self.order
        assert order is not None
        batch = torch.as_tensor(list(indices))
        if torch.equal(order[self.at : self.at + len(indices)], batch):
            self.has_jumped = False
            return True
        if self.has_jumped:
            # In a wrong order, each small batch is somewhere else.
            return False
        self.has_jumped = True
        for place in (order == batch[0]).nonzero().reshape(-1).tolist():
            if torch.equal(order[place : place + len(indices)], batch):
                self.at = place
                return True
        return False

    def _items(self, start: int, stop: int) -> Sequence[Item]:
        if self.order is not None:
            return [self.item(index) for index in self.order[start:stop].tolist()]
        missing = min(max(self.first - start, 0), stop - start)
        known = self.handed[max(start - self.first, 0) : max(stop - self.first, 0)]
        items: list[Item] = [self.item(index) for index in known]
        if missing and items:
            # What was handed over long ago. An item of the same kind takes its place.
            return [items[0]] * missing + items
        return items

    def _folder(self, index: int) -> PathLike:
        item = self.item(index)
        if isinstance(item, int):
            folder: PathLike = self.item.__self__.root  # type: ignore[attr-defined]
            return folder
        name = item[0] if isinstance(item, tuple) else item
        return os.path.dirname(os.fspath(name))


class _WatchedIterator:
    def __init__(self, inner: Any, real: Any, watch: _Watch) -> None:
        self.inner, self.real, self.watch, self.has_begun = inner, real, watch, False

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if not self.has_begun:
            # Not before the first batch: the loader draws its seed for the workers from the same generator until then.
            self.has_begun = True
            self.watch.begin(order_of(self.inner) if self.watch.wants_order else None)
        try:
            batch = next(self.real)
        except StopIteration:
            self.watch.end()
            raise
        self.watch.handed_over(batch)
        return batch


class _StatefulIterator(_WatchedIterator):
    def state_dict(self) -> Any:
        return self.real.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.real.load_state_dict(state)


class _UpdatingIterator(_StatefulIterator):
    def update_state_dict(self) -> None:
        self.real.update_state_dict()


class _WatchedSampler:
    """A sampler that shows what it yields. It has a state exactly if the real one has: loaders ask for that."""

    def __init__(self, inner: Any, watch: _Watch) -> None:
        self.inner, self.watch = inner, watch

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Any:
        real = iter(self.inner)
        if real is self.inner or not hasattr(real, "state_dict"):
            return _WatchedIterator(self.inner, real, self.watch)
        kind = _UpdatingIterator if hasattr(real, "update_state_dict") else _StatefulIterator
        return kind(self.inner, real, self.watch)

    def __getattr__(self, name: str) -> Any:
        # batch_size, drop_last, sampler, set_epoch and so on.
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


class _StatefulSampler(_WatchedSampler):
    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.inner.load_state_dict(state)


class ImageFolder(Dataset):  # type: ignore[misc, type-arg, unused-ignore]
    """Pictures in folders named by their classes, as torchvision's ImageFolder: the same samples in the same order.

    Lists the folders and looks at no file: a listing of a Larder mount comes from its manifest.
    """

    def __init__(
        self,
        root: PathLike,
        transform: Optional[Callable[[Any], Any]] = None,
        target_transform: Optional[Callable[[int], Any]] = None,
        loader: Optional[Callable[[str], Any]] = None,
        extensions: Sequence[str] = IMAGE_EXTENSIONS,
    ) -> None:
        self.root = os.fspath(root)
        self.transform, self.target_transform = transform, target_transform
        self.loader = loader or _load_image
        with os.scandir(self.root) as entries:
            self.classes = sorted(entry.name for entry in entries if entry.is_dir() and entry.name != ".larder")
        if not self.classes:
            raise FileNotFoundError(f"{self.root} has no folder, and so no class")
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self.samples: list[tuple[str, int]] = []
        inodes = array("Q")
        ends = tuple(extension.lower() for extension in extensions)
        for name, number in self.class_to_idx.items():
            for path, inode in _files(os.path.join(self.root, name)):
                if path.lower().endswith(ends):
                    self.samples.append((path, number))
                    inodes.append(inode)
        self.targets = [target for _, target in self.samples]
        self.imgs = self.samples
        self._rows = self._rows_of(inodes)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        path, target = self.samples[index]
        sample = self.loader(path)
        if self.transform is not None:
            sample = self.transform(sample)
        return sample, target if self.target_transform is None else self.target_transform(target)

    def larder_item(self, index: int) -> Item:
        """What a plan needs of a sample: its row, if the mount says which it is, or its path."""
        return self.samples[index][0] if self._rows is None else self._rows[index]

    def _rows_of(self, inodes: "array[int]") -> "Optional[array[int]]":
        """The rows of the manifest, which follow from the inode numbers."""
        mount = find_mount(self.root)
        if mount is None or not mount.is_whole:
            return None
        try:
            manifest = mount.manifest()
            first, files = 1 + int(manifest["dirs"]), int(manifest["files"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        # A symbolic link has no row of a file.
        is_file = all(first <= inode < first + files for inode in inodes)
        return array("I", (inode - first for inode in inodes)) if is_file else None


def _files(folder: str) -> Iterator[tuple[str, int]]:
    """The files below a folder with their inode numbers, in the order of torchvision: each folder's files by name, then
    its folders' by name, as a sorted os.walk."""
    pending = [folder]
    found: list[tuple[str, list[tuple[str, int]]]] = []
    while pending:
        at = pending.pop()
        files = []
        with os.scandir(at) as entries:
            for entry in entries:
                if entry.is_dir():
                    pending.append(os.path.join(at, entry.name))
                else:
                    files.append((entry.name, entry.inode()))
        found.append((at, sorted(files)))
    for at, files in sorted(found):
        for name, inode in files:
            yield os.path.join(at, name), inode


def _load_image(path: str) -> Any:
    from PIL import Image

    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


class Sampler(_TorchSampler):  # type: ignore[misc, type-arg, unused-ignore]
    """A sampler for one or several ranks, whose order follows from `seed` and the epoch.

    With `deal="none"`, each rank gets what DistributedSampler gives it. With `deal="owner"`, each global batch of
    `num_replicas * batch_size` samples has the same samples as without, so the summed gradient is the same, and each
    rank gets first what its node is to keep: less is read from other nodes. That needs a `larder.torch.ImageFolder`, a
    placement other than `local`, and torch.distributed, over which the ranks learn once what is each one's. What a rank
    computes of its own batch alone, such as the statistics of BatchNorm, is computed of other samples. `deal` may also
    be a function from an index to the ranks that should get it.

    An epoch can begin in its middle: `set_epoch(epoch, start)`, where `start` is the number of samples that this rank
    has had. A later `set_epoch` of the same epoch without `start`, as that of a framework, does not change it.
    """

    def __init__(
        self,
        dataset: _Sized,
        *,
        seed: int = 0,
        shuffle: bool = True,
        num_replicas: Optional[int] = None,
        rank: Optional[int] = None,
        drop_last: bool = False,
        deal: Union[str, Callable[[int], Sequence[int]]] = "none",
        batch_size: int = 0,
    ) -> None:
        if isinstance(deal, str) and deal not in ("none", "owner"):
            raise ValueError(f'Sampler: deal={deal!r} is not "none", "owner" or a function from an index to ranks')
        if deal != "none" and batch_size < 1:
            raise ValueError("Sampler: deal= needs batch_size=, the samples of a rank in each batch")
        is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.num_replicas = num_replicas or (torch.distributed.get_world_size() if is_distributed else 1)
        self.rank = rank if rank is not None else (torch.distributed.get_rank() if is_distributed else 0)
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(f"Sampler: rank {self.rank} is not one of {self.num_replicas}")
        self.size, self.seed, self.shuffle, self.drop_last = len(dataset), seed, shuffle, drop_last
        self.deal = _owners(dataset, self.num_replicas, self.rank) if deal == "owner" else deal
        self.batch = batch_size
        self.epoch = self.start = 0
        # How many indices of this epoch were yielded, after its end, too: loaders keep what they have drawn.
        self._at = 0
        per_rank = self.size // self.num_replicas if drop_last else -(-self.size // self.num_replicas)
        self.num_samples = per_rank

    def __len__(self) -> int:
        return max(self.num_samples - self.start, 0)

    def __iter__(self) -> Iterator[int]:
        order = self.larder_order().tolist()
        self._at, self.start = self.start, 0
        for index in order:
            self._at += 1
            yield index

    def set_epoch(self, epoch: int, start: Optional[int] = None) -> None:
        """The next epoch is this one, from the sample `start` of this rank on."""
        if start is None:
            # Frameworks set the epoch of a state that was loaded once more.
            start = self.start if epoch == self.epoch else 0
        self.epoch, self.start, self._at = epoch, start, 0

    def state_dict(self) -> dict[str, int]:
        """The epoch, and how many of its indices were yielded. Loaders with workers are ahead of what was trained on:
        their own state says by how much, or use `set_epoch` with the samples that were trained on."""
        return {"epoch": self.epoch, "start": self.start or self._at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.set_epoch(state["epoch"], state["start"])

    def larder_order(self) -> torch.Tensor:
        """The indices that the next epoch yields."""
        total = self.num_samples * self.num_replicas
        if self.shuffle:
            order = torch.randperm(self.size, generator=torch.Generator().manual_seed(self.seed + self.epoch))
        else:
            order = torch.arange(self.size)
        if total > self.size:
            order = order.repeat(-(-total // max(self.size, 1)))
        order = order[:total]
        mine = self._dealt(order) if callable(self.deal) else order[self.rank :: self.num_replicas]
        return mine[self.start :]

    def _dealt(self, order: torch.Tensor) -> torch.Tensor:
        assert callable(self.deal)
        mine: list[int] = []
        for batch in order.split(self.num_replicas * self.batch):
            room = len(batch) // self.num_replicas
            hands: list[list[int]] = [[] for _ in range(self.num_replicas)]
            rest: list[int] = []
            for index in batch.tolist():
                free = [rank for rank in self.deal(index) if len(hands[rank]) < room]
                # Of several ranks, as on one node, the one with the fewest.
                (hands[min(free, key=lambda rank: len(hands[rank]))] if free else rest).append(index)
            for hand in hands:
                while len(hand) < room:
                    hand.append(rest.pop())
            mine += hands[self.rank]
        return torch.as_tensor(mine, dtype=torch.int64)


def _owners(dataset: Any, num_replicas: int, rank: int) -> Callable[[int], Sequence[int]]:
    """The ranks whose node is to keep a sample. All ranks call this, and get the same."""
    rows = getattr(dataset, "_rows", None)
    mine = b""
    if rows is not None and len(rows) > 0:
        mount = find_mount(dataset.root)
        try:
            mine = b"" if mount is None else mount.owned(max(rows) + 1)
        except OSError:
            # An earlier version of Larder: this rank gets what the others leave.
            mine = b""
    every = [b""] * num_replicas
    every[rank] = mine
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        # Of all processes: several may be the same rank of the data, as with tensor parallelism.
        gathered: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(gathered, (rank, mine))
        for of_rank, bits in reversed(gathered):
            every[of_rank] = bits

    def owners(index: int) -> Sequence[int]:
        row = -1 if rows is None else rows[index]
        return [rank for rank, bits in enumerate(every) if 0 <= row < 8 * len(bits) and bits[row // 8] >> row % 8 & 1]

    return owners
