"""`horsies` as a person or a script meets it: words on the right stream, and exit codes."""

import os
import re
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest

from horsies import check
from tests.support import postgres
from tests.support.apps import UNREACHABLE, make_app
from tests.support.chaosproxy import ChaosProxy, When
from tests.support.postgres import Database

APP = """
    from horsies import AppConfig, Horsies, PostgresConfig, RetryPolicy, TaskError, TaskResult

    app = Horsies(AppConfig(PostgresConfig({url!r})))

    policy = RetryPolicy.fixed(1, max_retries=3, auto_retry_for=["DOWN"])

    @app.task("receipt", retry_policy=policy, timeout_ms=5_000, priority=7)
    def receipt(order: int) -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    @app.task("resize")
    async def resize(image: str) -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    @app.declare("bill")
    def bill(order: int) -> TaskResult[None, TaskError]: ...
"""


class Shop:
    """A directory with a module in it, and the command line run there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def module(self, text: str, *, url: str = UNREACHABLE, name: str = "shop.py") -> None:
        (self.directory / name).write_text(textwrap.dedent(text).replace("{url!r}", repr(url)))

    def horsies(self, *arguments: str) -> tuple[int, str, str]:
        environment = {key: value for key, value in os.environ.items() if key != "HORSIES_DATABASE_URL"}
        run = subprocess.run(
            [sys.executable, "-m", "horsies.cli", *arguments],
            capture_output=True, text=True, cwd=self.directory, env=environment,
        )  # fmt: skip
        return run.returncode, run.stdout, run.stderr


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_check_keeps_hostile_names_on_one_line(shop: Shop) -> None:
    shop.module(APP.replace('"receipt"', r'"receipt\x1b]0;owned\x07\nhorsies: no problems found"'))
    _, out, err = shop.horsies("check", "shop:app")
    assert "\x1b" not in out + err
    assert r"receipt\x1b]0;owned\x07\nhorsies: no problems found" in err
    assert not any(line.startswith("horsies:") for line in out.splitlines())


# -- the front door ------------------------------------------------------------------------------


def test_help_lists_commands_and_names_the_package_of_a_missing_one(shop: Shop) -> None:
    code, out, err = shop.horsies("--help")
    assert (code, err) == (0, "")
    for command in ("check", "version", "worker", "scheduler", "dev", "migrate", "tui"):
        assert re.search(rf"^  {command} ", out, re.MULTILINE)
    assert "create and upgrade the tables\n" in out
    without = shop.horsies()
    assert without[0] == 2
    assert without[1] == out


def test_version(shop: Shop) -> None:
    code, out, _ = shop.horsies("--version")
    assert code == 0
    assert re.match(r"horsies-client \d+\.\d+\.\d+\n", out)
    assert shop.horsies("version")[1] == out


def test_a_siblings_command_gets_the_rest_of_the_line(shop: Shop, empty_db: Database) -> None:
    assert shop.horsies("migrate", "current", "--url", empty_db.url) == (0, "none\n", "")


def test_an_unknown_command_is_usage(shop: Shop) -> None:
    code, out, err = shop.horsies("chekc")
    assert (code, out) == (2, "")
    assert "there is no command 'chekc'" in err


@pytest.mark.parametrize(
    ("command", "package"),
    [
        ("worker", "horsies-worker"), ("scheduler", "horsies-worker"), ("dev", "horsies-worker"),
        ("migrate", "horsies-schema"), ("tui", "horsies-tui"),
    ],
)  # fmt: skip
def test_a_command_that_is_not_installed_names_its_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, package: str
) -> None:
    from horsies import cli

    monkeypatch.setattr(cli, "entry_points", lambda group: [])
    assert cli.main([command, "--whatever"]) == 2
    said = capsys.readouterr().err
    assert said == f"horsies: `horsies {command}` is part of {package}, which is not installed: pip install {package}\n"


def test_a_broken_sibling_is_told_not_thrown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from importlib.metadata import EntryPoint

    from horsies import cli

    broken = EntryPoint("tui", "no_such_module_at_all:main", "horsies.operate.commands")
    monkeypatch.setattr(cli, "entry_points", lambda group: [broken])
    assert cli.main(["tui"]) == 1
    assert "cannot be loaded from no_such_module_at_all" in capsys.readouterr().err


# -- check: finding the app ----------------------------------------------------------------------


def test_check_lists_what_it_understood(shop: Shop) -> None:
    shop.module(APP)
    code, out, err = shop.horsies("check", "shop:app")
    assert (code, err) == (0, "")
    assert "postgresql://nobody:***@127.0.0.1:1/nowhere" in out
    assert "hunter2" not in out
    assert "queues: default" in out
    assert "tasks: 3" in out
    listed = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
    assert list(listed) == ["bill", "receipt", "resize"]
    assert "queue default, priority 7, up to 3 retries, timeout 5000 ms" in listed["receipt"]
    assert listed["receipt"].endswith(f"({shop.directory / 'shop.py'}:8)")
    assert "async" in listed["resize"]
    assert "declared only" in listed["bill"]
    assert out.endswith("no problems found; --live tries the database as well\n")
    assert shop.horsies("check", "shop") == (code, out, err)  # the only app of the module


LOCATORS = {
    "no such module": ("nothing_here:app", "there is no module 'nothing_here' in {cwd} or on the path"),
    "no such package": ("nothing.here:app", "there is no module 'nothing.here' (there is no 'nothing')"),
    "no attribute": ("shop:ap", "module 'shop' has no 'ap'; did you mean shop:app?"),
    "not an app": ("shop:receipt", "'shop:receipt' is the function receipt"),
    "a class": ("shop:Horsies", "'shop:Horsies' is the class Horsies, not a Horsies app; did you mean shop:app?"),
    "a value": ("shop:__name__", "'shop:__name__' is a str, not a Horsies app"),
    "a file": ("./shop.py", "'./shop.py' is a file path: name the module instead, such as shop:app"),
    "a file and a name": ("web/shop.py:app", "name the module instead, such as web.shop:app"),
    "no module": (":app", "':app' is not a locator: write module:attribute, such as shop.tasks:app"),
    "an expression": ("shop:app()", "is not a locator"),
    "a URL": ("postgresql://u:topsecret@h/db", "'postgresql://u:***@h/db' is not a locator"),
    "a DSN": ("host=h password=topsecret user=u", "'host=h password=*** user=u' is not a locator"),
    "half a URL": ("u:topsecret@h", "'u:***@h' is not a locator"),
    "escapes": ("shop:\x1b[31mapp", r"'shop:\x1b[31mapp' is not a locator"),
}


@pytest.mark.parametrize(("locator", "told"), LOCATORS.values(), ids=LOCATORS)
def test_bad_locators(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], locator: str, told: str
) -> None:
    """In this process: starting Python eleven times would take longer than the rest of this file."""
    from horsies import cli

    shop.module(APP)
    monkeypatch.chdir(shop.directory)
    monkeypatch.setattr(sys, "path", [*sys.path])
    try:
        assert cli.main(["check", locator]) == 2
    finally:
        sys.modules.pop("shop", None)
    said = capsys.readouterr()
    assert said.out == ""
    assert told.format(cwd=shop.directory) in said.err
    assert "\x1b" not in said.err
    assert "topsecret" not in said.err


@pytest.mark.parametrize(
    "words", [["{}"], ["doctor", "--port", "{}"], ["tasks", "list", "--limit", "{}"], ["top", "{}"]]
)
def test_no_command_repeats_a_password(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    from horsies import cli

    for given in ("postgresql://u:topsecret@h/db", "u:topsecret@127.0.0.1", "host=h password=topsecret"):
        with suppress(SystemExit):
            cli.main([word.format(given) for word in words])
        said = capsys.readouterr()
        assert said.err
        assert "topsecret" not in said.out + said.err


def test_modules_with_several_apps_or_none(shop: Shop) -> None:
    shop.module("x = 1")
    assert "module 'shop' has no Horsies app in it" in shop.horsies("check", "shop")[2]
    shop.module(
        """
        from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult
        first = same = Horsies(AppConfig(PostgresConfig({url!r})))
        second = Horsies(AppConfig(PostgresConfig({url!r})))
        class parts:
            inner = second
        for app in (first, second):
            @app.task("nothing")
            def nothing() -> TaskResult[None, TaskError]: ...
        del app
        """
    )
    assert "has 2 apps, name one of them: shop:first or shop:second" in shop.horsies("check", "shop")[2]
    assert shop.horsies("check", "shop:same")[0] == 0
    assert shop.horsies("check", "shop:parts.inner")[0] == 0
    assert "module 'shop' has no 'parts.outer'" in shop.horsies("check", "shop:parts.outer")[2]


def test_no_locator_is_usage(shop: Shop) -> None:
    code, _, err = shop.horsies("check")
    assert code == 2
    assert "the following arguments are required: app" in err


# -- check: what the module did ------------------------------------------------------------------


def test_an_import_that_raises_shows_the_end_of_its_traceback(shop: Shop) -> None:
    shop.module(
        """
        URL = "postgresql://shop:hunter2@db/shop"
        def connect(url): raise RuntimeError(f"no answer from {url} \\x1b]0;owned\\x07")
        app = connect("postgresql://shop:hunter2@db/shop")
        """
    )
    code, out, err = shop.horsies("check", "shop:app")
    assert (code, out) == (1, "")
    assert err.startswith("horsies: importing 'shop' failed\n")
    assert f'File "{shop.directory / "shop.py"}", line 4' in err
    assert r"RuntimeError: no answer from postgresql://shop:***@db/shop \x1b]0;owned\x07" in err
    assert "importlib" not in err
    assert "hunter2" not in err
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", err)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("import not_installed_anywhere", "No module named 'not_installed_anywhere'"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_other_ways_to_fail_an_import(shop: Shop, body: str, told: str) -> None:
    shop.module(body)
    code, _, err = shop.horsies("check", "shop:app")
    assert code == 1
    assert told in err
    assert "importing 'shop' failed" in err


def test_a_configuration_tells_all_its_problems_without_a_traceback(shop: Shop) -> None:
    shop.module(
        """
        from horsies import AppConfig, Horsies, PostgresConfig
        app = Horsies(AppConfig(PostgresConfig("postgresql://u:hunter2@db/x", sslmode="maybe", pool_max_size=0)))
        """
    )
    code, _, err = shop.horsies("check", "shop:app")
    assert code == 1
    assert "PostgresConfig.sslmode" in err
    assert "PostgresConfig.pool_max_size" in err
    assert "Traceback" not in err
    assert 'File "' not in err
    assert err.startswith(f"horsies: importing 'shop' failed ({shop.directory / 'shop.py'}:3)\n")
    assert "hunter2" not in err


def test_a_bad_definition_names_its_place(shop: Shop) -> None:
    shop.module(APP + "    @app.task('later', timeout_ms=0)\n    def later() -> TaskResult[None, TaskError]: ...\n")
    code, _, err = shop.horsies("check", "shop:app")
    assert code == 1
    assert f"task 'later' ({shop.directory / 'shop.py'}:18): timeout_ms" in err


def test_what_will_not_work_is_a_problem(shop: Shop) -> None:
    shop.module(
        """
        from datetime import datetime, timedelta, timezone
        from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult
        app = Horsies(AppConfig(PostgresConfig({url!r}, sslmode="verify-full", sslrootcert="/no/such/ca.pem")))
        soon = datetime.now(timezone.utc) + timedelta(seconds=5)
        @app.task("old", good_until=soon)
        def old() -> TaskResult[None, TaskError]: ...
        while datetime.now(timezone.utc) <= soon: pass
        """
    )
    code, out, err = shop.horsies("check", "shop:app")
    assert code == 1
    assert "task 'old'" in err
    assert "every send is refused" in err
    assert "no such file: '/no/such/ca.pem'" in err
    assert "no problems" not in out


def test_an_app_without_tasks_is_a_problem(shop: Shop) -> None:
    shop.module("from horsies import *\napp = Horsies(AppConfig(PostgresConfig({url!r})))")
    code, out, err = shop.horsies("check", "shop:app")
    assert code == 1
    assert "no task is registered: the module of the app has to import the modules that define its tasks" in err
    assert "no problems" not in out


# -- check --live --------------------------------------------------------------------------------


def test_live_and_well(shop: Shop, db: Database) -> None:
    shop.module(APP, url=db.url)
    code, out, err = shop.horsies("check", "--live", "shop:app")
    assert (code, err) == (0, "")
    assert re.search(r"^server: PostgreSQL \d+.*, encoding UTF8$", out, re.MULTILINE)
    assert re.search(r"^schema: revision \d{4}$", out, re.MULTILINE)
    assert re.search(r"^notifications: arrive \(\d+ ms\)$", out, re.MULTILINE)
    assert re.search(r"^clock: \d+ ms from the database's$", out, re.MULTILINE)
    assert out.endswith("no problems found\n")


def test_live_but_unreachable(shop: Shop) -> None:
    shop.module(APP)
    code, out, err = shop.horsies("check", "--live", "shop:app")
    assert code == 1
    assert "horsies: the database cannot be reached: ConnectionRefusedError" in err
    assert "hunter2" not in out + err


def test_live_without_tables(shop: Shop, empty_db: Database) -> None:
    shop.module(APP, url=empty_db.url)
    code, out, err = shop.horsies("check", "--live", "shop:app")
    assert code == 1
    assert err == (
        "horsies: there are no horsies tables in this database (by its search_path): run `horsies-migrate up`\n"
    )
    assert "notifications: arrive" in out  # everything else is still looked at


def test_live_in_an_unsuitable_database(shop: Shop) -> None:
    with postgres.database(template_name="template0", options="ENCODING 'SQL_ASCII' LOCALE 'C'") as ascii_only:
        shop.module(APP, url=ascii_only.url)
        code, out, err = shop.horsies("check", "--live", "shop:app")
    assert code == 1
    assert "the database's encoding is SQL_ASCII, horsies needs UTF8" in err
    assert "encoding SQL_ASCII" in out


async def test_live_where_notifications_get_lost(
    db: Database, empty_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler that nobody told us of; here LISTEN is in another database altogether."""
    monkeypatch.setattr(check, "NOTIFY_PATIENCE_S", 0.2)
    findings = await check.check_live(make_app(db, broker={"direct_url": empty_db.url}))
    (problem,) = [finding.text for finding in findings if finding.is_problem]
    assert "a notification did not arrive within 0.2 s: is there a pooler in between?" in problem


async def test_live_with_a_clock_that_is_off(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "CLOCK_TOLERANCE_S", -1)
    findings = await check.check_live(make_app(db))
    assert not any(finding.is_problem for finding in findings)
    assert re.match(r"clock: this machine is 0 s (ahead of|behind) the database; .* prefer delays", findings[-1].text)


async def test_live_with_a_server_that_goes_away(db: Database) -> None:
    with ChaosProxy(db.url) as proxy:
        proxy.cut_at("server_version", When.UNANSWERED)
        (problem,) = await check.check_live(make_app(proxy.url))
    assert problem.is_problem
    assert problem.text.startswith("the connection failed in the middle of the check: ")
