"""The order in which PyTorch's samplers will yield their indices, without asking them for any.

To run a sampler ahead would change the samples of those that draw from the global generator one by one, and the state of
those that can be resumed. So the order of known samplers follows from their attributes, and from copies of their
generators.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch.utils.data import RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

# A sampler around a sampler around ... is known up to this depth.
DEPTH_MOST = 4


def order_of(sampler: Any) -> Optional[torch.Tensor]:
    """The indices that a sampler will yield from now on, one after another. None: they are not known.

    Changes no random state.
    """
    state = torch.get_rng_state()
    try:
        return _order_of(sampler, 0)
    except Exception:
        # A sampler that is not as expected costs the far plan, never the epoch.
        return None
    finally:
        torch.set_rng_state(state)


def _order_of(sampler: Any, depth: int) -> Optional[torch.Tensor]:
    if depth > DEPTH_MOST:
        return None
    if hasattr(sampler, "batch_sampler") and hasattr(sampler, "num_processes"):
        return _order_of_shard(sampler, depth)
    if hasattr(sampler, "sampler") and hasattr(sampler, "batch_size"):
        # A BatchSampler of any kind.
        order, size = _order_of(sampler.sampler, depth + 1), sampler.batch_size
        if order is not None and getattr(sampler, "drop_last", False) and isinstance(size, int):
            order = order[: len(order) // size * size]
        return order
    owner = type(sampler).__iter__.__qualname__.split(".")[0]
    if isinstance(sampler, DistributedSampler):
        return _order_of_distributed(sampler) if owner in ("DistributedSampler", "StatefulDistributedSampler") else None
    if type(sampler).__name__ == "SeedableRandomSampler":
        # Of accelerate.
        generator = torch.Generator().manual_seed(sampler.epoch + sampler.initial_seed)
        return torch.randperm(len(sampler.data_source), generator=generator)
    if isinstance(sampler, SequentialSampler):
        return torch.arange(len(sampler.data_source)) if owner == "SequentialSampler" else None
    if isinstance(sampler, RandomSampler):
        is_whole = not sampler.replacement and sampler.num_samples == len(sampler.data_source)
        if owner != "RandomSampler" or not is_whole:
            return None
        if sampler.generator is not None:
            generator = _copy(sampler.generator)
        else:
            # As the sampler draws it. The caller restores the global generator.
            generator = torch.Generator().manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
        return torch.randperm(len(sampler.data_source), generator=generator)
    if type(sampler) is SubsetRandomSampler:
        drawn = torch.randperm(len(sampler.indices), generator=_copy(sampler.generator))
        return torch.as_tensor(list(sampler.indices))[drawn]
    if type(sampler) is WeightedRandomSampler:
        generator = _copy(sampler.generator)
        return torch.multinomial(sampler.weights, sampler.num_samples, sampler.replacement, generator=generator)
    known = getattr(sampler, "larder_order", None)
    return known() if known is not None else None


def _order_of_distributed(sampler: Any) -> torch.Tensor:
    n = len(sampler.dataset)
    if sampler.shuffle:
        order = torch.randperm(n, generator=torch.Generator().manual_seed(sampler.seed + sampler.epoch))
    else:
        order = torch.arange(n)
    total = sampler.total_size
    if total > n:
        order = order.repeat(-(-total // n))
    return order[:total][sampler.rank :: sampler.num_replicas]


def _order_of_shard(sampler: Any, depth: int) -> Optional[torch.Tensor]:
    """The part of a process, of accelerate. The ragged end is not known."""
    inner, size = _order_of(sampler.batch_sampler, depth + 1), sampler.batch_sampler.batch_size
    if inner is None or size is None:
        return None
    batches = inner[: len(inner) // size * size].reshape(-1, size)
    if sampler.split_batches:
        part = size // sampler.num_processes
        return batches[:, part * sampler.process_index : part * (sampler.process_index + 1)].reshape(-1)
    return batches[sampler.process_index :: sampler.num_processes].reshape(-1)


def _copy(generator: Optional[torch.Generator]) -> Optional[torch.Generator]:
    if generator is None:
        return None
    copy = torch.Generator()
    copy.set_state(generator.get_state())
    return copy
