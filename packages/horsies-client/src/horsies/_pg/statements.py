"""Loads named statements from `.sql` files: SQL is written as SQL, and its text never changes at run time.

    -- name: start_task :one
    -- edge: CLAIMED -> RUNNING
    -- params: task_id, worker_id
    -- Why it is as it is, for the reader.
    UPDATE ... ;

`:one` returns a row or none, `:many` rows, `:value` the first column of the first row. With a schema of
its own, every `horsies_*` table and function is qualified once, at load: the text stays constant for the driver's
statement cache, needs no session setting (which a pooler would lose), and works on a caller's own connection.

`{{last_sign}}` in a statement stands for the expression under `-- fragment: last_sign` at the top of `recover.sql`, so
that a rule which several statements apply is written once. `t` is the row of horsies_tasks there.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Final

_TABLES: Final = (
    "tasks", "task_attempts", "heartbeats", "worker_states", "worker_instances", "schedule_state",
    "queue_state", "task_sets", "task_names", "workflows", "workflow_tasks", "alembic_version",
)  # fmt: skip
TABLES: Final = tuple(f"horsies_{name}" for name in _TABLES)
FUNCTIONS: Final = (
    "horsies_cancel_tasks(text[])",
    "horsies_start_workflow(jsonb)",
    "horsies_stop_workflows(text[], text, text, text, text)",
    "horsies_cancel_workflow(text)",
)
"""What statements call, by signature."""
_NAMES: Final = "|".join((*TABLES, *(function.partition("(")[0] for function in FUNCTIONS)))
_TABLE: Final = re.compile(rf"(?<![\w.\"])(?:{_NAMES})\b")
_FRAGMENT: Final = re.compile(r"^-- fragment: (?P<name>\w+)$", re.MULTILINE)
_USE: Final = re.compile(r"\{\{(?P<name>\w+)\}\}")
_HEADER: Final = re.compile(r"^-- name: (?P<name>\w+) :(?P<kind>one|many|value|none)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Statement:
    """One named statement. `edges` are the task state changes that it can make, as written."""

    name: str
    kind: str
    sql: str
    params: tuple[str, ...]
    edges: tuple[str, ...]


@cache
def load(package: str, file: str, schema: str | None = None) -> Mapping[str, Statement]:
    """The statements of one file, by name."""
    from importlib import resources  # brings zipfile and tempfile along, for which a definition of tasks need not wait

    text = resources.files(package).joinpath("sql", file).read_text(encoding="utf-8")
    found = {statement.name: statement for statement in _parse(text, schema)}
    if not found:
        raise ValueError(f"{package}/sql/{file} has no statement")
    return MappingProxyType(found)


def qualify(sql: str, schema: str | None) -> str:
    """Put the schema before every horsies table and function."""
    if schema is None:
        return sql
    quoted = '"' + schema.replace('"', '""') + '"'
    return _TABLE.sub(lambda match: f"{quoted}.{match.group()}", sql)


@cache
def _fragments() -> Mapping[str, str]:
    from importlib import resources

    text = resources.files("horsies._pg").joinpath("sql", "recover.sql").read_text(encoding="utf-8")
    parts = _FRAGMENT.split(_HEADER.split(text, maxsplit=1)[0])[1:]
    return {
        name: "\n".join(line for line in block.splitlines() if line and not line.startswith("--"))
        for name, block in zip(parts[::2], parts[1::2], strict=True)
    }


def _parse(text: str, schema: str | None) -> Iterator[Statement]:
    headers = list(_HEADER.finditer(text))
    for header, following in zip(headers, [*headers[1:], None], strict=True):
        block = text[header.end() : following.start() if following else len(text)]
        notes = [line.removeprefix("--").strip() for line in block.splitlines() if line.startswith("--")]
        body = "\n".join(line for line in block.splitlines() if not line.startswith("--")).strip().removesuffix(";")
        yield Statement(
            name=header["name"],
            kind=header["kind"],
            sql=qualify(_USE.sub(lambda use: _fragments()[use["name"]], body), schema),
            params=_listed(notes, "params:", ","),
            edges=_listed(notes, "edge:", ";"),
        )


def _listed(notes: list[str], label: str, separator: str) -> tuple[str, ...]:
    for note in notes:
        if note.startswith(label):
            return tuple(item.strip() for item in note.removeprefix(label).split(separator) if item.strip())
    return ()
