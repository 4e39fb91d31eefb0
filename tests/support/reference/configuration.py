"""configuration.md: every setting with its default, its bounds and its meaning.

Names, types and defaults come from the classes, meanings from the strings beside the fields, and bounds from the checks
themselves: a value far out of range is given, and the error says what would have been right.
"""

import ast
import dataclasses
import enum
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import horsies
from horsies._checks import Checks
from horsies.contrib.django import conf as django_conf
from horsies.contrib.flask import extension as flask_extension
from horsies.errors import ConfigurationError, Problem
from horsies.options import SendOptions, TaskOptions
from horsies_worker import options as process_options
from tests.support.reference import documented, markdown as md, parsers

PROSE = Path(__file__).parent / "prose/configuration.md"
URL = "postgresql://db/work"


def _of_classes() -> dict[str, tuple[type, Callable[..., list[Problem]]]]:
    """By heading: a class with settings, and how to learn what it says of values."""

    def raised(kind: type, **others: Any) -> Callable[..., list[Problem]]:
        def problems(**values: Any) -> list[Problem]:
            try:
                kind(**{**others, **values})
            except ConfigurationError as error:
                return list(error.problems)
            return []

        return problems

    def checked(kind: type, **others: Any) -> Callable[..., list[Problem]]:
        def problems(**values: Any) -> list[Problem]:
            options = kind(**{**others, **values})
            if hasattr(options, "values"):
                return options.values().problems
            checks = Checks("options")
            options.check(checks)
            return checks.problems

        return problems

    beats = {"runner_heartbeat_interval_ms": 1_000, "claimer_heartbeat_interval_ms": 1_000}
    policy = {"strategy": "exponential", "max_retries": 0, "auto_retry_for": (), "delays_ms": [1]}
    recovery = horsies.RecoveryConfig(**beats)
    return {
        "AppConfig": (
            horsies.AppConfig, raised(horsies.AppConfig, broker=horsies.PostgresConfig(URL), recovery=recovery),
        ),
        "CustomQueueConfig": (horsies.CustomQueueConfig, raised(horsies.CustomQueueConfig, name="mail")),
        "GroupPolicy": (horsies.GroupPolicy, raised(horsies.GroupPolicy)),
        "Rate": (horsies.Rate, raised(horsies.Rate, limit=1_000_000)),
        "Limit": (horsies.Limit, raised(horsies.Limit, name="bank")),
        "PostgresConfig": (horsies.PostgresConfig, raised(horsies.PostgresConfig, database_url=URL)),
        "ScheduleConfig": (horsies.ScheduleConfig, raised(horsies.ScheduleConfig)),
        "TaskSchedule": (
            horsies.TaskSchedule,
            raised(horsies.TaskSchedule, name="nightly", task_name="report", pattern=horsies.Daily("02:30")),
        ),
        "Interval": (horsies.Interval, raised(horsies.Interval)),
        "Hourly": (horsies.Hourly, raised(horsies.Hourly)),
        "Daily": (horsies.Daily, raised(horsies.Daily)),
        "Weekly": (horsies.Weekly, raised(horsies.Weekly, days="monday", at="08:00")),
        "Monthly": (horsies.Monthly, raised(horsies.Monthly, day=1, at="08:00")),
        "Cron": (horsies.Cron, raised(horsies.Cron)),
        "RecoveryConfig": (horsies.RecoveryConfig, raised(horsies.RecoveryConfig, **beats)),
        "ResilienceConfig": (horsies.ResilienceConfig, raised(horsies.ResilienceConfig)),
        "RetryPolicy": (horsies.RetryPolicy, raised(horsies.RetryPolicy, **policy)),
        "Options of a task": (TaskOptions, checked(TaskOptions)),
        "Options of a send": (SendOptions, checked(SendOptions)),
        "Options of a worker": (process_options.WorkerOptions, checked(process_options.WorkerOptions, locator="a:b")),
        "Options of a scheduler": (process_options.SchedulerOptions, checked(process_options.SchedulerOptions)),
        "Options of the exporter": (process_options.ExporterOptions, checked(process_options.ExporterOptions)),
    }  # fmt: skip


