"""The projects that `horsies init` writes: they are tidy, their tests pass, and their make targets run a task.

The environment of this repository stands in for the .venv of a project: `make -o .venv/ready BIN=...` makes none.
"""

import itertools
import json
import os
import re
import signal
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from horsies import cli
from tests.support import diary
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.web_servers import free_port

FRAMEWORKS = ("none", "fastapi", "flask", "django")
BIN = Path(sys.executable).parent
ADA = "ada@example.org"


def package(framework: str) -> str:
    return f"with_{framework}"


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a project of each kind."""
    folder = tmp_path_factory.mktemp("projects")
    for framework in FRAMEWORKS:
        assert cli.main(["init", str(folder / package(framework)), "--framework", framework]) == 0
    return folder


def environment(db: Database | None = None) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("HORSIES_", "PYTEST_", "DJANGO_"))
    }
    return kept if db is None else {**kept, "HORSIES_DATABASE_URL": db.url, "HORSIES_TEST_DATABASE_URL": db.url}


def make(project: Path, *arguments: str, db: Database | None = None) -> str:
    command = ["make", "-o", ".venv/ready", f"BIN={BIN}", *arguments]
    run = subprocess.run(command, cwd=project, env=environment(db), capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


@contextmanager
def running(project: Path, target: str, ready: str, db: Database, *arguments: str) -> Iterator[None]:
    """A make target that runs until Ctrl-C."""
    log = project / f"{target}.log"
    command = ["make", "-o", ".venv/ready", f"BIN={BIN}", target, *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=project, env=environment(db), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    try:
        eventually(lambda: ready in log.read_text() or process.poll() is not None, timeout=60, describe=ready)
        assert process.poll() is None, log.read_text()
        assert "WARNING horsies" not in log.read_text(), log.read_text()
        yield
    finally:
        try:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(30)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def test_projects_are_tidy(workshop: Path) -> None:
    for command in (["check"], ["format", "--check"]):
        run = subprocess.run([BIN / "ruff", *command, "."], cwd=workshop, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.long
def test_projects_are_typed(workshop: Path) -> None:
    """Not that of Django, whose types are in packages of their own."""
    typed = [package(framework) for framework in FRAMEWORKS if framework != "django"]
    settings = {"include": typed, "extraPaths": typed, "pythonVersion": "3.11", "typeCheckingMode": "strict"}
    (workshop / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [BIN / "pyright", "--pythonpath", sys.executable]
    run = subprocess.run(command, cwd=workshop, capture_output=True, text=True, timeout=200)
    assert "0 errors" in run.stdout, run.stdout


def test_compose_files_are_good_ones(workshop: Path) -> None:
    files = sorted(workshop.glob("*/compose.yaml"))
    assert len(files) == len(FRAMEWORKS)
    command = [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", *files]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    for file in files:
        text = file.read_text()
        secrets = set(re.findall(r"\$\{(\w+):\?", text))
        assert secrets == set(re.findall(r"^(\w+)=$", (file.parent / ".env.example").read_text(), re.M))
        assert set(re.findall(r"\$\{(\w+)", text)) == secrets  # none has a default that would be committed


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_makefile_is_sound(workshop: Path, framework: str) -> None:
    project = workshop / package(framework)
    text = (project / "Makefile").read_text()
    (targets,) = re.findall(r"^\.PHONY: (.*)$", text, re.M)
    listed = re.findall(r"^(\w+) {2,}\S", make(project), re.M)
    assert listed == targets.split()
    for target in listed:
        shell = make(project, "-n", target)
        checked = subprocess.run(["sh", "-n"], input=shell, capture_output=True, text=True)
        assert (checked.returncode, checked.stderr) == (0, ""), target
    assert set(re.findall(r"`?make (\w+)", (project / "README.md").read_text())) <= {*listed, "alone"}


def test_make_writes_secrets_once(workshop: Path) -> None:
    project = workshop / package("django")
    make(project, ".env")
    written = (project / ".env").read_text()
    assert re.fullmatch(r"POSTGRES_PASSWORD=[0-9a-f]{48}\nDJANGO_SECRET_KEY=[0-9a-f]{48}\n", written)
    assert stat.S_IMODE((project / ".env").stat().st_mode) == 0o600
    make(project, ".env")
    assert (project / ".env").read_text() == written
    assert ".env\n" in (project / ".gitignore").read_text()


def test_make_writes_no_secrets_without_python(tmp_path: Path) -> None:
    assert cli.main(["init", str(tmp_path / "shop")]) == 0
    run = subprocess.run(["make", ".env", "PYTHON=false"], cwd=tmp_path / "shop", capture_output=True)
    assert run.returncode != 0
    assert not (tmp_path / "shop" / ".env").exists()


def test_make_refuses_an_old_python_before_it_makes_an_environment(tmp_path: Path) -> None:
    """A second `make setup` with a newer one would keep the links to the old one."""
    assert cli.main(["init", str(tmp_path / "shop")]) == 0
    old = tmp_path / "python3.10"
    old.write_text(
        f"#!/bin/sh\nexec {sys.executable} -c 'import sys; sys.version_info = (3, 10); exec(sys.argv[2])' \"$@\"\n"
    )
    old.chmod(0o755)
    run = subprocess.run(
        ["make", "setup", f"PYTHON={old}"], cwd=tmp_path / "shop", env=environment(), capture_output=True, text=True
    )
    assert run.returncode != 0
    assert "make setup PYTHON=...: it must be 3.11 or newer\n" in run.stderr
    assert not (tmp_path / "shop" / ".venv").exists()


def test_compose_takes_names_that_are_words_of_yaml(tmp_path: Path) -> None:
    """In a directory whose name gives no name of a compose project either."""
    assert cli.main(["init", str(tmp_path / "кухня"), "--name", "null"]) == 0
    text = (tmp_path / "кухня" / "compose.yaml").read_text()
    assert ": null\n" not in text
    assert 'name: "null"\n' in text


def test_django_without_a_key_says_what_to_set(workshop: Path) -> None:
    run = subprocess.run(
        [sys.executable, "manage.py", "check"], cwd=workshop / package("django"), env=environment(),
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode != 0
    assert "set DJANGO_SECRET_KEY; in development DJANGO_DEBUG=1 will do" in run.stderr


def test_every_command_of_the_tutorial_exists(workshop: Path) -> None:
    steps = diary.steps_of(diary.PAGE.read_text())
    assert [part for part, _ in itertools.groupby(step.part for step in steps)] == [
        "1. A task of your own", "2. A web application with a transaction", "3. Tests in all three modes",
        "4. A Django project",
    ]  # fmt: skip
    targets = {
        command.removeprefix("make ")
        for step in steps
        if step.kind == "sh"
        for command in diary.commands_of(step.body)
        if command.startswith("make ")
    }
    assert targets == {"setup", "dev", "web", "tasks", "test"}
    for framework in ("fastapi", "django"):
        assert all(f"\n{target}:" in (workshop / package(framework) / "Makefile").read_text() for target in targets)


def call(url: str, body: bytes | None = None, kind: str = "application/json") -> tuple[int, dict[str, object]]:
    request = urllib.request.Request(url, body, {"Content-Type": kind} if body is not None else {})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_the_tests_of_the_tutorial_pass(tmp_path: Path, db: Database) -> None:
    """The short form of `just diary`: the project of docs/tutorials/first-day.md, with the task and the tests that the
    reader adds."""
    steps = diary.steps_of(diary.PAGE.read_text())
    commands = [command for step in steps if step.kind == "sh" for command in diary.commands_of(step.body)]
    assert "horsies init shop --framework fastapi" in commands
    project = tmp_path / "shop"
    assert cli.main(["init", str(project), "--framework", "fastapi"]) == 0
    (added,) = [command for command in commands if command.startswith("cat >> shop/tasks.py")]
    subprocess.run(["bash", "-c", added], cwd=project, check=True)
    (test,) = [step for step in steps if step.title == "tests/test_letters.py"]
    (project / "tests" / "test_letters.py").write_text(test.body)
    told = make(project, "test", db=db)
    shown = [step.body for step in steps if step.kind == "text" and "passed" in step.body]
    assert diary.expected(shown[-1]).search(told), told


@pytest.mark.parametrize("framework", ["none", "flask", "django"])
def test_the_tests_of_a_project_pass(workshop: Path, framework: str, db: Database) -> None:
    told = make(workshop / package(framework), "test", db=db)
    assert re.search(r"\b4 passed in|^Ran 3 tests(?s:.*)^OK", told, re.M), told
    assert "warning" not in told.lower().replace("pytestdeprecationwarning", "").replace("warnings.warn", ""), told


def test_a_project_runs_a_task(workshop: Path, db: Database) -> None:
    project = workshop / package("none")
    assert "no problems found" in make(project, "check", db=db)
    make(project, "migrate", db=db)
    with running(project, "dev", " is up", db):
        assert f"TaskResult(ok='welcomed {ADA}')" in make(project, "send", db=db)
        assert "with_none.send_welcome" in make(project, "tasks", db=db)


@pytest.mark.parametrize("framework", ["fastapi", pytest.param("flask", marks=pytest.mark.long)])
def test_a_project_with_a_web_application_runs_a_task(workshop: Path, framework: str, db: Database) -> None:
    project, port = workshop / package(framework), free_port()
    assert "no problems found" in make(project, "check", db=db)
    site = f"http://127.0.0.1:{port}"
    body = json.dumps({"address": ADA}).encode()
    ready = {"fastapi": "Application startup complete", "flask": "Running on"}[framework]
    with running(project, "dev", " is up", db), running(project, "web", ready, db, f"PORT={port}"):
        status, signed_up = call(f"{site}/customers", body)
        assert status == 202
        waiting = f"{site}/welcomes/{signed_up['task_id']}?wait_s=20&wait_ms=20000"
        assert call(waiting)[1]["result"] == f"welcomed {ADA}"
        assert call(f"{site}/customers", body)[0] == 409
        assert call(f"{site}/welcomes/00000000-0000-0000-0000-000000000000")[0] == 404
        assert db.value("SELECT count(*) FROM horsies_tasks") == 1


def test_a_project_of_django_runs_a_task(workshop: Path, db: Database) -> None:
    project, port = workshop / package("django"), free_port()
    assert "no problems found" in make(project, "check", db=db)
    site = f"http://127.0.0.1:{port}"
    body, kind = f"address={ADA}".encode(), "application/x-www-form-urlencoded"
    with running(project, "dev", " is up", db), running(project, "web", "Quit the server", db, f"PORT={port}"):
        status, signed_up = call(f"{site}/customers", body, kind)
        assert status == 202
        waiting = f"{site}/customers/{signed_up['customer_id']}/welcome?wait_ms=20000"
        assert call(waiting) == (200, {"result": f"welcomed {ADA}"})
        assert call(f"{site}/customers", body, kind)[0] == 409
        assert db.value("SELECT count(*) FROM horsies_tasks") == 1
