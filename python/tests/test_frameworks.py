"""`larder.torch.planned` in the loaders of other packages, with a fake mount.

Without its package, a test fails in CI, and is skipped elsewhere. `.ci/python install` unpacks them for CI.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import tempfile
import unittest
from typing import Any

from fake import FakeMount

try:
    import torch
    from torch.utils.data import DataLoader, Dataset

    import larder.torch as lt
except ImportError as missing:
    if os.environ.get("CI"):
        raise
    raise unittest.SkipTest(f"SKIPPED, not passed: {missing}") from missing

N = 103
PATHS = [f"/data/{n % 7}/{n:04}" for n in range(N)]


def package(name: str) -> Any:
    """A package, without which the test is skipped."""
    # Debian's PyTorch calls itself 1.13.0a0, in which Lightning expects this name.
    if not hasattr(torch, "_UntypedStorage"):
        torch._UntypedStorage = torch.UntypedStorage
    try:
        return importlib.import_module(name)
    except ImportError as missing:
        if os.environ.get("CI"):
            raise
        print(f"SKIPPED, not passed: {missing}", file=sys.stderr)
        raise unittest.SkipTest(str(missing)) from missing


class Samples(Dataset):  # type: ignore[misc, type-arg]
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index, "value": torch.rand(1)}


class Model(torch.nn.Module):
    """Notes what it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.seen: list[tuple[list[int], list[float]]] = []

    def forward(self, index: Any, value: Any) -> dict[str, Any]:
        self.seen.append((index.tolist(), value.tolist()))
        return {"loss": (self.weight * value).mean()}


def planned_indices(mount: FakeMount) -> list[list[int]]:
    """What each plan had in the end."""
    number = {path[len("/data/") :]: nth for nth, path in enumerate(PATHS)}
    return [[number[item] for item in mount.items(nth)] for nth in range(len(mount.history))]


def indices_of(batches: Any) -> list[int]:
    return [index for batch, _ in batches for index in batch]