COMMANDS = {
    "Options of a worker": "horsies worker",
    "Options of a scheduler": "horsies scheduler",
    "Options of the exporter": "horsies exporter",
}
"""The commands whose options are those of a class."""

ENVIRONMENT = {
    "HORSIES_DATABASE_URL": "The database, wherever none is named: `PostgresConfig()`, every command without "
    "`--database-url` and `--app`, `horsies-migrate` without `--url`, and Flask without a setting.",
    "HORSIES_REPLICA_URL": "The streaming replica that lists and counts are read from, in commands that take the "
    "database from `HORSIES_DATABASE_URL`: without `--app` and `--database-url`.",
    "HORSIES_HEALTH_FILE": "The health file of a worker in place of the default; a scheduler adds `-scheduler` to it. "
    "`horsies worker --health-file` wins.",
    "HORSIES_EMBEDDED_DIR": "Where `embedded://` keeps its data, in place of the user's data directory.",
    "HORSIES_EMBEDDED_USER": "The account of an embedded server that root starts, because PostgreSQL refuses root.",
    "HORSIES_TEST_DATABASE_URL": "The server on which `testing.real` may create databases; else an embedded one.",
    "HORSIES_TESTING_RUN": "Set by the pytest plugin, so that the processes of one run share a server. Not for you.",
    "HORSIES_TUI_DIRECT_URL": "The `--direct-url` of the dashboard.",
    "HORSIES_OWNER_PIPE": "Set by `horsies dev` for its worker, so that no worker outlives it. Not for you.",
    "HORSIES_SYNC_POINTS": "Stops a process at a named moment, for the tests of horsies itself. Not for you.",
}
"""What each variable of the environment means. A test compares the names with the source."""

PYTEST = {
    "horsies_app": "The app of the fixtures `horsies_recorded`, `horsies_inline` and `horsies_db`: `module:attribute`.",
    "horsies_database_url": "A server on which `horsies_db` may create databases, in place of an embedded one; also "
    "`--horsies-database-url`.",
}


def configuration_page() -> str:
    head, prose = md.sections(PROSE.read_text())
    tables: dict[str, str] = {}
    abouts: dict[str, str] = {}
    with parsers.same_everywhere():
        commands = parsers.commands()
        for title, (kind, problems) in _of_classes().items():
            rows = list(_rows(title, kind, problems, commands))
            tables[title] = md.table(("Field", "Default", "Value", "Meaning"), rows)
            abouts[title] = _about(kind)
    tables["Environment variables"] = md.table(
        ("Variable", "Meaning"), ((f"`{name}`", text) for name, text in ENVIRONMENT.items())
    )
    told = documented.fields(django_conf.Conf)
    tables["Django"] = md.table(
        ("Key", "Default", "Meaning"),
        (
            (f"`{one.name.upper()}`", _default(one), told[one.name] or "A mapping of fields of PostgresConfig.")
            for one in dataclasses.fields(django_conf.Conf)
            if one.name != "app"
        ),
    )
    tables["Flask"] = md.table(
        ("Key", "Field"),
        (
            (f"`{flask_extension.PREFIX}{one.name.upper()}`", f"[`{one.name}`](#postgresconfig)")
            for one in dataclasses.fields(horsies.PostgresConfig)
        ),
    )
    tables["pytest"] = md.table(("Setting", "Meaning"), ((f"`{name}`", text) for name, text in PYTEST.items()))
    parts = [head]
    for title, body in prose.items():
        parts += [f"## {title}", abouts.get(title, ""), body.replace("{table}", tables.pop(title).strip())]
    assert not tables, f"prose/configuration.md has no section for {list(tables)}"
    source = "`tests/support/reference/prose/configuration.md` or the docstrings of the classes"
    return md.note(source) + "\n\n".join(part for part in parts if part) + "\n"


def settings() -> Iterator[tuple[str, str]]:
    """The heading and the name of each setting."""
    for title, (kind, _) in _of_classes().items():
        for one in dataclasses.fields(kind):
            if not one.name.startswith("_"):
                yield title, one.name


