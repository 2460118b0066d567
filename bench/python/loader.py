"""Makes JPEGs, and reads them with torch's DataLoader. Started by `larder-bench loader`.

    loader.py make FOLDER FILES SEED
    loader.py read FOLDER LIST WORKERS BATCH SEED RATE [plan]

`read` reads the files that LIST names, below FOLDER, once and in a shuffled order, and prints its figures as JSON. An
accelerator takes RATE samples a second; 0 takes them as they come. `plan` has the mount fetch ahead.
"""

import io
import json
import os
import random
import sys
import time
import zlib

from PIL import Image

SIZE = (500, 375)
FILES_IN_A_FOLDER = 200


def make(folder, files, seed):
    """Images with large shapes and some noise, as photographs have: 20 to 300 KB each."""
    for number in range(files):
        draw = random.Random(seed * files + number)
        shapes = Image.frombytes("RGB", (8, 6), bytes(draw.randrange(256) for _ in range(8 * 6 * 3)))
        scale = draw.uniform(0.7, 1.6)
        size = (int(SIZE[0] * scale), int(SIZE[1] * scale))
        noise = Image.frombytes("L", (size[0] // 2, size[1] // 2), draw.randbytes((size[0] // 2) * (size[1] // 2)))
        noise = noise.resize(size).convert("RGB")
        image = Image.blend(shapes.resize(size, Image.BICUBIC), noise, draw.uniform(0.1, 0.3))
        path = os.path.join(folder, f"class-{number // FILES_IN_A_FOLDER:04}")
        os.makedirs(path, exist_ok=True)
        image.save(os.path.join(path, f"image-{number:07}.jpg"), quality=90)


def read(folder, names, workers, batch, seed, rate, is_planned):
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Images(Dataset):
        def __len__(self):
            return len(names)

        def __getitem__(self, index):
            with open(os.path.join(folder, names[index]), "rb") as file:
                data = file.read()
            image = Image.open(io.BytesIO(data)).convert("RGB").resize((224, 224))
            pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
            return pixels.view(224, 224, 3), zlib.crc32(data)

    torch.set_num_threads(1)
    order = torch.Generator()
    order.manual_seed(seed)
    loader = DataLoader(Images(), batch_size=batch, shuffle=True, generator=order, num_workers=workers)
    if is_planned:
        import larder.torch

        larder.torch.planned(loader, path=lambda index: os.path.join(folder, names[index]))
    started = time.monotonic()
    first, waited, samples, first_samples, checksum = None, 0.0, 0, 0, 0
    batches = iter(loader)
    while True:
        asked = time.monotonic()
        try:
            pixels, sums = next(batches)
        except StopIteration:
            break
        wait = time.monotonic() - asked
        if first is None:
            first, first_samples = wait, len(pixels)
        else:
            waited += wait
        samples += len(pixels)
        for value in sums.tolist():
            checksum = zlib.crc32(value.to_bytes(4, "little"), checksum)
        if rate:
            time.sleep(len(pixels) / rate)
    print(json.dumps({
        "samples": samples,
        "first_samples": first_samples,
        "seconds": time.monotonic() - started,
        "first_seconds": first or 0.0,
        "empty_seconds": waited,
        "checksum": checksum,
    }))


def main(command, folder, *rest):
    if command == "make":
        files, seed = rest
        make(folder, int(files), int(seed))
    else:
        names, workers, batch, seed, rate, *plan = rest
        with open(names) as file:
            read(folder, file.read().splitlines(), int(workers), int(batch), int(seed), float(rate), plan == ["plan"])


if __name__ == "__main__":
    main(*sys.argv[1:])
