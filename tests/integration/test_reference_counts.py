"""Everything that a user can write, set, meet or read is in the reference. Each kind of thing is found where it lives
(the help of the commands, the classes, the source, a migrated database), not in the generators of the pages. The tests
print how many there are (`just reference-count`), and each must fail when one thing is taken out of its page."""

import ast
import contextlib
import dataclasses
import importlib
import inspect
import io
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path

import psycopg
import pytest

import horsies
import horsies.contrib
import horsies_schema.cli
import horsies_tui.cli
from horsies import cli, errors, options, retry, schedule
from horsies.config import app, limits, postgres, queues, recovery, resilience
from horsies_worker import options as process_options
from horsies_worker.events.bus import KINDS
from horsies_worker.metrics import cluster, worker
from tests.support.postgres import Database

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/reference"
OBVIOUS = {"minutes", "hours", "days", "minute", "second"}
"""Fields of the patterns of schedules whose names say it."""


@cache
def rows(text: str) -> dict[str, list[str]]:
    """By what stands in the first cell, without its value: the other cells. Of a cell with several names, each."""
    found: dict[str, list[str]] = {}
    for line in re.findall(r"^\| (.+) \|$", text, re.MULTILINE):
        first, *rest = re.split(r"(?<!\\) \| ", line)
        for name in re.findall(r"`\[?([^`\s\]]+)", first):
            found.setdefault(name, rest)
    return found


@cache
def section(page: str, title: str) -> str:
    """The text below a heading, up to the next one of the same or a higher level."""
    match = re.search(rf"^(##+) {re.escape(title)}\n(.*?)(?=^#{{2,3}} |\Z)", page, re.MULTILINE | re.DOTALL)
    return match[2] if match else ""


@cache
def chapter(page: str, title: str) -> str:
    """The text below a heading of the second level, with all its parts."""
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return match[1] if match else ""


def is_told(cells: Iterable[str] | None) -> bool:
    """Whether the last cell, which has the meaning, says something."""
    listed = list(cells or ())
    return bool(listed) and bool(listed[-1].strip())


# -- commands --------------------------------------------------------------------------------------------------------


def help_of(run: Callable[[list[str]], object], *words: str) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        run([*words, "--help"])
    return shown.getvalue()


@cache
def commands() -> dict[str, set[str]]:
    """The options of every command and verb, as its `--help` lists them."""
    listed = re.findall(r"^  ([a-z][\w-]*) ", help_of(cli.main).split("commands:")[1].split("\n\n")[0], re.MULTILINE)
    found: dict[str, set[str]] = {}
    for command in listed:
        text = help_of(cli.main, command)
        verbs = re.search(r"^  ([a-z-]+(?:\|[a-z-]+)+)$", text, re.MULTILINE)
        for verb in verbs[1].split("|") if verbs else [""]:
            told = help_of(cli.main, command, *([verb] if verb else []))
            name = f"horsies {command} {verb}".strip()
            found[name] = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", told, re.MULTILINE)) - {"--help"}
    return found


def commands_missing(page: str) -> list[str]:
    missing: list[str] = []
    common = rows(chapter(page, "What all of them share"))
    for name, found in commands().items():
        own = section(page, f"`{name}`")
        whole = chapter(page, f"`{' '.join(name.split()[:2])}`")
        if f"```text\n{name}" not in own:
            missing.append(name)
        refers = re.search(r"It takes all arguments of \[`(.+?)`\]", own)
        known = {**common, **rows(whole), **(rows(chapter(page, f"`{refers[1]}`")) if refers else {})}
        missing += [
            f"{name} {option}"
            for option in sorted(found)
            if not re.search(rf"{option}\b(?!-)", own) or not is_told(known.get(option))
        ]
    return missing


# -- settings --------------------------------------------------------------------------------------------------------

TITLES = {
    "TaskOptions": "Options of a task", "SendOptions": "Options of a send", "WorkerOptions": "Options of a worker",
    "SchedulerOptions": "Options of a scheduler", "ExporterOptions": "Options of the exporter",
}  # fmt: skip
PLACES = (app, limits, postgres, queues, recovery, resilience, schedule, retry, options, process_options)


@cache
def settings() -> dict[str, list[str]]:
    """By heading: the fields of each class with settings that these modules define."""
    found: dict[str, list[str]] = {}
    for module in PLACES:
        for name, kind in vars(module).items():
            is_own = inspect.isclass(kind) and dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__
            if is_own and not name.startswith("_") and name != "ProcessOptions":
                fields = [one.name for one in dataclasses.fields(kind) if not one.name.startswith("_")]
                found[TITLES.get(name, name)] = fields
    return found


