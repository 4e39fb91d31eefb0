"""The main job in one go: a PostgreSQL that needs no installation, migrations, a worker, tasks, results.

Run it with `just demo`. Nothing is left behind: the server lives in a temporary directory and ends with this process.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import horsies_schema
from horsies_schema import embedded

HERE = Path(__file__).parent


def main() -> None:
    with embedded.start() as server:
        os.environ["HORSIES_DATABASE_URL"] = server.url
        print(f"1. an embedded PostgreSQL runs in {server.directory}")
        print(f"2. its schema is at revision {horsies_schema.upgrade(server.url)}")
        command = [sys.executable, "-m", "horsies_worker", "demo_tasks:app", "--processes", "2", "--loglevel", "ERROR"]
        worker = subprocess.Popen(command, cwd=HERE)
        print(f"3. a worker with 2 child processes starts (pid {worker.pid})")
        try:
            send_tasks()
        finally:
            worker.terminate()
            print(f"5. the worker stopped with exit code {worker.wait(30)}")


def send_tasks() -> None:
    from demo_tasks import add, app, crash, flaky, greet

    from horsies import gather

    print("4. tasks are sent, and their results come back:")
    show("add.send(2, 40)", add.send(2, 40).get(timeout_ms=30_000))
    began = time.perf_counter()
    result = add.send(1, 1).get(timeout_ms=10_000)
    show("add.send(1, 1)", result, f"round trip {1000 * (time.perf_counter() - began):.1f} ms")
    names = ("Ada", "Grace", "Edsger")
    for name, greeting in zip(names, gather([greet.send(name) for name in names], timeout_ms=10_000), strict=True):
        show(f"greet.send({name!r})", greeting, "async")
    handle = flaky.send()
    show("flaky.send()", handle.get(timeout_ms=10_000), f"{len(handle.attempts())} attempts")
    show("crash.send()", crash.send().get(timeout_ms=10_000), "one child died, nothing else did")
    began = time.perf_counter()
    handles = add.send_many([add.call(n, n) for n in range(1_000)])
    total = sum(result.unwrap() for result in gather(handles, timeout_ms=60_000))
    show("add.send_many(1,000)", f"sum {total:,}", f"{time.perf_counter() - began:.1f} s")
    app.close()


def show(call: str, result: object, note: str = "") -> None:
    print(f"   {call:24} {result!s:.90}{f'   ({note})' if note else ''}")


if __name__ == "__main__":
    main()
