"""A program for mpirun: its ranks add up their numbers over the network and gather the names of their hosts.

Rank 0 prints one line of JSON: {"size": N, "sum": 0 + 1 + ... + (N - 1), "hosts": [of rank 0, ...], "uid": UID}
"""

import json
import os
import socket

from mpi4py import MPI

world = MPI.COMM_WORLD
total = world.allreduce(world.rank)
hosts = world.gather(socket.gethostname())
if world.rank == 0:
    print(json.dumps({"size": world.size, "sum": total, "hosts": hosts, "uid": os.getuid()}), flush=True)
