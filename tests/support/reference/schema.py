"""schema.md: every table, column, index, function, trigger and view, with its meaning.

What there is comes from docs/reference/schema.sql, which a test compares with a migrated database; what it means comes
from the models and from `horsies_schema.described`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from horsies_schema import described, migrate, roles
from horsies_schema.environment import VERSION_TABLE
from horsies_schema.models import Base
from tests.support.reference import documented, markdown as md

DUMP = Path(__file__).parents[3] / "docs/reference/schema.sql"
PROSE = Path(__file__).parent / "prose/schema.md"
GROUPS = {
    "Tables of tasks": "tasks task_attempts heartbeats task_names task_sets",
    "Tables of queues and limits": "queue_state limits rate_limits unique_keys",
    "Tables of workers": "worker_instances worker_states",
    "Tables of workflows": "workflows workflow_tasks workflow_signals",
    "Tables of schedules": "schedules schedule_state schedule_runs schedulers",
}
"""The order of the page, without the prefix of the names; a table that is in none of them comes last."""
PRIMARY = " (primary key)"
ROLES = ("producer", "worker", "viewer", "operator")
_TYPES = {
    "character varying": "varchar", "timestamp with time zone": "timestamptz", "double precision": "float8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    is_nullable: bool
    default: str


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    columns: dict[str, Column] = field(default_factory=dict[str, Column])
    indexes: dict[str, str] = field(default_factory=dict[str, str])
    """By name: what is indexed."""


@cache
def tables() -> Mapping[str, Table]:
    """The tables of the dump."""
    text = DUMP.read_text()
    found: dict[str, Table] = {}
    for name, body in re.findall(r"^CREATE TABLE public\.(\w+) \(\n(.*?)\n\)", text, re.MULTILINE | re.DOTALL):
        found[name] = Table(name)
        for line in body.split("\n"):
            if (one := re.match(r"    (\w+) (.+?),?$", line)) and one[1] != "CONSTRAINT":
                found[name].columns[one[1]] = _column(one[1], one[2])
    for name, constraint, kind, columns in re.findall(
        r"^ALTER TABLE ONLY public\.(\w+)\n    ADD CONSTRAINT (\w+) (PRIMARY KEY|UNIQUE) \((.+?)\);", text, re.MULTILINE
    ):
        found[name].indexes[constraint] = columns if kind == "UNIQUE" else columns + PRIMARY
    for index, name, what, where in re.findall(
        r"^CREATE (?:UNIQUE )?INDEX (\w+) ON public\.(\w+) USING \w+ \((.+?)\)(?: WHERE (.+))?;$", text, re.MULTILINE
    ):
        found[name].indexes[index] = what + (f" where {_conditions().get(index, where)}" if where else "")
    return found


def _column(name: str, text: str) -> Column:
    kind = re.split(r" (?:DEFAULT|NOT NULL|GENERATED|COLLATE)\b", text)[0]
    default = re.search(r" DEFAULT (.+?)(?: NOT NULL)?$", text)
    told = "computed" if " GENERATED ALWAYS AS (" in text else _plain(default[1]) if default else ""
    return Column(name, short_type(kind), " NOT NULL" not in text, told)


def short_type(text: str) -> str:
    """The name of a type as people write it."""
    for long, short in _TYPES.items():
        text = text.replace(long, short)
    return text


def _plain(text: str) -> str:
    return re.sub(r"::[a-z ]+(\(\d+\))?(\[\])?", "", text)


@cache
def _conditions() -> Mapping[str, str]:
    """By partial index: its condition as the models write it, which is easier to read than PostgreSQL's form."""
    return {
        str(index.name): str(index.dialect_options["postgresql"]["where"])
        for table in Base.metadata.tables.values()
        for index in table.indexes
        if index.dialect_options["postgresql"]["where"] is not None
    }


@cache
def routines() -> Mapping[str, str]:
    """By name: the parameters and what comes back."""
    found: dict[str, str] = {}
    for kind, name, rest in re.findall(
        r"^CREATE (FUNCTION|PROCEDURE) public\.(\w+)(\(.*)$", DUMP.read_text(), re.MULTILINE
    ):
        parameters, _, returned = rest.partition(") RETURNS ")
        parameters = parameters.removesuffix(")") + ")"
        found[name] = short_type(f"{'CALL ' if kind == 'PROCEDURE' else ''}{name}{parameters}") + (
            f" returns {short_type(returned)}" if returned else ""
        )
    return found


@cache
def triggers() -> Mapping[str, tuple[str, str]]:
    """By name: the table, and when it fires."""
    return {
        name: (table, when)
        for name, when, table in re.findall(
            r"^CREATE TRIGGER (\w+) (.+?) ON public\.(\w+) ", DUMP.read_text(), re.MULTILINE
        )
    }


@cache
def views() -> Mapping[str, str]:
    """By name: its meaning, from the package or from a comment in the database."""
    text = DUMP.read_text()
    names = re.findall(r"^CREATE VIEW public\.(\w+)", text, re.MULTILINE)
    return {name: described.VIEWS.get(name, _comment(f"VIEW public.{name}")) for name in names}


def _comment(of: str) -> str:
    found = re.search(rf"^COMMENT ON {re.escape(of)} IS '((?:[^']|'')*)'", DUMP.read_text(), re.MULTILINE)
    return found[1].replace("''", "'") if found else ""