def _about(kind: type) -> str:
    return md.paragraphs(kind.__doc__) if kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}(") else ""


def _rows(
    title: str, kind: type, problems: Callable[..., list[Problem]], commands: Mapping[str, Any]
) -> Iterator[tuple[str, str, str, str]]:
    told = documented.fields(kind)
    types = _annotations(kind)
    own = _flags(commands[COMMANDS[title]]) if title in COMMANDS else {}
    of_worker = {name: flag for name, (flag, _) in _flags(commands["horsies worker"]).items()}
    for one in dataclasses.fields(kind):
        if one.name.startswith("_"):
            continue
        meaning = told.get(one.name, "")
        if one.name in own:
            flag, help_text = own[one.name]
            meaning = f"`{flag}`: {meaning or help_text}"
        elif kind is horsies.AppConfig and one.name in of_worker:
            meaning += f" `horsies worker {of_worker[one.name]}` says otherwise for one worker."
        yield f"`{one.name}`", _default(one), _value(one, types[one.name], problems), meaning


def _flags(parser: Any) -> dict[str, tuple[str, str]]:
    """By the name of an option's field: how it is written, and its help without the default."""
    return {
        one.dest: (
            one.option_strings[-1] if one.option_strings else str(one.metavar),
            re.sub(r"\s*\(default: .*\)$", "", md.one_line(one.help)),
        )
        for one in parsers.arguments(parser)
    }


def _annotations(kind: type) -> dict[str, str]:
    """The types as they are written in the source."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if one.__module__.startswith("horsies"):
            tree = ast.parse(textwrap.dedent(inspect.getsource(one))).body[0]
            assert isinstance(tree, ast.ClassDef)
            lines = [line for line in tree.body if isinstance(line, ast.AnnAssign)]
            found.update({ast.unparse(line.target): ast.unparse(line.annotation) for line in lines})
    return found


def _default(one: "dataclasses.Field[Any]") -> str:
    if one.name == "processes":
        return "the number of CPUs"
    if one.name == "health_file":
        return "`$TMPDIR/horsies-UID/...`"
    if one.name == "pattern":
        return "required"
    if one.default_factory is not dataclasses.MISSING:
        made = one.default_factory()
        return f"`{type(made).__name__}()`" if dataclasses.is_dataclass(made) else f"`{made!r}`"
    if one.default is dataclasses.MISSING:
        return "required"
    return _shown(one.default)


def _shown(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"`{value.value}`" if isinstance(value, str) else f"`{value}`"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"`{value}`" if isinstance(value, str) else f"`{value!r}`"


def _value(one: "dataclasses.Field[Any]", annotation: str, problems: Callable[..., list[Problem]]) -> str:
    """The type with its bounds or words, as the check of the field says them."""
    optional = " or `None`" if "None" in annotation.split(" | ") else ""
    plain = annotation.removesuffix(" | None")
    if plain == "bool":
        return "`True`, `False`" + (", or `None`" if optional else "")
    given = 10**30 if plain in ("int", "float") or one.name == "jitter" else "no such word"
    found_problems = [found for found in problems(**{one.name: given}) if _is_of(found, one.name)]
    for fix in (text for problem in found_problems for text in (problem.fix, problem.why)):
        if found := re.search(r"(-?[\d_.]+) to ([\d_.]+)( ms| s| seconds| bytes| hours)?(?:,|$)", fix):
            low, high = (_grouped(number) for number in found.groups()[:2])
            unit = (found[3] or "").replace(" seconds", " s")
            return f"{low} to {high}{unit}" + (", or `None`" if optional else "") + _also(plain)
        if found := re.search(r"choose one of (.+)", fix):
            return ", ".join(f"`{word}`" for word in found[1].split(", ")) + (", or `None`" if optional else "")
    return f"`{plain}`{optional}"


def _also(plain: str) -> str:
    return ", or a `timedelta`" if "timedelta" in plain else ""


def _is_of(problem: Problem, name: str) -> bool:
    where = problem.where.rpartition(".")[2]
    return where in (name, name.removesuffix("_s")) or where.startswith(f"{name}[")


def _grouped(number: str) -> str:
    value = float(number.replace("_", ""))
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"
