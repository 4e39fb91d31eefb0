"""Loads named statements from `.sql` files. Their text is constant at run time.

    -- name: start_task :one
    -- edge: CLAIMED -> RUNNING
    -- params: task_id, worker_id
    -- A comment for the reader.
    UPDATE ... WHERE id = $1 AND ... ;

`:one` returns a row or none, `:many` rows, `:value` the first column of the first row. With a schema of
its own, every `horsies_*` table and function is qualified once, at load: the text stays constant for the driver's
statement cache, needs no session setting (which a pooler would lose), and works on a caller's own connection.

`{{last_sign}}` stands for the text under `-- fragment: last_sign`, so that statements can share a condition or a
list of columns: in `_pg/sql/fragments.sql` for every package, or at the top of a file for that file. A fragment may use
others, and may stand in a list of parameters. `$row_limit` in a statement is the parameter of that name.

`-- fragment: metadata_matches in by_metadata` is another text of a fragment. A statement that uses the fragment exists
twice: as it is named, and as `<name>_by_metadata` with the other text. PostgreSQL checks the rights on every column
that a statement names, even where a condition is folded away, so a column that not every role may read needs this.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Final

_TABLES: Final = (
    "tasks", "task_attempts", "heartbeats", "worker_states", "worker_instances", "schedule_state",
    "schedule_runs", "schedules", "schedulers",
    "queue_state", "limits", "rate_limits", "task_sets", "task_names", "workflows", "workflow_tasks",
    "workflow_signals", "unique_keys", "alembic_version",
)  # fmt: skip
TABLES: Final = tuple(f"horsies_{name}" for name in _TABLES)
FUNCTIONS: Final = (
    "horsies_cancel_tasks(text[])",
    "horsies_start_workflow(jsonb)",
    "horsies_stop_workflows(text[], text, text, text, text, text, text, boolean)",
    "horsies_signal(text, text, jsonb, text, text)",
    "horsies_forget_compensations(text[], text[])",
    "horsies_complete_task(text, text, int, text, bigint, text, float8, float8, int, text, boolean)",
    "horsies_cancel_workflow(text)",
    "horsies_purge_tasks(text[])",
    "horsies_wait_for_duty(bigint, int, text[], text[], text[], int, interval, boolean, text)",
    "horsies_leave_duty(bigint, text[], boolean, boolean, boolean)",
    "horsies_set_awake(text[], boolean)",
    "horsies_send_task(text, text, text, varchar, varchar, varchar, int, timestamptz, timestamptz, interval,"
    " timestamptz, interval, int, text, jsonb, varchar)",
    "horsies_send_tasks(text[], text[], text[], text[], varchar, varchar, int, timestamptz, timestamptz, interval,"
    " timestamptz, interval, int, text, jsonb, text[])",
    "horsies_send_calls(jsonb, text[], int[], text[], text[], text[], text[], timestamptz)",
    "horsies_send_unique(text, text, text, varchar, varchar, varchar, int, timestamptz, timestamptz, interval,"
    " timestamptz, interval, int, text, jsonb, varchar, varchar, text, interval, interval, interval, int, boolean)",
    "horsies_rate_room(jsonb, timestamptz, timestamptz, timestamptz)",
    "horsies_claim_grouped(text[], text[], text[], boolean, text[], int[], text[], boolean[], text[], int, int, int,"
    " int, int, text[], text[], text[], text[], int[], int, int, text, text, text, float8)",
)
"""The functions that statements call, by signature."""
_NAMES: Final = "|".join((*TABLES, *(function.partition("(")[0] for function in FUNCTIONS)))
_TABLE: Final = re.compile(rf"(?<![\w.\"])(?:{_NAMES})\b")
_FRAGMENT: Final = re.compile(r"^-- fragment: (\w+(?: in \w+)?)$", re.MULTILINE)
_USE: Final = re.compile(r"\{\{(?P<name>\w+)\}\}")
_PARAMETER: Final = re.compile(r"\$(?P<name>[a-z]\w*)")
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
    from importlib import resources  # loads zipfile and tempfile, which defining tasks does not need

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
def _shared_fragments() -> Mapping[str, str]:
    from importlib import resources

    return _fragments(resources.files("horsies._pg").joinpath("sql", "fragments.sql").read_text(encoding="utf-8"))


def _fragments(text: str) -> dict[str, str]:
    """The fragments before the first statement."""
    parts = _FRAGMENT.split(_HEADER.split(text, maxsplit=1)[0])[1:]
    return {
        name: "\n".join(line for line in block.splitlines() if line and not line.startswith("--"))
        for name, block in zip(parts[::2], parts[1::2], strict=True)
    }


def _parse(text: str, schema: str | None) -> Iterator[Statement]:
    fragments = {**_shared_fragments(), **_fragments(text)}
    variants: dict[str, dict[str, str]] = {}
    for name, variant in (name.split(" in ") for name in fragments if " in " in name):
        variants.setdefault(variant, {})[name] = fragments[f"{name} in {variant}"]

    def expanded(part: str, known: Mapping[str, str]) -> str:
        return _USE.sub(lambda use: expanded(known[use["name"]], known), part)

    headers = list(_HEADER.finditer(text))
    for header, following in zip(headers, [*headers[1:], None], strict=True):
        block = text[header.end() : following.start() if following else len(text)]
        notes = [line.removeprefix("--").strip() for line in block.splitlines() if line.startswith("--")]
        body = "\n".join(line for line in block.splitlines() if not line.startswith("--")).strip().removesuffix(";")
        params = _listed([expanded(note, fragments) for note in notes if note.startswith("params:")], "params:", ",")
        texts = {header["name"]: expanded(body, fragments)}
        for variant, other in variants.items():
            if (sql := expanded(body, fragments | other)) not in texts.values():
                texts[f"{header['name']}_{variant}"] = sql
        for name, sql in texts.items():
            numbered = qualify(_numbered(sql, params), schema)
            yield Statement(name, header["kind"], numbered, params, _listed(notes, "edge:", ";"))


def _numbered(sql: str, params: tuple[str, ...]) -> str:
    numbers = {name: f"${number}" for number, name in enumerate(params, 1)}
    return _PARAMETER.sub(lambda use: numbers.get(use["name"], use[0]), sql)


def _listed(notes: list[str], label: str, separator: str) -> tuple[str, ...]:
    for note in notes:
        if note.startswith(label):
            return tuple(item.strip() for item in note.removeprefix(label).split(separator) if item.strip())
    return ()
