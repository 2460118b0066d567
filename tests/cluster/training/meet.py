"""Ranks that meet by the variables of a framework, without the framework: meet.py FRAMEWORK [SECONDS]

FRAMEWORK is jax, paddle or xgboost. The first rank listens at the address that its variables name, and ends once all
others have called; the others call it, and end once it has answered. All end with 1 if that takes longer than SECONDS
(60).

Prints one line of JSON: {"rank": 0, "size": 2, "called": [1]}
"""

import json
import os
import socket
import sys
import time

# The address of the first rank, the number of ranks, and the own rank.
VARIABLES = {
    "jax": ("{JAX_COORDINATOR_ADDRESS}", "{JAX_NUM_PROCESSES}", "{JAX_PROCESS_ID}"),
    "paddle": ("{PADDLE_MASTER}", "{PADDLE_NNODES}", "{PADDLE_RANK}"),
    "xgboost": ("{DMLC_TRACKER_URI}:{DMLC_TRACKER_PORT}", "{DMLC_NUM_WORKER}", "{DMLC_TASK_ID}"),
}
ADDRESS, SIZE, RANK = (text.format_map(os.environ) for text in VARIABLES[sys.argv[1]])
HOST, PORT = ADDRESS.rsplit(":", 1)
DEADLINE = time.monotonic() + float(sys.argv[2] if len(sys.argv) > 2 else 60)


def left():
    return max(DEADLINE - time.monotonic(), 0.1)


def listen():
    """Listens at the address itself: no pod but the first could. Its name may not be known yet."""
    while True:
        try:
            return socket.create_server((HOST, int(PORT)))
        except OSError as error:
            if time.monotonic() > DEADLINE:
                sys.exit(f"rank {RANK}: cannot listen at {ADDRESS}: {error}")
            time.sleep(0.2)


def serve():
    """The ranks that have called, once all of them have."""
    called = set()
    with listen() as listener:
        while len(called) < int(SIZE) - 1:
            listener.settimeout(left())
            connection, _ = listener.accept()
            with connection, connection.makefile("rw") as stream:
                called.add(int(stream.readline()))
                print("met", file=stream, flush=True)
    return sorted(called)


def call():
    """Calls the first rank, whose name or program may not be there yet."""
    while True:
        try:
            connection = socket.create_connection((HOST, int(PORT)), timeout=5)
            with connection, connection.makefile("rw") as stream:
                print(RANK, file=stream, flush=True)
                if stream.readline().strip() == "met":
                    return []
        except OSError as error:
            if time.monotonic() > DEADLINE:
                sys.exit(f"rank {RANK}: {ADDRESS} was not reached: {error}")
        time.sleep(0.2)


called = serve() if RANK == "0" else call()
print(json.dumps({"rank": int(RANK), "size": int(SIZE), "called": called}), flush=True)