def settings_missing(page: str) -> list[str]:
    return [
        f"{title}.{name}"
        for title, names in settings().items()
        for name in names
        if (cells := rows(chapter(page, title)).get(name)) is None or not (is_told(cells) or name in OBVIOUS)
    ]


@cache
def variables() -> set[str]:
    """The variables of the environment that the source names."""
    found: set[str] = set()
    for file in ROOT.glob("packages/*/src/**/*.py"):
        if "templates" not in file.parts and "scaffold" not in file.parts:
            text = file.read_text()
            for node in ast.walk(ast.parse(text)) if "HORSIES_" in text else ():
                if isinstance(node, ast.Constant) and re.fullmatch(r"HORSIES_[A-Z_]*[A-Z]", str(node.value)):
                    found.add(str(node.value))
    return found


def variables_missing(page: str) -> list[str]:
    known = rows(chapter(page, "Environment variables"))
    return sorted(name for name in variables() if not is_told(known.get(name)))


# -- errors, events, metrics, names ----------------------------------------------------------------------------------


def codes() -> list[str]:
    """Every member of an enumeration of codes in `horsies.errors`."""
    kinds = [kind for name, kind in vars(errors).items() if inspect.isclass(kind) and name.endswith("Code")]
    return [str(code) for kind in kinds for code in kind]


def codes_missing(page: str) -> list[str]:
    known = rows(page)
    return [code for code in codes() if not (cells := known.get(code)) or not all(cell.strip() for cell in cells)]


def exceptions() -> list[str]:
    return [
        name
        for name in horsies.__all__
        if inspect.isclass(kind := getattr(horsies, name)) and issubclass(kind, BaseException) and kind.__name__ == name
    ]


def exceptions_missing(page: str) -> list[str]:
    known = rows(chapter(page, "Exceptions"))
    return [name for name in exceptions() if not is_told(known.get(name))]


def events() -> list[str]:
    return [f"{kind.__name__}.{name}" for kind in KINDS for name in ("", *kind.__dataclass_fields__)]


def events_missing(page: str) -> list[str]:
    missing: list[str] = []
    for name in events():
        kind, _, field = name.partition(".")
        text = section(page, kind)
        if not text.strip() or (field and field not in rows(text)):
            missing.append(name)
    return missing


def metrics(*modules: object) -> list[str]:
    """Every metric that the modules define, listed in their tables or not."""
    return sorted(
        {value.name for module in modules for value in vars(module).values() if isinstance(value, cluster.Metric)}
    )


def worker_metrics_missing(page: str) -> list[str]:
    return [name for name in metrics(worker) if not is_told(rows(page).get(name))]


def exporter_metrics_missing(page: str) -> list[str]:
    return [name for name in metrics(cluster) if not is_told(rows(page).get(name))]


@cache
def public_names() -> dict[str, list[str]]:
    """The public names of each module that has any."""
    contrib = [item.name for item in pkgutil.iter_modules(horsies.contrib.__path__, "horsies.contrib.")]
    found: dict[str, list[str]] = {}
    for name in ("horsies", "horsies.testing", *contrib, "horsies_schema"):
        module = importlib.import_module(name)
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == name]
        found[name] = list(getattr(module, "__all__", [key for key in own if not key.startswith("_")]))
    return found


def names_missing(page: str) -> list[str]:
    missing: list[str] = []
    for module, names in public_names().items():
        place = page if module == "horsies" else chapter(page, module)
        for name in names:
            text = section(place if module == "horsies" else f"## x\n{place}", name)
            has_words = bool(re.sub(r"```.*?```", "", text, flags=re.DOTALL).strip())
            if not has_words and not is_told(rows(place).get(name)):
                missing.append(f"{module}.{name}")
    return missing


PAGES: Mapping[str, tuple[str, Callable[[], int], Callable[[str], list[str]], str]] = {
    "commands and verbs": ("cli.md", lambda: len(commands()), commands_missing, "### `horsies tasks purge`"),
    "options of these": (
        "cli.md", lambda: sum(map(len, commands().values())), commands_missing, "| `--group KEY`",
    ),
    "settings": (
        "configuration.md", lambda: sum(map(len, settings().values())), settings_missing, "| `prefetch_buffer`",
    ),
    "environment variables": (
        "configuration.md", lambda: len(variables()), variables_missing, "| `HORSIES_HEALTH_FILE`",
    ),
    "error codes": ("errors.md", lambda: len(codes()), codes_missing, "| `TASK_TIMEOUT`"),
    "exceptions": ("errors.md", lambda: len(exceptions()), exceptions_missing, "| `SchemaError`"),
    "events and fields": ("events.md", lambda: len(events()), events_missing, "### ScheduleFired"),
    "metrics of a worker": (
        "worker-metrics.md", lambda: len(metrics(worker)), worker_metrics_missing, "| `horsies_worker_claims_total`",
    ),
    "metrics of the exporter": (
        "exporter-metrics.md", lambda: len(metrics(cluster)), exporter_metrics_missing, "| `horsies_slots`",
    ),
    "public names": ("api.md", lambda: sum(map(len, public_names().values())), names_missing, "### snooze"),
}  # fmt: skip
"""By kind of thing: its page, how many there are, what the page lacks of them, and how the line of one begins."""