class FrameworksTest(unittest.TestCase):
    def test_a_stateful_loader_has_the_same_samples_and_states_and_resumes_with_a_plan(self) -> None:
        loaders = package("torchdata.stateful_dataloader")

        def read(workers: int, is_planned: bool) -> Any:
            def loader() -> Any:
                made = loaders.StatefulDataLoader(Samples(), 4, shuffle=True, num_workers=workers)
                return lt.planned(made, path=PATHS.__getitem__) if is_planned else made

            torch.manual_seed(1)
            first = loader()
            begun = [batch["index"].tolist() for batch in itertools.islice(first, 10)]
            state = first.state_dict()
            resumed = loader()
            resumed.load_state_dict(state)
            rest = [batch["index"].tolist() for batch in resumed]
            again = [batch["index"].tolist() for batch in resumed]
            return begun, state, rest, again, torch.get_rng_state().tolist()

        for workers in (0, 2):
            with self.subTest(workers=workers):
                expected = read(workers, False)
                mount = FakeMount()
                with mount.mounted():
                    found = read(workers, True)
                self.assertEqual(repr(found), repr(expected))
                whole = [index for batches in found[:3:2] for batch in batches for index in batch]
                self.assertEqual(sorted(whole), list(range(N)))
                resumed, again = planned_indices(mount)[-2:]
                self.assertEqual(resumed[-len(found[2]) :], sum(found[2], [])[-len(found[2]) :])
                self.assertEqual(again, sum(found[3], []))

    def test_a_stateful_loader_resumes_with_our_sampler_after_any_batch(self) -> None:
        loaders = package("torchdata.stateful_dataloader")

        def loader(workers: int) -> Any:
            sampler = lt.Sampler(range(N), seed=3)
            sampler.set_epoch(2)
            return loaders.StatefulDataLoader(Samples(), 4, sampler=sampler, num_workers=workers)

        # The last batch has 3 samples: the sampler has ended before it comes.
        for workers, after in itertools.product((0, 2), (1, 10, 25, 26)):
            with self.subTest(workers=workers, after=after):
                first = loader(workers)
                begun = [batch["index"].tolist() for batch in itertools.islice(first, after)]
                resumed = loader(workers)
                resumed.load_state_dict(first.state_dict())
                # As frameworks do.
                resumed.sampler.set_epoch(2)
                rest = [batch["index"].tolist() for batch in resumed]
                sampler = lt.Sampler(range(N), seed=3)
                sampler.set_epoch(2)
                self.assertEqual(sum(begun + rest, []), list(sampler))

    def test_ranks_of_accelerate_have_the_same_samples_with_a_plan(self) -> None:
        prepare = package("accelerate.data_loader").prepare_data_loader
        package("accelerate.state").PartialState(cpu=True)

        def read(rank: int, is_split: bool, workers: int, is_planned: bool) -> Any:
            torch.manual_seed(2)
            loader = prepare(
                DataLoader(Samples(), 8, shuffle=True, num_workers=workers),
                num_processes=4,
                process_index=rank,
                split_batches=is_split,
                use_seedable_sampler=True,
            )
            if is_planned:
                assert lt.planned(loader, path=PATHS.__getitem__) is loader
            epochs = []
            for epoch in range(3):
                loader.set_epoch(epoch)
                epochs.append([(batch["index"].tolist(), batch["value"].tolist()) for batch in loader])
            return epochs, torch.get_rng_state().tolist()

        for rank, is_split, workers in itertools.product(range(4), (False, True), (0, 2)):
            with self.subTest(rank=rank, is_split=is_split, workers=workers):
                expected = read(rank, is_split, workers, False)
                mount = FakeMount()
                with mount.mounted():
                    self.assertEqual(read(rank, is_split, workers, True), expected)
                self.assertEqual(planned_indices(mount), [indices_of(epoch) for epoch in expected[0]])

    def test_the_trainer_of_transformers_trains_on_the_same_with_a_plan(self) -> None:
        transformers = package("transformers")

        class PlannedTrainer(transformers.Trainer):  # type: ignore[misc, name-defined]
            def get_train_dataloader(self) -> Any:
                return lt.planned(super().get_train_dataloader(), path=PATHS.__getitem__)

        def train(kind: Any) -> Any:
            with tempfile.TemporaryDirectory() as folder:
                arguments = transformers.TrainingArguments(
                    folder, num_train_epochs=3, per_device_train_batch_size=8, use_cpu=True, report_to=[], seed=3,
                    save_strategy="no", logging_strategy="no", disable_tqdm=True, remove_unused_columns=False,
                )
                model = Model()
                kind(model, arguments, train_dataset=Samples()).train()
                return model.seen, model.weight.item()

        expected = train(transformers.Trainer)
        mount = FakeMount()
        with mount.mounted():
            self.assertEqual(train(PlannedTrainer), expected)
        self.assertEqual(sum(planned_indices(mount), []), indices_of(expected[0]))

    def test_lightning_trains_on_the_same_with_a_plan(self) -> None:
        lightning = package("pytorch_lightning")

        class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
            def __init__(self, is_planned: bool) -> None:
                super().__init__()
                self.model, self.is_planned = Model(), is_planned

            def _register_sharded_tensor_state_dict_hooks_if_available(self) -> None:
                # It fails with Debian's PyTorch, and nothing is sharded here.
                pass

            def train_dataloader(self) -> Any:
                loader = DataLoader(Samples(), 8, shuffle=True)
                return lt.planned(loader, path=PATHS.__getitem__) if self.is_planned else loader

            def training_step(self, batch: Any, _: int) -> Any:
                return self.model(**batch)["loss"]

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), 0.1)

        def train(is_planned: bool) -> Any:
            torch.manual_seed(4)
            module = Module(is_planned)
            trainer = lightning.Trainer(
                max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(module)
            return module.model.seen, module.model.weight.item()

        expected = train(False)
        mount = FakeMount()
        with mount.mounted():
            self.assertEqual(train(True), expected)
        self.assertEqual(sum(planned_indices(mount), []), indices_of(expected[0]))


if __name__ == "__main__":
    unittest.main()
