"""The commands of an operator that the documentation shows are accepted, and find what they ask for."""

import re
import sys
from pathlib import Path

import pytest

from horsies import AppConfig, Daily, Horsies, PostgresConfig, TaskError, TaskResult, TaskSchedule, cli, wait_for_signal
from tests.support import factories
from tests.support.postgres import Database
from tests.support.snippets import ROOT, blocks_of, operator_commands, pages

PAGES = [
    page.relative_to(ROOT).as_posix() for page in pages() if any(operator_commands(block) for block in blocks_of(page))
]
APP = """
from horsies import AppConfig, CustomQueueConfig, Horsies, PostgresConfig, QueueMode, TaskError, TaskResult
from horsies.contrib.compression import ZlibCodec

queues = [CustomQueueConfig(name) for name in ("default", "mail", "bills", "sync")]
app = Horsies(
    AppConfig(PostgresConfig(), queue_mode=QueueMode.CUSTOM, custom_queues=queues, payload_codec=ZlibCodec())
)


@app.task("report", queue_name="default")
def report(kind: str = "all") -> TaskResult[str, TaskError]:
    return TaskResult(ok=kind)
"""
FINDS_NOTHING = re.compile(
    r"workers (?:drain|resume|resize)|limits (?:set|unset)|--limits"  # no worker runs, and none has declared a limit
    r"|keys release|stale (?:requeue|fail)|quarantine (?:release|purge)"  # no such key, no stale task, no quarantine
    r"|--path|workflows (?:retry|resume)"  # the run has no run inside, no failed node, and is not paused
    r"|doctor|migrate check|tasks (?:retry|cancel|purge)"  # depend on what the commands before them have done
)
"""Commands that may end with 1, and then say why. All others end with 0."""


def _prepare(db: Database, folder: Path, page: str) -> dict[str, str]:
    """Rows and modules that the pages speak of. Returns what their placeholders stand for."""
    (folder / "shop").mkdir()
    for name in ("shop/__init__.py", "shop/tasks.py", "vault.py", "schedules.py"):
        (folder / name).write_text(APP)
    failed = factories.task(db, "FAILED", error_code="SMTP_DOWN", queue_name="mail", task_name="send_receipt")
    for queue in ("mail", "bills", "sync"):
        factories.task(db, queue_name=queue)
    with Horsies(AppConfig(PostgresConfig(db.url))) as app:

        @app.task("report")
        def report(kind: str = "all") -> TaskResult[str, TaskError]:
            return TaskResult(ok=kind)

        report.with_options(unique_key="order-42").send()
        for name in ("nightly", "report:acme"):
            if f"schedules add {name}" not in page:
                app.schedules.put(TaskSchedule(name, "report", Daily("02:30")))
        run = app.workflow("order", [wait_for_signal("approve", bool)]).start()
    return {"tasks": failed, "quarantine": failed, "stale": failed, "workflows": run.workflow_id, "url": db.url}


def _filled(words: list[str], known: dict[str, str]) -> list[str]:
    """The words with real ids and a real address."""
    thing = known.get(words[0], "nothing")
    return [
        thing
        if word in ("ID", "0199c0de-...")
        else known["url"]
        if re.match(r"postgresql://|\$DATABASE_URL", word)
        else word
        for word in words
    ]


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_an_operator_run(
    page: str, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("shop", "shop.tasks", "vault", "schedules"):  # those of another page
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setenv("HORSIES_DATABASE_URL", db.url)
    known = _prepare(db, tmp_path, (ROOT / page).read_text())
    wrong: list[str] = []
    for block in blocks_of(ROOT / page):
        for words in operator_commands(block) or []:
            capsys.readouterr()
            if words[0] == "init":
                (tmp_path / f"empty{len(list(tmp_path.iterdir()))}").mkdir()
                monkeypatch.chdir(max(tmp_path.glob("empty*"), key=lambda path: path.stat().st_ctime_ns))
            try:
                code = cli.main(_filled(words, known))
            except SystemExit as stop:  # argparse's way to refuse
                code = int(stop.code or 0)
            said = capsys.readouterr()
            shown = " ".join(words)
            if code not in ((0, 1) if FINDS_NOTHING.search(shown) else (0,)) or not (said.out or said.err):
                wrong.append(f"horsies {shown}: {code}\n{said.out}{said.err}")
    assert wrong == [], "\n".join(wrong)


def _servers() -> list[str]:
    """The command lines of workers and schedulers, as the pages show them."""
    line = re.compile(r"(?:^|&& )horsies ((?:worker|scheduler) [^#&|)\n]*)", re.M)
    blocks = (block for page in pages() for block in blocks_of(page) if block.language in ("", "sh", "bash"))
    return sorted({found.strip() for block in blocks for found in line.findall(block.code)})


def test_the_options_of_workers_and_schedulers_are_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    """Options are read before the app is imported, and this one cannot be imported."""
    assert len(_servers()) > 5
    for line in _servers():
        words = [re.sub(r"^[\w.]+:\w+$", "no_such_module:app", word) for word in line.split()]
        assert "no_such_module:app" in words, line
        try:
            code = cli.main(words)
        except SystemExit as stop:
            code = int(stop.code or 0)
        said = capsys.readouterr()
        assert code not in (0, 2), (line, said.err)
        assert "no_such_module" in said.out + said.err, line
