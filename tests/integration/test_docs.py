"""What the documentation shows, works: names exist, snippets parse, and the quickstart runs as written."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

import horsies
from tests.support import postgres
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


@pytest.mark.runs("docs/quickstart.md", "python titled")
def test_the_quickstart_runs_as_written(db: Database, tmp_path: Path) -> None:
    told = run_as_written(ROOT / "docs" / "quickstart.md", "tasks:app", "send.py", db, tmp_path)
    assert told == "TaskResult(ok=0.25)\nerror DIVISION_BY_ZERO\n19\n"


def test_the_first_part_of_the_first_day_runs_as_written(db: Database, tmp_path: Path) -> None:
    """`just diary` runs all of it, with pip and make."""
    page = (ROOT / "docs" / "tutorials" / "first-day.md").read_text().split("\n## 2.")[0]
    (tmp_path / "page.md").write_text(page.replace("embedded://", db.url))
    told = run_as_written(tmp_path / "page.md", "tasks:app", "send.py", db, tmp_path)
    assert f"```text\n{told}```" in page


@pytest.mark.runs("docs/guides/uniqueness.md", "python titled", "output")
def test_the_guide_of_unique_keys_runs_as_written(db: Database, tmp_path: Path) -> None:
    page = ROOT / "docs" / "guides" / "uniqueness.md"
    told = run_as_written(page, "search:app", "send.py", db, tmp_path)
    assert told == "True page 7: hello\nada@example.org was reminded of the payment\nTrue True\n"
    assert f"```\n{told}```" in page.read_text()


@pytest.mark.runs("docs/guides/workflows.md", "python titled")
def test_the_workflows_guide_runs_as_written(db: Database, tmp_path: Path) -> None:
    told = run_as_written(ROOT / "docs" / "guides" / "workflows.md", "flows:app", "start.py", db, tmp_path)
    assert told == "\n".join([
        "TaskResult(ok='45 words')", "45", "find_pages COMPLETED", "count_words COMPLETED", "total COMPLETED",
        "report COMPLETED", "",
    ])  # fmt: skip


@pytest.mark.runs("docs/moving/from-horsies-0.md", "python titled", "output")
def test_the_application_that_moved_from_0x_runs_as_written(db: Database, tmp_path: Path) -> None:
    page = ROOT / "docs" / "moving" / "from-horsies-0.md"
    told = run_as_written(page, "shop:app", "buy.py", db, tmp_path)
    assert told == "500\nreceipt for 700 cents\n"
    assert f"```\n{told}```" in page.read_text()


@pytest.mark.runs("docs/guides/middleware.md", "python titled")
def test_the_middleware_guide_runs_as_written(db: Database, tmp_path: Path) -> None:
    told = run_as_written(ROOT / "docs" / "guides" / "middleware.md", "shop:app", "send.py", db, tmp_path)
    assert told == "acme pays 20\n"


@pytest.mark.runs("docs/guides/metadata.md", "python titled")
def test_the_metadata_guide_runs_as_written(db: Database, tmp_path: Path) -> None:
    told = run_as_written(ROOT / "docs" / "guides" / "metadata.md", "mail:app", "send.py", db, tmp_path)
    assert told == "{'tenant': 'acme'}\n" * 2


@pytest.mark.runs("docs/guides/exactly-once.md", "python titled")
def test_the_guide_to_exactly_once_runs_as_written(db: Database, tmp_path: Path) -> None:
    told = run_as_written(ROOT / "docs" / "guides" / "exactly-once.md", "bank:app", "send.py", db, tmp_path)
    assert told == "TaskResult(ok=750)\nNO_ACCOUNT\n"
    assert db.value("SELECT cents FROM accounts") == 750


@pytest.mark.runs("docs/guides/encryption.md", "python")
def test_the_guide_to_encryption_runs_as_written(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAYLOAD_KEY", "5a" * 32)
    told = run_as_written(ROOT / "docs" / "guides" / "encryption.md", "vault:app", "send.py", db, tmp_path)
    assert told == "Hello, Ada\n"
    ((kwargs, result),) = db.execute("SELECT kwargs, result FROM horsies_tasks")
    assert kwargs.startswith('{"name":{"horsies.encoded":"aes-gcm","of":"argument","data":"')
    assert result.startswith('{"ok":{"horsies.encoded":"aes-gcm","of":"result:greet","data":"')
    first, _, blocks_of_codecs, keyed = [code for _, code in blocks(ROOT / "docs" / "guides" / "encryption.md")]
    known = "key = bytes(32)\nHASH_KEY = bytes(32)"
    checked = checked_and_typed(tmp_path, first, known, blocks_of_codecs, keyed)
    assert "no problems found" in checked


@pytest.mark.runs("docs/guides/limits.md", "python titled")
def test_the_limits_guide_runs_as_written(db: Database, tmp_path: Path) -> None:
    told = run_as_written(ROOT / "docs" / "guides" / "limits.md", "sync:app", "send.py", db, tmp_path)
    assert told == "page 1 of group 42\npage 2 of group a trial\n"


@pytest.mark.runs("docs/guides/retries.md", "python titled", "output")
def test_the_retries_guide_runs_as_written(db: Database, tmp_path: Path) -> None:
    told = run_as_written(ROOT / "docs" / "guides" / "retries.md", "jobs:app", "send.py", db, tmp_path)
    assert told == "exported 7 after 2 snoozes, attempt 1\nCRASH_LIMIT\n"
    assert f"```\n{told}```" in (ROOT / "docs" / "guides" / "retries.md").read_text()


@pytest.mark.runs("docs/guides/batch-tasks.md", "python titled")
def test_the_guide_of_batch_tasks_runs_as_written(db: Database, tmp_path: Path) -> None:
    told = run_as_written(ROOT / "docs" / "guides" / "batch-tasks.md", "search:app", "send.py", db, tmp_path)
    assert told == "ONE MORE\n[True, False, True]\n"


@pytest.mark.parametrize(("name", "app"), [("from-celery", "moved:app"), ("from-other-queues", "worker:app")])
@pytest.mark.runs("docs/moving/from-celery.md", "python titled", "output")
@pytest.mark.runs("docs/moving/from-other-queues.md", "python titled", "output")
def test_the_pages_about_moving_run_as_written(db: Database, tmp_path: Path, name: str, app: str) -> None:
    page = ROOT / "docs" / "moving" / f"{name}.md"
    told = run_as_written(page, app, "send.py", db, tmp_path)
    assert f"```\n{told}```" in page.read_text()


@pytest.mark.parametrize("name", ["from-celery", "from-other-queues"])
def test_the_pages_about_moving_name_commands_and_sections_that_exist(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from horsies import cli

    page = ROOT / "docs" / "moving" / f"{name}.md"
    text = page.read_text()
    commands = re.findall(r"`horsies ((?:[a-z-]+ ?)+)", text)
    assert len(commands) > 5
    for command in {tuple(found.split()[:2]) for found in commands}:
        with pytest.raises(SystemExit) as ended:
            cli.main([*command[:1], *(word for word in command[1:] if command[0] not in ("worker", "check")), "--help"])
        assert ended.value.code == 0, (command, capsys.readouterr().err)
    for target, section in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", text):
        titles = re.findall(r"^#+ (.*)$", (page.parent / target if target else page).read_text(), re.MULTILINE)
        named = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
        assert section in named, f"{page.name} links to the section {section} of {target or 'itself'}"


@pytest.mark.runs("docs/guides/tracing.md", "python titled")
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


@pytest.mark.runs("docs/guides/waiting-workflows.md", "python titled")
def test_the_waiting_guide_runs_as_written(db: Database, tmp_path: Path) -> None:
    told = run_as_written(ROOT / "docs" / "guides" / "waiting-workflows.md", "approval:app", "start.py", db, tmp_path)
    assert told == "True\nFalse\nTaskResult(ok='offer for Acme: sent')\n"


@pytest.mark.runs("docs/guides/sagas.md", "python titled")
def test_the_guide_of_sagas_runs_as_written(db: Database, tmp_path: Path) -> None:
    told = run_as_written(ROOT / "docs" / "guides" / "sagas.md", "trip:app", "start.py", db, tmp_path)
    assert told == "a node failed: book_car: NO_CAR: all cars are rented\n['undo-1-book_flight']\n"
    assert "flight 4711 to Lisbon is cancelled" in (tmp_path / "worker.log").read_text()


@pytest.mark.runs("docs/guides/workflows.md", "python untitled")
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


@pytest.mark.runs("docs/guides/waiting-workflows.md", "python untitled")
def test_the_snippets_of_the_waiting_guide_fit_together(tmp_path: Path) -> None:
    first, _, default, later, loop = [code for _, code in blocks(ROOT / "docs" / "guides" / "waiting-workflows.md")]
    inside = "".join(f"    {line}\n" for line in later.splitlines())  # a start needs a database
    starts = f"def start() -> None:\n{inside}    print(reminder, dated)"
    called = "with_default('Acme')"
    assert "workflows: 3" in checked_and_typed(tmp_path, first, default, called, starts, loop)


@pytest.mark.runs("docs/guides/database.md", "sql")
@pytest.mark.runs("docs/operations/runbook.md", "sql")
@pytest.mark.runs("docs/guides/sql.md", "sql")
@pytest.mark.runs("docs/guides/waiting-workflows.md", "sql")
def test_the_statements_of_the_guides_run_as_written(db: Database) -> None:
    """Those of the runbook and of the guides to the database, to SQL and to workflows that wait; the triggers work."""
    run = "01980f6e-3b5c-7d31-9a57-0a4c7e1f2b11"
    told: list[Any] = []
    for page in ("guides/database", "operations/runbook", "guides/sql", "guides/waiting-workflows"):
        for text in re.findall(r"^```sql\n(.*?)^```", (ROOT / "docs" / f"{page}.md").read_text(), re.M | re.S):
            for statement in re.split(r";\n(?!\s| *END)", text):
                if statement.strip() and "set_public_done" not in statement:
                    told += db.execute(statement)
    assert ("WORKFLOW_NOT_FOUND",) in told
    sent = db.execute("SELECT task_name, kwargs, queue_name, unique_key FROM horsies_tasks ORDER BY id")
    assert sent == [
        ("send_receipt", '{"order_id": 42}', "default", None),
        ("send_receipt", '{"copy": true, "order_id": 42}', "mail", "receipt-42"),
        ("ship_order", '{"order_id": 7}', "default", "order-7"),
    ]
    db.execute("INSERT INTO horsies_workflows (id, name, status, nodes_left) VALUES (%s, 'order', 'RUNNING', 1)", run)
    db.execute("INSERT INTO orders VALUES (1, %s)", run)
    db.execute("INSERT INTO payments VALUES (8, 1, 1250)")
    assert db.execute("SELECT id, workflow_id, name, value FROM horsies_workflow_signals") == [
        ("payment-8", run, "paid", "1250"),
    ]  # fmt: skip
    db.execute("DELETE FROM horsies_workflows")


NODE = shutil.which("npm") if os.environ.get("HORSIES_TEST_NODE") else None


@pytest.mark.skipif(NODE is None, reason="set HORSIES_TEST_NODE=1: npm installs the driver `pg` from the network")
def test_the_node_snippets_of_the_sql_guide_run(db: Database, tmp_path: Path) -> None:
    """Those in Go are not run: no Go is part of the development environment."""
    send, signal = re.findall(r"^```js\n(.*?)^```", (ROOT / "docs" / "guides" / "sql.md").read_text(), re.M | re.S)
    subprocess.run([str(NODE), "install", "--silent", "pg"], cwd=tmp_path, check=True, timeout=120)
    parts = conninfo_to_dict(db.url)
    (tmp_path / "run.mjs").write_text(
        f"""import pg from "pg";
        const client = new pg.Client({{ host: {json.dumps(str(parts["host"]))}, port: {parts.get("port", 5432)},
                                        user: {json.dumps(str(parts["user"]))}, database: {json.dumps(db.name)} }});
        await client.connect();
        const [orderId, workflowId, deliveryId] = [7, "00000000-0000-0000-0000-000000000000", 1];
        {{ {send} console.log(rows[0].task_id); }}
        {{ {signal} console.log(rows[0].outcome); }}
        await client.end();"""
    )
    ran = subprocess.run(["node", "run.mjs"], cwd=tmp_path, check=True, capture_output=True, text=True)
    task_id, outcome = ran.stdout.split()
    assert db.execute("SELECT task_name, kwargs, queue_name FROM horsies_tasks WHERE id = %s", task_id) == [
        ("ship_order", '{"order_id": 7}', "mail")
    ]
    assert outcome == "WORKFLOW_NOT_FOUND"


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


REAL = ("test_real.py", "test_own_tables.py", "test_transaction.py", "test_billing.py", "test_database.py",
        "test_with_unittest.py")  # fmt: skip


@pytest.mark.runs("docs/guides/testing.md", "python titled", "ini")
def test_the_testing_guide_runs_as_written(tmp_path: Path) -> None:
    said = _run_testing_guide(tmp_path, lambda title: title not in REAL)
    assert "9 passed" in said


def test_the_testing_guide_runs_on_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORSIES_TEST_DATABASE_URL", postgres.admin_url())
    said = _run_testing_guide(tmp_path, lambda title: title in REAL or not title.startswith("test_"))
    assert "10 passed" in said


def _run_testing_guide(directory: Path, is_wanted: Callable[[str], bool]) -> str:
    page = ROOT / "docs" / "guides" / "testing.md"
    for title, code in blocks(page):
        if is_wanted(str(title)):
            (directory / str(title)).write_text(code)
    (ini,) = re.findall(r"^```ini\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    (directory / "pytest.ini").write_text(ini)
    environment = {name: value for name, value in os.environ.items() if name != "HORSIES_TESTING_RUN"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.runs("docs/guides/django.md", "python titled")
def test_the_django_guide_runs_as_written(db: Database, tmp_path: Path) -> None:
    """A new project, with what the guide adds to it; its tests run, and a task from the view to the worker."""
    from tests.support.django_projects import NAMES
    from tests.support.workers import WorkerProcess, ended

    snippets = dict(blocks(ROOT / "docs" / "guides" / "django.md"))
    parts = conninfo_to_dict(db.url)
    environment = {**os.environ, **{name: str(parts[key]) for name, key in NAMES.items() if parts.get(key)}}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "django", *arguments] if arguments[0].startswith("start") else
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    run("startproject", "mysite", ".")
    run("startapp", "shop")
    for title, code in snippets.items():
        if title is not None and title.startswith("shop/"):
            (tmp_path / title).write_text(code)
    places = {"NAME": "PGDATABASE", "USER": "PGUSER", "PASSWORD": "PGPASSWORD", "HOST": "PGHOST", "PORT": "PGPORT"}
    with (tmp_path / "mysite" / "settings.py").open("a") as settings:
        settings.write(
            "import os\nDATABASES = {'default': {'ENGINE': 'django.db.backends.postgresql', "
            + ", ".join(f"{key!r}: os.environ.get({name!r}, '')" for key, name in places.items())
            + "}}\n" + snippets["settings"] + snippets["more settings"]
            + "if os.environ.get('QUICK'):\n    DATABASES['default']['TEST'] = "
            + f"{{'TEMPLATE': {postgres.template()!r}, 'MIGRATE': False}}\n"
        )  # fmt: skip
    (tmp_path / "mysite" / "urls.py").write_text(
        "from django.urls import path\nfrom shop.views import place_order\nurlpatterns = [path('order', place_order)]\n"
    )
    run("manage.py", "makemigrations", "shop")
    environment["QUICK"] = "yes"
    assert "Ran 5 tests" in run("manage.py", "test", "--noinput")
    assert "its tables are at revision" in run("manage.py", "migrate")
    command = [sys.executable, "manage.py", "horsies_worker", "--processes=1", "--health-file=health"]
    with ended(WorkerProcess(command, environment, tmp_path, cwd=tmp_path)) as worker:
        worker.wait_up()
        ask = (
            "from django.test import Client\nfrom horsies.contrib.django import app\n"
            "form, headers = {'email': 'ada@example.org'}, {'host': 'localhost'}\n"
            "task = Client().get('/order', form, headers=headers).json()['task']\n"
            "print(app.handle(task).get(20_000).unwrap())"
        )
        environment["DJANGO_SETTINGS_MODULE"] = "mysite.settings"
        assert run("-c", ask) == "for ada@example.org\n"


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
    "init": ((),), "doctor": ((),), "workers": ((),), "top": ((),), "completion": ((),),
    "tasks": (("list",), ("show",), ("retry",), ("cancel",), ("purge",)),
    "stale": (("list",), ("fail",), ("requeue",)), "check": ((),),
    "queues": (("list",), ("pause",), ("resume",), ("show",), ("set",), ("unset",), ("groups",)),
    "limits": (("list",), ("set",), ("unset",)), "keys": (("list",), ("release",)),
    "version": ((),), "exporter": ((),), "capacity": ((),),
    "schedules": (("list",), ("run-now",), ("pause",), ("resume",)),
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
    for title, code in blocks(ROOT / "docs" / "guides" / "scheduling.md"):
        if title:
            (tmp_path / title).write_text(code)
    command = [sys.executable, "-m", "horsies.cli", "check", "schedules:app"]
    environment = {**os.environ, "HORSIES_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nowhere"}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    assert "weekly        report: weekly on monday, friday at 08:00:00 in UTC" in run.stdout


@pytest.mark.runs("docs/guides/workers.md", "python titled")
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
