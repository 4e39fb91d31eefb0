"""Processes that send one key: `python -m tests.support.debouncing URL NUMBER COUNT SECONDS DEBOUNCE MAX_WAIT`.

Each waits for a line on its standard input, then sends `add(number, at)` COUNT times, spread over SECONDS.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from tests.support.apps import add_task, make_app
from tests.support.postgres import Database

ARRIVALS = """
CREATE TABLE arrivals (number bigint GENERATED ALWAYS AS IDENTITY, kwargs text, at timestamptz);
CREATE FUNCTION arrived() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.arrivals (kwargs, at) VALUES (NEW.kwargs, clock_timestamp());
    RETURN NULL;
END $$;
CREATE TRIGGER arrived_new AFTER INSERT ON horsies_tasks FOR EACH ROW EXECUTE FUNCTION arrived();
CREATE TRIGGER arrived_again AFTER UPDATE OF kwargs ON horsies_tasks FOR EACH ROW EXECUTE FUNCTION arrived();
"""
"""A witness: the sends of one key in the order in which they changed the row, which is locked meanwhile."""


@contextmanager
def senders(
    db: Database, processes: int, sends: int, seconds: float, debounce: float, max_wait: float
) -> Iterator[list[subprocess.Popen[str]]]:
    """Send one key from so many processes at once; the block begins when all have been told to start."""
    counts = [sends // processes + (number < sends % processes) for number in range(processes)]
    started = [
        subprocess.Popen(
            [
                sys.executable, "-m", "tests.support.debouncing", db.url, str(number), str(count), str(seconds),
                str(debounce), str(max_wait),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number, count in enumerate(counts)
    ]  # fmt: skip
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        yield started
        for process in started:
            assert process.wait(60) == 0
    finally:
        for process in started:
            process.kill()
            process.communicate()


def main(url: str, number: str, count: str, seconds: str, debounce: str, max_wait: str) -> None:
    with make_app(url) as app:
        sender = add_task(app).with_options(
            unique_key="burst",
            debounce=timedelta(seconds=float(debounce)),
            max_wait=timedelta(seconds=float(max_wait)),
        )
        app.send("elsewhere")  # connects, checks the schema
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        begun = time.monotonic()
        for at in range(int(count)):
            sender.send(int(number), at)
            time.sleep(max(0.0, begun + float(seconds) * (at + 1) / int(count) - time.monotonic()))


if __name__ == "__main__":
    main(*sys.argv[1:])
