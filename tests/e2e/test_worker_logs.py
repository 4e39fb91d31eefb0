"""What real workers log of tasks, and of the app's own records, in the parent and in children."""

import json
from pathlib import Path
from typing import Any

from horsies import gather
from tests.support.event_app import FORGED, Observed, observed, tasks_on
from tests.support.postgres import Database
from tests.support.waiting import eventually

LONG_MS = 60_000


def lines(one: Observed, **fields: Any) -> list[dict[str, Any]]:
    """The JSON lines with these values. Every line must be JSON, but for what Python's logging itself prints."""
    found = [json.loads(line) for line in one.log.splitlines() if line.startswith("{")]
    return [line for line in found if all(line.get(name) == fields[name] for name in fields)]


def test_json_lines(db: Database, tmp_path: Path) -> None:
    with tasks_on(db) as tasks, observed(db, tmp_path, "--log-format=json", "--log-tasks", handlers="logs") as one:
        ok = tasks.add.with_options(metadata={"tenant": "acme"}).send(1, 2)
        retried, forged, extra = tasks.flaky.send(2), tasks.forge.send(), tasks.log_extra.send()
        gather([ok, retried, forged, extra], timeout_ms=LONG_MS)
        worker_id = lines(one)[-1]["worker_id"]
        assert f"worker {worker_id} is up" in {line["message"] for line in lines(one)}
        eventually(lambda: len(lines(one, task_name="flaky", logger="horsies.worker.attempts")) == 2)

        (line,) = lines(one, task_id=ok.task_id)
        assert (line["level"], line["task_name"], line["attempt"], line["queue"]) == ("INFO", "add", 1, "default")
        assert (line["worker_id"], line["will_retry"], line["metadata"]) == (worker_id, False, {"tenant": "acme"})
        assert line["duration_s"] >= 0
        first, second = lines(one, task_id=retried.task_id)
        assert (first["level"], first["attempt"], first["will_retry"]) == ("WARNING", 1, True)
        assert first["error_code"] == "SMTP_DOWN"
        assert (second["level"], second["attempt"]) == ("INFO", 2)
        (line,) = lines(one, task_id=forged.task_id)
        assert (line["level"], line["error_code"]) == ("ERROR", "UNHANDLED_EXCEPTION")
        assert line["traceback"].startswith("Traceback (most recent call last)")
        assert FORGED in line["traceback"]
        assert "Traceback" not in line["message"]

        for where, fields in (("in a child", {"task_id": extra.task_id}), ("in the parent", {"task_id": "forged"})):
            (line,) = eventually(lambda where=where: lines(one, message=where))
            assert (line["order"], line["task"], line["level"], line["logger"]) == (7, "mine", "WARNING", "shop")
            assert line["worker_id"] == worker_id
            assert {name: line[name] for name in fields} == fields
            eventually(lambda where=where: len(lines(one, message=f"odd: {where}", order=8)) == 5)
            (line,) = eventually(lambda where=where: lines(one, message=f"excepted: {where}"))
            assert "KeyError" in line["exception"]
        child = lines(one, message="in a child")[0]
        assert (child["task_name"], child["attempt"], child["queue"]) == ("log_extra", 1, "default")
        assert child["pid"] != one.process.pid
    # a handler's record with arguments that do not fit: Python prints what is wrong, and nothing else is lost
    assert "Message: '%d'" in one.log


def test_text_lines(db: Database, tmp_path: Path) -> None:
    with tasks_on(db) as tasks, observed(db, tmp_path) as one:
        ok, forged, cancelled = tasks.add.send(1, 2), tasks.forge.send(), tasks.sleep.send(60.0)
        eventually(lambda: cancelled.info().status.value == "RUNNING")
        cancelled.cancel()
        gather([ok, forged, cancelled], timeout_ms=LONG_MS)
        one.process.wait_for_log(
            f"INFO horsies.worker.attempts: task {cancelled.task_id} (sleep) attempt 1: was cancelled"
        )
        one.process.wait_for_log(
            f"ERROR horsies.worker.attempts: task {forged.task_id} (forge) attempt 1: failed after"
        )
    assert "\n  Traceback (most recent call last):\n    File " in one.log
    assert f"\n  {FORGED}\\x1b[2J\n" in one.log
    assert not any(line.startswith(FORGED) for line in one.log.splitlines())
    assert ok.task_id not in one.log  # successes only with --log-tasks
