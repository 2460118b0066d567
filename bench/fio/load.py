"""Loads all tensors of a safetensors file and prints the time that each took, as JSON.

load.py LOADER         imports what the loader needs
load.py LOADER FILE    loads the file
"""

import json
import mmap
import struct
import sys
import time


def mapped_tensors(path):
    """The mapped file, and where each tensor begins and ends in it, in the order of their names."""
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    (header_len,) = struct.unpack("<Q", mapped[:8])
    data = 8 + header_len
    header = json.loads(mapped[8:data])
    for name in sorted(header.keys() - {"__metadata__"}):
        begin, end = header[name]["data_offsets"]
        yield mapped, data + begin, data + end


def safetensors():
    """As the library does it on a CPU: maps the file and copies each tensor. Needs only Python, so that every machine
    can run it."""

    def load(path):
        for mapped, begin, end in mapped_tensors(path):
            yield len(mapped[begin:end])

    return load


def safetensors_eighth():
    """The same, as one of eight ranks does it: copies the fourth eighth of each tensor."""

    def load(path):
        for mapped, begin, end in mapped_tensors(path):
            size = end - begin
            yield len(mapped[begin + size * 3 // 8 : begin + size * 4 // 8])

    return load


def runai():
    """The Run:ai Model Streamer: several threads read large parts of the file."""
    from runai_model_streamer import SafetensorsStreamer

    def load(path):
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(path)
            for _, tensor in streamer.get_tensors():
                yield tensor.numel() * tensor.element_size()

    return load


def fastsafetensors():
    """fastsafetensors: reads the whole file, then makes tensors of it."""
    from fastsafetensors import fastsafe_open

    def load(path):
        with fastsafe_open([path], device="cpu", nogds=True) as opened:
            for name in opened.keys():
                tensor = opened.get_tensor(name)
                yield tensor.numel() * tensor.element_size()

    return load


def main():
    load = {one.__name__: one for one in (safetensors, safetensors_eighth, runai, fastsafetensors)}[sys.argv[1]]()
    if len(sys.argv) < 3:
        return
    sizes, times = [], []
    began = last = time.monotonic()
    for size in load(sys.argv[2]):
        now = time.monotonic()
        sizes.append(size)
        times.append(now - last)
        last = now
    print(json.dumps({"bytes": sum(sizes), "seconds": last - began, "tensor_seconds": times}))


main()
