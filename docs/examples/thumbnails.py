"""A batch of 200 calls, and a report when all have ended. Needs `pip install horsies-client horsies-worker`.

    HORSIES_DATABASE_URL=postgresql://... horsies worker thumbnails:app --processes 4
    HORSIES_DATABASE_URL=postgresql://... python thumbnails.py

Every tenth picture is broken. The batch completes all the same: the report says how many failed, and the script prints
which.
"""

import time

from horsies import AppConfig, BatchSummary, Horsies, PostgresConfig, TaskError, TaskResult

app = Horsies(AppConfig(PostgresConfig()))


@app.task("thumbnail")
def thumbnail(picture: int) -> TaskResult[str, TaskError]:
    if picture % 10 == 9:
        return TaskResult(err=TaskError("BROKEN_PICTURE", f"picture {picture} cannot be read"))
    return TaskResult(ok=f"thumbnails/{picture}.webp")


@app.task("album_report")
def album_report(summary: BatchSummary, album: str = "album") -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"{album}: {summary.completed} of {summary.total} pictures, {summary.failed} failed")


if __name__ == "__main__":
    batch = app.batch([thumbnail.call(picture) for picture in range(200)], then=album_report, name="thumbnails")
    while (progress := batch.progress()) is not None and progress.ended < progress.total:
        time.sleep(0.1)
    print(batch.get(timeout_ms=60_000).unwrap())
    broken = [picture for picture, result in enumerate(batch.results()) if result.is_err()]
    print(f"broken: {broken[:3]} and {len(broken) - 3} more")