@pytest.mark.parametrize("kind", PAGES)
def test_the_reference_has_all(kind: str) -> None:
    page, count, missing, line = PAGES[kind]
    text = (FOLDER / page).read_text()
    sys.stdout.write(f"{count():>5} {kind} in {page}\n")
    assert count() > 5
    assert missing(text) == []
    without = re.sub(rf"^{re.escape(line)}.*\n", "", text, flags=re.MULTILINE)
    assert without != text
    assert missing(without), f"the page without {line!r} should lack something"


@pytest.mark.parametrize(
    ("script", "command"), [(horsies_schema.cli.main, "migrate"), (horsies_tui.cli.run, "tui")], ids=["migrate", "tui"]
)
def test_a_script_of_its_own_has_the_options_of_the_command(
    script: Callable[[list[str]], object], command: str
) -> None:
    of_script, of_command = (re.sub(r"\s+", " ", text) for text in (help_of(script), help_of(cli.main, command)))
    assert of_script.replace(f"horsies-{command}", f"horsies {command}") == of_command.replace(
        f"horsies-{command}", f"horsies {command}"
    )


# -- the database ----------------------------------------------------------------------------------------------------

CATALOGUE = {
    "columns": """
        SELECT c.relname || '.' || a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull
          FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
         WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
           AND a.attnum > 0 AND NOT a.attisdropped""",
    "indexes": "SELECT indexname, tablename FROM pg_indexes WHERE schemaname = 'public'",
    "functions": "SELECT DISTINCT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace",
    "triggers": """
        SELECT DISTINCT tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
         WHERE NOT tgisinternal AND c.relnamespace = 'public'::regnamespace""",
    "views": "SELECT viewname FROM pg_views WHERE schemaname = 'public'",
}
SHORT = {"character varying": "varchar", "timestamp with time zone": "timestamptz", "double precision": "float8"}


def lacks(page: str, kind: str, row: tuple[object, ...]) -> bool:
    """Whether the page lacks this row of the catalogue, or has it without a meaning or with another type."""
    name = str(row[0])
    if kind == "columns":
        table, _, column = name.partition(".")
        cells = rows(section(page, table)).get(column)
        shown = str(row[1])
        for long, short in SHORT.items():
            shown = shown.replace(long, short)
        return not is_told(cells) or (cells or [""])[0] != f"`{shown}`" + (" not null" if row[2] else "")
    if kind == "indexes":
        return not is_told(rows(section(page, str(row[1]))).get(name))
    if kind == "functions":
        return not is_told(rows(page).get(name)) and not section(page, name).strip()
    return not is_told(rows(page).get(name))


def test_the_page_of_the_schema_has_everything_of_a_migrated_database(db: Database) -> None:
    page = (FOLDER / "schema.md").read_text()
    with psycopg.connect(db.url) as connection:
        found = {kind: connection.execute(query).fetchall() for kind, query in CATALOGUE.items()}  # type: ignore[call-overload]
    tables = {str(row[0]).partition(".")[0] for row in found["columns"]}
    told = ", ".join(f"{len(listed)} {kind}" for kind, listed in found.items())
    sys.stdout.write(f"{len(tables):>5} tables, {told} in schema.md\n")
    assert len(tables) > 15
    assert {table for table in tables if not section(page, table).strip()} == set()
    assert [row for kind, listed in found.items() for row in listed if lacks(page, kind, row)] == []
    for kind, line in (
        ("columns", "| `claim_generation`"), ("indexes", "| `ix_horsies_tasks_kept`"),
        ("functions", "| `horsies_rate_room`"), ("triggers", "| `horsies_task_notify_trigger`"),
    ):  # fmt: skip
        without = re.sub(rf"^{re.escape(line)}.*\n", "", page, flags=re.MULTILINE)
        assert sum(lacks(without, kind, row) for row in found[kind]) == 1, kind
