"""One task at a time per account. Needs `pip install horsies-client horsies-worker`.

    HORSIES_DATABASE_URL=postgresql://... horsies worker one_per_account:app --processes 4
    HORSIES_DATABASE_URL=postgresql://... python one_per_account.py

A booking reads a balance, thinks, and writes it: two at once on one account would lose one of them. The account is the
group, and one task of a group runs at a time, in the whole cluster. Different accounts do not wait for each other.
"""

import os
import time
from pathlib import Path

from horsies import (
    AppConfig,
    CustomQueueConfig,
    GroupPolicy,
    Horsies,
    PostgresConfig,
    QueueMode,
    RetryPolicy,
    TaskError,
    TaskResult,
    gather,
)

FOLDER = Path(os.environ.get("ACCOUNTS", "accounts"))  # one file per account; all workers of this example share it
bookings = CustomQueueConfig("bookings", groups=GroupPolicy(max_concurrency=1))
app = Horsies(AppConfig(PostgresConfig(), queue_mode=QueueMode.CUSTOM, custom_queues=[bookings]))


def note(what: str, account_id: int, number: int) -> None:
    """One line for each start and end: this file shows what ran when."""
    with Path(os.environ.get("JOURNAL", "journal.txt")).open("a") as journal:
        journal.write(f"{time.monotonic()} {what} {account_id} {number}\n")


@app.task(
    "book",
    queue_name="bookings",
    group_by="account_id",
    # a worker that is killed had its booking begun or done: only a booking that can be repeated may be retried
    retry_policy=RetryPolicy.fixed(1, max_retries=5, auto_retry_for=["WORKER_CRASHED"]),
)
def book(account_id: int, number: int) -> TaskResult[int, TaskError]:
    note("start", account_id, number)
    account = FOLDER / f"{account_id}.txt"
    booked = account.read_text().split() if account.exists() else []
    time.sleep(0.01)  # the work
    if str(number) not in booked:
        new = FOLDER / f"{account_id}.new"
        new.write_text(" ".join([*booked, str(number)]))
        new.replace(account)
    note("end", account_id, number)
    return TaskResult(ok=number)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    numbers, accounts = range(25), range(8)
    handles = book.send_many([book.call(account_id, number) for number in numbers for account_id in accounts])
    for result in gather(handles):
        result.unwrap()
    for account_id in accounts:
        print(f"account {account_id} has {len((FOLDER / f'{account_id}.txt').read_text().split())} of 25 bookings")
    app.close()


if __name__ == "__main__":
    main()