@cache
def _meanings() -> Mapping[str, Mapping[str, str]]:
    """By table and column; the meaning of the table itself is that of the empty name."""
    found: dict[str, Mapping[str, str]] = {VERSION_TABLE: described.VERSIONS}
    for mapper in Base.registry.mappers:
        told = documented.fields(mapper.class_)
        of_columns = {
            mapper.columns[key].name: told.get(key, "")
            for key in mapper.columns.keys()  # noqa: SIM118
        }
        found[mapper.local_table.name] = {"": md.paragraphs(mapper.class_.__doc__), **of_columns}
    return found


@cache
def callers() -> Mapping[str, list[str]]:
    """By routine: the roles of `horsies-migrate grants` that may execute it."""
    found: dict[str, list[str]] = {}
    for names, to in re.findall(r"^GRANT EXECUTE ON \w+ (.+?)\s+TO (.+);$", roles.grants(), re.MULTILINE):
        for name in re.findall(r"\.(horsies_\w+)", names):
            for role in ROLES:
                if f"horsies_{role}" in to and role not in found.setdefault(name, []):
                    found[name].append(role)
    return found


def schema_page() -> str:
    known = tables()
    head = PROSE.read_text().format(
        tables=len(known), indexes=sum(len(one.indexes) for one in known.values()), routines=len(routines()),
        triggers=len(triggers()), head=migrate.head(),
    )  # fmt: skip
    parts = [md.note("the docstrings of `horsies_schema/models` and `horsies_schema/described.py`"), head]
    groups = {title: [f"horsies_{name}" for name in names.split()] for title, names in GROUPS.items()}
    listed = {name for names in groups.values() for name in names}
    groups["Other tables"] = [name for name in known if name not in listed]
    for title, names in groups.items():
        parts.append(f"\n## {title}\n")
        for name in names:
            parts += _table(known[name])
    parts += _routines()
    if views():
        parts.append("\n## Views\n\n")
        parts.append(md.table(("View", "Meaning"), ((f"`{name}`", told) for name, told in views().items())))
    parts.append("\n## Triggers\n\n")
    parts.append(
        md.table(
            ("Trigger", "Of", "When", "Meaning"),
            (
                (f"`{name}`", f"`{table}`", when.lower(), described.TRIGGERS.get(name, ""))
                for name, (table, when) in triggers().items()
            ),
        )
    )
    return "".join(parts)


def _table(table: Table) -> Iterator[str]:
    told = _meanings().get(table.name, {})
    yield f"\n### {table.name}\n\n{told.get('', '') or _comment(f'TABLE public.{table.name}')}\n\n"
    private = roles.PRIVATE.get(table.name, frozenset())
    rows: list[tuple[str, str, str]] = []
    for column in table.columns.values():
        kind = f"`{column.type}`" + ("" if column.is_nullable else " not null")
        meaning = told.get(column.name, "") or _comment(f"COLUMN public.{table.name}.{column.name}")
        if column.default and column.default not in ("computed", "now()", "statement_timestamp()", "clock_timestamp()"):
            meaning += f" Default: `{column.default}`."
        rows.append((f"`{column.name}`", kind, f"*payload* {meaning}" if column.name in private else meaning))
    yield md.table(("Column", "Type", "Meaning"), rows)
    yield "\n"
    yield md.table(
        ("Index", "On", "Purpose"),
        (
            (f"`{name}`", f"`{what.removesuffix(PRIMARY)}`", _purpose(name, what))
            for name, what in table.indexes.items()
        ),
    )  # fmt: skip


def _purpose(index: str, what: str) -> str:
    return "The primary key." if what.endswith(PRIMARY) else described.INDEXES.get(index, "")


def _routines() -> Iterator[str]:
    yield "\n## Functions of the contract\n"
    private: list[str] = []
    for name in routines():
        told = described.ROUTINES.get(name)
        if told is not None and told.is_contract:
            yield f"\n### {name}\n\n{_routine(name)}"
        else:
            private.append(name)
    yield "\n## Private functions\n\nFor horsies itself. The parameters are in [schema.sql](schema.sql).\n\n"
    yield md.table(
        ("Function", "Meaning", "Called by", "Roles"),
        (
            (f"`{name}`", told.meaning, told.called_by, ", ".join(callers().get(name, ())) or "all")
            if (told := described.ROUTINES.get(name)) is not None
            else (f"`{name}`", _comment_of_routine(name), "", ", ".join(callers().get(name, ())) or "all")
            for name in private
        ),
    )


def _comment_of_routine(name: str) -> str:
    found = re.search(
        rf"^COMMENT ON (?:FUNCTION|PROCEDURE) public\.{name}\(.*?\) IS '((?:[^']|'')*)'", DUMP.read_text(), re.MULTILINE
    )
    return found[1].replace("''", "'") if found else ""


def _routine(name: str) -> str:
    told = described.ROUTINES[name]
    allowed = ", ".join(callers().get(name, ())) or "the owner of the tables"
    signature = re.sub(r"::\w+", "", routines()[name])
    return f"{told.meaning} Called by {told.called_by}. Roles that may: {allowed}.\n\n```text\n{signature}\n```\n"
