"""A training program for torchrun, elastic or not: train.py --data FOLDER --out FOLDER --steps N [--seconds S]

Step s reads the batch of files that follows from s, by the sorted names of all files below --data, around and around. Each
rank reads a part of the batch, and all_reduce adds up the bytes. Rank 0 then saves a checkpoint, step and sum, in
OUT/checkpoint.json, and no rank begins the next step before. A program that is started again goes on from the checkpoint,
with whatever number of ranks. So the sum at the end depends on the steps alone, and no rank records a step twice.

Every process records what it does as lines of JSON, in OUT/HOST.jsonl, which outlives its pod, and on stdout:
  {"event": "start", "step": S, "rank": R, "world": W, "host": H}    begins at step S
  {"event": "step",  "step": S, "rank": R, "world": W, "host": H}    step S is in the checkpoint
  {"event": "end",   "step": N, "sum": BYTES, ...}                   all N steps are done
"""

import argparse
import json
import os
import socket
import time
from pathlib import Path

import torch
import torch.distributed as dist

BATCH = 12  # files a step; a multiple of 2 and 3 ranks


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=0.0, help="how long a step takes at least")
    return parser.parse_args()


def restore(checkpoint):
    return json.loads(checkpoint.read_text()) if checkpoint.exists() else {"step": 0, "sum": 0}


def save(checkpoint, state):
    """Replaces the checkpoint by a whole one, whenever the process is killed."""
    half = checkpoint.with_suffix(".half")
    with half.open("w") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    half.rename(checkpoint)


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank, world, host = dist.get_rank(), dist.get_world_size(), socket.gethostname()
    record = (args.out / f"{host}.jsonl").open("a")

    def tell(event, **more):
        line = json.dumps({"event": event, "rank": rank, "world": world, "host": host} | more)
        for file in (record, None):
            print(line, file=file, flush=True)

    files = sorted(path for path in args.data.rglob("*") if path.is_file())
    checkpoint = args.out / "checkpoint.json"
    # Rank 0's word, since the others may see the folder at another moment.
    state = [restore(checkpoint) if rank == 0 else None]
    dist.broadcast_object_list(state, src=0)
    state = state[0]
    tell("start", step=state["step"])
    for step in range(state["step"], args.steps):
        began = time.monotonic()
        batch = [files[(step * BATCH + i) % len(files)] for i in range(rank, BATCH, world)]
        total = torch.tensor([sum(sum(path.read_bytes()) for path in batch)], dtype=torch.int64)
        time.sleep(max(0.0, args.seconds - (time.monotonic() - began)))
        dist.all_reduce(total)
        state = {"step": step + 1, "sum": state["sum"] + int(total)}
        if rank == 0:
            save(checkpoint, state)
        dist.barrier()
        tell("step", step=step)
    tell("end", **state)
    dist.barrier()


if __name__ == "__main__":
    main()
