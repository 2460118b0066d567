"""Reads parts of Parquet, Zarr and HDF5 files, and prints for each how much of it came from the origin.

    columns.py make FOLDER    writes the files, 64 MB of numbers in each format; upload them
    columns.py read MOUNT     reads a part of each in a mount of Larder with an empty cache

Needs numpy, pyarrow, zarr and h5py. Without a mount, `read` prints the times alone.
"""

import json
import pathlib
import sys
import time

import h5py
import numpy
import pyarrow
import pyarrow.parquet
import zarr

COLUMNS = 8
ROWS = 1 << 20
ROWS_IN_A_CHUNK = 1 << 16


def make(folder):
    numbers = numpy.random.default_rng(1).random((ROWS, COLUMNS))
    table = pyarrow.table({f"column-{at}": numbers[:, at] for at in range(COLUMNS)})
    options = {"row_group_size": ROWS_IN_A_CHUNK, "compression": "none", "use_dictionary": False}
    pyarrow.parquet.write_table(table, folder / "table.parquet", **options)
    chunks = (ROWS_IN_A_CHUNK, 1)
    zarr.create_array(str(folder / "array.zarr"), data=numbers, chunks=chunks, compressors=None)
    with h5py.File(folder / "array.h5", "w") as file:
        file.create_dataset("array", data=numbers, chunks=chunks)


def column_of_parquet(folder):
    return pyarrow.parquet.read_table(folder / "table.parquet", columns=["column-3"])


def column_of_zarr(folder):
    return zarr.open_array(str(folder / "array.zarr"), mode="r")[:, 3]


def column_of_hdf5(folder):
    with h5py.File(folder / "array.h5", "r") as file:
        return file["array"][:, 3]


def rows_of_parquet(folder):
    return pyarrow.parquet.ParquetFile(folder / "table.parquet").read_row_group(7)


def rows_of_zarr(folder):
    return zarr.open_array(str(folder / "array.zarr"), mode="r")[7 * ROWS_IN_A_CHUNK : 8 * ROWS_IN_A_CHUNK]


def rows_of_hdf5(folder):
    with h5py.File(folder / "array.h5", "r") as file:
        return file["array"][7 * ROWS_IN_A_CHUNK : 8 * ROWS_IN_A_CHUNK]


def from_origin(folder):
    """The bytes that came from the origin so far; `None` outside of a mount."""
    time.sleep(0.06)
    stats = folder / ".larder/stats.json"
    return json.loads(stats.read_text())["metrics"]["fs_origin_bytes_total"] if stats.exists() else None


def read(folder):
    for part in (column_of_parquet, rows_of_parquet, column_of_zarr, rows_of_zarr, column_of_hdf5, rows_of_hdf5):
        before, began = from_origin(folder), time.monotonic()
        asked = part(folder).nbytes
        seconds = time.monotonic() - began
        # What is fetched ahead counts, too.
        time.sleep(1)
        fetched = "" if before is None else f", {from_origin(folder) - before} fetched"
        print(f"{part.__name__:<18} {asked} bytes asked{fetched}, {seconds:.3f} s")


if __name__ == "__main__":
    {"make": make, "read": read}[sys.argv[1]](pathlib.Path(sys.argv[2]))
