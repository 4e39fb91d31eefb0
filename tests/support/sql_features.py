"""Which features of PostgreSQL our SQL uses, and where: the table of docs/operations/scaling.md is written from it.

python -m tests.support.sql_features prints the table
"""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DUMP = ROOT / "docs" / "reference" / "schema.sql"

FEATURES = {
    "LISTEN": r"\b(?:UN)?LISTEN\b(?! connection)",
    "NOTIFY": r"\bpg_notify\b|\bNOTIFY\b",
    "session advisory locks": r"\bpg_(?:try_)?advisory_(?:un)?lock(?:_shared)?\b",
    "transaction advisory locks": r"\bpg_(?:try_)?advisory_xact_lock(?:_shared)?\b",
    "`SKIP LOCKED`": r"\bSKIP LOCKED\b",
    "`ctid`": r"\bctid\b",
    "procedures with COMMIT": r"^CREATE PROCEDURE(?:(?!^CREATE ).)*?^\s*COMMIT;",
    "statement triggers with a transition table": r"REFERENCING NEW TABLE",
    "row triggers": r"FOR EACH ROW",
    "`SECURITY DEFINER`": r"\bSECURITY DEFINER\b",
    "`WITH RECURSIVE`": r"\bWITH RECURSIVE\b",
    "writes inside `WITH`": r"AS (?:MATERIALIZED )?\(\s*(?:INSERT|UPDATE|DELETE)\b",
    "partial unique indexes": r"CREATE UNIQUE INDEX[^;]*\bWHERE\b",
    "planner settings": r"\b(?:enable_\w+scan|enable_\w+join|plan_cache_mode)\b",
    "`pg_locks`, `pg_stat_activity`": r"\bpg_locks\b|\bpg_stat_activity\b",
}
_COMMENT = re.compile(r"--[^\n]*")
_OBJECT = re.compile(r"^CREATE (?:UNIQUE )?(?:FUNCTION|PROCEDURE|TRIGGER|INDEX|TABLE) (?:public\.)?(\w+)", re.MULTILINE)


def sources() -> Iterator[tuple[str, str]]:
    """Every file of statements, and every object of the schema, with its text but without comments."""
    for path in sorted(ROOT.glob("packages/*/src/*/**/sql/*.sql")):
        yield f"`{path.parents[1].name}/{path.name}`", _COMMENT.sub("", path.read_text())
    text = _COMMENT.sub("", DUMP.read_text())
    starts = [*_OBJECT.finditer(text)]
    ends = [one.start() for one in starts[1:]] + [len(text)]
    for start, end in zip(starts, ends, strict=True):
        yield f"`{start[1]}`", text[start.start() : end]


def uses() -> dict[str, list[str]]:
    """Files and objects by feature."""
    found: dict[str, list[str]] = {name: [] for name in FEATURES}
    for where, text in sources():
        for name, pattern in FEATURES.items():
            if re.search(pattern, text, re.MULTILINE | re.DOTALL) and where not in found[name]:
                found[name].append(where)
    return found


def table() -> list[str]:
    rows = ["| Feature | Where |", "|---|---|"]
    return rows + [f"| {name} | {', '.join(where)} |" for name, where in uses().items()]


if __name__ == "__main__":
    print(*table(), sep="\n")  # noqa: T201
