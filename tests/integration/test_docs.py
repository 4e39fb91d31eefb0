"""What the documentation shows, works: names exist, snippets parse, and the quickstart runs as written."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import horsies
from tests.support.postgres import Database
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "packages/*/*.md", "alembic/*.md")
    for path in ROOT.glob(pattern)
    if ".venv" not in path.parts
)
BLOCK = re.compile(r"^```python(?: title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str | None, str]]:
    return [(match["title"], match["code"]) for match in BLOCK.finditer(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_snippets_parse_and_import_names_that_exist(page: Path) -> None:
    for _, code in blocks(page):
        # top-level await is how a reader of async code writes a snippet
        tree = compile(code, str(page), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "horsies":
                public = {*horsies.__all__, "testing"}  # a module, which is imported whole
                missing = [alias.name for alias in node.names if alias.name not in public]
                assert not missing, f"{page.name} imports {missing} from horsies"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_quickstart_runs_as_written(db: Database, tmp_path: Path) -> None:
    told = run_as_written(ROOT / "docs" / "quickstart.md", "tasks:app", "send.py", db, tmp_path)
    assert told == "TaskResult(ok=0.25)\nerror DIVISION_BY_ZERO\n19\n"


def test_the_workflows_guide_runs_as_written(db: Database, tmp_path: Path) -> None:
    told = run_as_written(ROOT / "docs" / "guides" / "workflows.md", "flows:app", "start.py", db, tmp_path)
    assert told == "\n".join([
        "TaskResult(ok='45 words')", "45", "find_pages COMPLETED", "count_words COMPLETED", "total COMPLETED",
        "report COMPLETED", "",
    ])  # fmt: skip


def test_the_middleware_guide_runs_as_written(db: Database, tmp_path: Path) -> None:
    told = run_as_written(ROOT / "docs" / "guides" / "middleware.md", "shop:app", "send.py", db, tmp_path)
    assert told == "acme pays 20\n"


def test_the_metadata_guide_runs_as_written(db: Database, tmp_path: Path) -> None:
    told = run_as_written(ROOT / "docs" / "guides" / "metadata.md", "mail:app", "send.py", db, tmp_path)
    assert told == "{'tenant': 'acme'}\n" * 2


def test_the_limits_guide_runs_as_written(db: Database, tmp_path: Path) -> None:
    told = run_as_written(ROOT / "docs" / "guides" / "limits.md", "sync:app", "send.py", db, tmp_path)
    assert told == "page 1 of group 42\npage 2 of group a trial\n"


def test_the_tracing_guide_runs_as_written(db: Database, tmp_path: Path) -> None:
    told = run_as_written(ROOT / "docs" / "guides" / "tracing.md", "traced:app", "send.py", db, tmp_path)
    assert "\n42\n" in f"\n{told}"
    assert '"name": "send charge"' in told
    log = (tmp_path / "worker.log").read_text()
    assert '"name": "process charge"' in log
    assert '"name": "ask the bank"' in log


def test_the_sentry_snippet_is_a_good_app(tmp_path: Path) -> None:
    (code,) = [code for title, code in blocks(ROOT / "docs" / "guides" / "tracing.md") if title == "reported.py"]
    (tmp_path / "reported.py").write_text(code)
    environment = {**os.environ, "HORSIES_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nowhere"}
    command = [sys.executable, "-m", "horsies.cli", "check", "reported:app"]
    checked = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert "no problems found" in checked.stdout, checked.stdout + checked.stderr


def test_the_waiting_guide_runs_as_written(db: Database, tmp_path: Path) -> None:
    told = run_as_written(ROOT / "docs" / "guides" / "waiting-workflows.md", "approval:app", "start.py", db, tmp_path)
    assert told == "True\nFalse\nTaskResult(ok='offer for Acme: sent')\n"


def test_the_guide_of_sagas_runs_as_written(db: Database, tmp_path: Path) -> None:
    told = run_as_written(ROOT / "docs" / "guides" / "sagas.md", "trip:app", "start.py", db, tmp_path)
    assert told == "a node failed: book_car: NO_CAR: all cars are rented\n['undo-1-book_flight']\n"
    assert "flight 4711 to Lisbon is cancelled" in (tmp_path / "worker.log").read_text()


def test_the_other_snippets_of_the_workflows_guide_run(tmp_path: Path) -> None:
    """They stand on the first one."""
    first, _, branches, policy, maps, classes, paths = [
        code for _, code in blocks(ROOT / "docs" / "guides" / "workflows.md")
    ]
    more = "SuccessCase, SuccessPolicy, WorkflowDefinition, WorkflowHandle, WorkflowSpec, either, map_workflow"
    inside = "".join(f"    {line}\n" for line in paths.splitlines())
    checked = checked_and_typed(
        tmp_path, first, f"from horsies import {more}",
        "mail, archive, fallback = (find_pages.node()('x') for _ in range(3))", branches, policy, maps, classes,
        f"def look(handle: WorkflowHandle[int]) -> None:\n{inside}    print(nodes, count, again)",
    )  # fmt: skip
    assert "workflows: 8" in checked


def test_the_snippets_of_the_waiting_guide_fit_together(tmp_path: Path) -> None:
    first, _, default, later, loop = [code for _, code in blocks(ROOT / "docs" / "guides" / "waiting-workflows.md")]
    inside = "".join(f"    {line}\n" for line in later.splitlines())  # a start needs a database
    starts = f"def start() -> None:\n{inside}    print(reminder, dated)"
    called = "with_default('Acme')"
    assert "workflows: 3" in checked_and_typed(tmp_path, first, default, called, starts, loop)


def test_the_trigger_of_the_database_guide_signals(db: Database) -> None:
    """Its statements, and those of the runbook and of the guide to workflows that wait, as they are written."""
    db.execute("CREATE TABLE orders (id int, workflow_id text)")
    db.execute("CREATE TABLE payments (id int, order_id int, cents int)")
    run = "01980f6e-3b5c-7d31-9a57-0a4c7e1f2b11"
    told: list[Any] = []
    for page in ("guides/database", "operations/runbook", "guides/waiting-workflows"):
        for text in re.findall(r"^```sql\n(.*?)^```", (ROOT / "docs" / f"{page}.md").read_text(), re.M | re.S):
            for statement in re.split(r";\n(?!\s| *END)", text):
                if statement.strip() and "set_public_done" not in statement:
                    told += db.execute(statement)
    assert told == [("WORKFLOW_NOT_FOUND",)]
    db.execute("INSERT INTO horsies_workflows (id, name, status, nodes_left) VALUES (%s, 'order', 'RUNNING', 1)", run)
    db.execute("INSERT INTO orders VALUES (1, %s)", run)
    db.execute("INSERT INTO payments VALUES (7, 1, 1250)")
    assert db.execute("SELECT id, workflow_id, name, value FROM horsies_workflow_signals") == [
        ("payment-7", run, "paid", "1250"),
    ]  # fmt: skip
    db.execute("DELETE FROM horsies_workflows")


def checked_and_typed(tmp_path: Path, *parts: str) -> str:
    """Run this module, check its app and its types. Returns what `horsies check` says."""
    (tmp_path / "all.py").write_text("\n".join(parts))
    environment = {**os.environ, "HORSIES_DATABASE_URL": "postgresql://u@localhost/d"}
    subprocess.run([sys.executable, "all.py"], cwd=tmp_path, env=environment, check=True)
    checked = subprocess.run(
        [sys.executable, "-m", "horsies.cli", "check", "all:app"], cwd=tmp_path, env=environment, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    assert "no problems found" in checked.stdout
    typed = subprocess.run([sys.executable, "-m", "pyright", "all.py"], cwd=tmp_path, capture_output=True, text=True)
    assert "0 errors" in typed.stdout, typed.stdout
    return checked.stdout


def test_the_testing_guide_runs_as_written(tmp_path: Path) -> None:
    page = ROOT / "docs" / "guides" / "testing.md"
    for title, code in blocks(page):
        if title != "test_real.py":
            (tmp_path / str(title)).write_text(code)
    (ini,) = re.findall(r"^```ini\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "pytest.ini").write_text(ini)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=tmp_path, capture_output=True, text=True
    )
    assert "9 passed" in run.stdout, run.stdout + run.stderr


def test_the_testing_guide_runs_on_a_database(db: Database, tmp_path: Path) -> None:
    for title, code in blocks(ROOT / "docs" / "guides" / "testing.md"):
        if title in ("shop.py", "orders.py", "test_real.py"):
            (tmp_path / title).write_text(code.replace("postgresql://localhost/shop", db.url))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "1 passed" in run.stdout, run.stdout + run.stderr


def run_as_written(page: Path, app: str, script: str, db: Database, tmp_path: Path) -> str:
    """The titled snippets of a page as files, with a worker on the app; what the script prints."""
    for title, code in blocks(page):
        if title is not None:
            (tmp_path / title).write_text(code)
    environment = {**os.environ, "HORSIES_DATABASE_URL": db.url}
    log = tmp_path / "worker.log"
    command = [sys.executable, "-m", "horsies_worker", app, "--processes", "1", "--health-file", "health"]
    with log.open("wb") as output:
        worker = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=output, stderr=output)
    try:
        eventually(lambda: b"is up" in log.read_bytes() or worker.poll() is not None, timeout=60)
        sent = subprocess.run(
            [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )
    finally:
        worker.terminate()
        worker.wait(30)
    assert sent.stderr == "", log.read_text()
    assert worker.returncode == 0
    return sent.stdout


COMMANDS = {
    "doctor": ((),), "workers": ((),), "tasks": (("list",), ("show",), ("retry",), ("cancel",), ("purge",)),
    "stale": (("list",), ("fail",), ("requeue",)), "check": ((),),
    "queues": (("list",), ("pause",), ("resume",), ("show",), ("set",), ("unset",), ("groups",)),
    "limits": (("list",), ("set",), ("unset",)),
    "version": ((),), "exporter": ((),), "schedules": (("list",), ("run-now",), ("pause",), ("resume",)),
    "workflows": (
        ("list",), ("show",), ("check",), ("waiting",), ("signal",), ("pause",), ("resume",), ("cancel",), ("retry",),
    ),
}  # fmt: skip


def test_the_reference_knows_every_command_verb_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    from horsies import cli

    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    cli.main(["--help"])
    listed = set(re.findall(r"^  (\S+)", capsys.readouterr().out, re.MULTILINE))
    assert COMMANDS.keys() <= listed
    for command, verbs in COMMANDS.items():
        assert f"horsies {command}" in page
        for verb in verbs:
            assert not verb or re.search(rf"`{verb[0]}\b|horsies {command} {verb[0]}", page), (command, verb)
            with pytest.raises(SystemExit):
                cli.main([command, *verb, "--help"])
            options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
            missing = {option for option in options if f"{option} " not in page and f"{option}`" not in page}
            assert not missing, (command, verb)


def test_the_runbook_knows_every_finding() -> None:
    from horsies.operate.doctor.examination import CHECKS

    page = (ROOT / "docs" / "operations" / "runbook.md").read_text()
    fine = {"rights", "sizes"}  # never bad
    assert {name for name in {*CHECKS, "paused", "unserved", "reach"} if f"`{name}`" not in page} == fine


def test_the_schedules_of_the_guide_are_good_ones(tmp_path: Path) -> None:
    ((title, code),) = [(title, code) for title, code in blocks(ROOT / "docs" / "guides" / "scheduling.md") if title]
    assert title is not None
    (tmp_path / title).write_text(code)
    command = [sys.executable, "-m", "horsies.cli", "check", "schedules:app"]
    environment = {**os.environ, "HORSIES_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nowhere"}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    assert "weekly        report: weekly on monday, friday at 08:00:00 in UTC" in run.stdout


def test_the_event_handlers_of_the_guide_run_as_written(db: Database, tmp_path: Path) -> None:
    from tests.support.workers import WorkerProcess, ended

    for title, code in blocks(ROOT / "docs" / "guides" / "workers.md"):
        if title is not None:
            (tmp_path / title).write_text(code)
    environment = {**os.environ, "HORSIES_DATABASE_URL": db.url}
    command = [sys.executable, "-m", "horsies_worker", "alerts:app", "--processes=1", "--health-file=health"]
    with ended(WorkerProcess(command, environment, tmp_path, cwd=tmp_path)) as process:
        process.wait_up()
        send = "from alerts import charge; charge.send(-1).get(20_000); charge.send(1).get(20_000)"
        subprocess.run([sys.executable, "-c", send], cwd=tmp_path, env=environment, check=True, timeout=60)
        process.wait_for_log("ERROR alerts: charge has failed for good: NEGATIVE")


def test_the_table_of_log_fields_is_complete() -> None:
    """Against the fields that a line can have; tests/unit/worker/test_log_lines.py checks those."""
    page = (ROOT / "docs" / "guides" / "workers.md").read_text()
    section = page.split("\n## Logs\n")[1].split("\n## ")[0]
    fields = {
        "time", "level", "logger", "message", "pid", "worker_id", "task_id", "task_name", "attempt", "queue",
        "duration_s", "wait_s", "error_code", "will_retry", "traceback", "metadata", "exception",
    }  # fmt: skip
    assert {field for field in fields if f"`{field}`" not in section} == set()
