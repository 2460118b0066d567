"""A program of tasks that know each other by TF_CONFIG, as TensorFlow's do, without TensorFlow: tasks.py [SECONDS]

Each task listens at its own address, and connects to every other task that its TF_CONFIG lists; both then say which they
are. A task ends with 0 once it has reached all tasks, and all of them have reached it; with 1 if that takes longer than
SECONDS (60), or if an address of TF_CONFIG is answered by another task. A ps never ends by itself. A role that is listed
sparsely ({"1": ADDRESS} in place of a list) does not know all tasks, so nobody waits for those to call.

Prints one line of JSON: {"task": "worker-1", "reached": ["chief-0", ...]}
"""

import json
import os
import socket
import sys
import threading
import time

CONFIG = json.loads(os.environ["TF_CONFIG"])
ME = f'{CONFIG["task"]["type"]}-{CONFIG["task"]["index"]}'
DEADLINE = time.monotonic() + float(sys.argv[1] if len(sys.argv) > 1 else 60)


def listed():
    """The addresses of all tasks, by their names."""
    for role, tasks in CONFIG["cluster"].items():
        for index, address in tasks.items() if isinstance(tasks, dict) else enumerate(tasks):
            yield f"{role}-{index}", address


def serve(port, callers):
    listener = socket.create_server(("", port))
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rw") as stream:
            caller = stream.readline().strip()
            print(ME, file=stream, flush=True)
        callers.add(caller)


def call(name, address):
    """Connects to a task, whose name or program may not be there yet."""
    host, port = address.rsplit(":", 1)
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=5) as connection, connection.makefile("rw") as stream:
                print(ME, file=stream, flush=True)
                answer = stream.readline().strip()
        except OSError as error:
            if time.monotonic() > DEADLINE:
                sys.exit(f"{ME}: {name} at {address} was not reached: {error}")
            time.sleep(0.2)
            continue
        if answer != name:
            sys.exit(f"{ME}: {address} is {answer!r}, and TF_CONFIG says {name}")
        return


def main():
    tasks, callers = dict(listed()), set()
    own = tasks.pop(ME, None)
    if own:
        port = int(own.rsplit(":", 1)[1])
        threading.Thread(target=serve, args=(port, callers), daemon=True).start()
    for name, address in tasks.items():
        call(name, address)
    print(json.dumps({"task": ME, "reached": sorted(tasks)}), flush=True)
    if CONFIG["task"]["type"] == "ps":
        threading.Event().wait()
    sparse = any(isinstance(tasks, dict) for tasks in CONFIG["cluster"].values())
    while own and not sparse and not callers >= tasks.keys():
        if time.monotonic() > DEADLINE:
            sys.exit(f"{ME}: not called by {sorted(tasks.keys() - callers)}")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
