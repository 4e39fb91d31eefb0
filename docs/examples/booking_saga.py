"""A trip of three bookings: all of them, or none. Needs `pip install horsies-client horsies-worker`.

    HORSIES_DATABASE_URL=postgresql://... horsies worker booking_saga:app
    HORSIES_DATABASE_URL=postgresql://... python booking_saga.py

There is no car. The run undoes the hotel and then the flight, the last booking first, and only then fails. Its retry
books all three again.
"""

import os
from pathlib import Path

from horsies import AppConfig, Horsies, PostgresConfig, RetryPolicy, TaskError, TaskResult, from_node

FOLDER = Path(os.environ.get("TRIPS", "."))
app = Horsies(AppConfig(PostgresConfig()))
# what undoes must succeed in the end: let it try for long, and let a second call for the same booking do no harm
PATIENT = RetryPolicy.exponential(
    base_seconds=1, max_retries=10, auto_retry_for=["UNHANDLED_EXCEPTION", "WORKER_CRASHED"]
)


def note(line: str) -> None:
    with (FOLDER / "bookings.txt").open("a") as bookings:
        bookings.write(f"{line}\n")


@app.task("book_flight")
def book_flight(traveller: str, city: str) -> TaskResult[str, TaskError]:
    note(f"flight to {city} booked")
    return TaskResult(ok=f"flight of {traveller}")


@app.task("cancel_flight", retry_policy=PATIENT)
def cancel_flight(booking: str, city: str) -> TaskResult[None, TaskError]:
    """`booking` is the value that book_flight returned; `city` is its argument of that name."""
    note(f"{booking} to {city} cancelled")
    return TaskResult(ok=None)


@app.task("book_hotel")
def book_hotel(traveller: str, flight: str) -> TaskResult[str, TaskError]:
    note("hotel booked")
    return TaskResult(ok=f"hotel of {traveller}")


@app.task("cancel_hotel", retry_policy=PATIENT)
def cancel_hotel(booking: str) -> TaskResult[None, TaskError]:
    note(f"{booking} cancelled")
    return TaskResult(ok=None)


@app.task("book_car")
def book_car(traveller: str, hotel: str) -> TaskResult[str, TaskError]:
    if not (FOLDER / "garage").exists():
        return TaskResult(err=TaskError("NO_CAR", "all cars are rented"))
    note("car booked")
    return TaskResult(ok=f"car of {traveller}")


flight = book_flight.node(compensate=cancel_flight)("Ada", "Lisbon")
hotel = book_hotel.node(compensate=cancel_hotel)("Ada", from_node(flight))
car = book_car.node()("Ada", from_node(hotel))
trip = app.workflow("trip", [flight, hotel, car], output=car)


def main() -> None:
    run = trip.start()
    failed = run.get(timeout_ms=60_000)
    print(failed.err_value.message)
    for node in run.tasks():
        print(f"{node.node_id}: {node.status}")
    (FOLDER / "garage").touch()  # a car has come back
    run.retry()
    print(run.get(timeout_ms=60_000).unwrap())
    app.close()


if __name__ == "__main__":
    main()
