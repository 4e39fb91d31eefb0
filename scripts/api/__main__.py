"""`just api`: write the snapshot."""

import re
from collections.abc import Iterator
from pathlib import Path

from scripts.api import commands, names

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests/architecture/public_api.txt"
MODULES = (
    "horsies", "horsies.config", "horsies.events", "horsies.testing", "horsies.watching",
    "horsies.contrib.compression", "horsies.contrib.django", "horsies.contrib.fastapi", "horsies.contrib.flask",
    "horsies.contrib.opentelemetry", "horsies.contrib.sentry", "horsies.contrib.starlette",
    "horsies_schema", "horsies_schema.embedded", "horsies_schema.models",
)  # fmt: skip
SQL_FUNCTIONS = ("horsies_send", "horsies_signal", "horsies_set_public_done")
"""Those that docs/reference/support.md promises; the others serve the packages."""
HEAD = """\
# The public interface, which follows SemVer (docs/reference/support.md). `just api` writes this file: a changed or
# removed line is a breaking change unless it only becomes wider.
"""


def snapshot() -> str:
    parts = [HEAD]
    for module in MODULES:
        parts.append(f"\n[{module}]\n" + "".join(f"{line}\n" for line in names.lines_of(module)))
    for title, lines in (
        ("commands", commands.lines()),
        ("exit codes", exit_codes()),
        ("metrics", metrics()),
        ("SQL functions and views", sql()),
    ):
        parts.append(f"\n[{title}]\n" + "".join(f"{line}\n" for line in lines))
    return "".join(parts)


def exit_codes() -> Iterator[str]:
    from horsies_schema.errors import ExitCode as OfMigrate
    from horsies_worker.exit_codes import ExitCode as OfWorker

    for program, codes in (("horsies worker, scheduler, exporter", OfWorker), ("horsies-migrate", OfMigrate)):
        yield from (f"{program}: {code.value} {code.name}" for code in codes)


def metrics() -> Iterator[str]:
    from horsies_worker.metrics import cluster, worker

    of_cluster = [value for value in vars(cluster).values() if isinstance(value, cluster.Metric)]
    for program, found in (("worker", worker.METRICS), ("exporter", of_cluster)):
        for metric in sorted(found, key=lambda metric: metric.name):
            yield f"{program}: {metric.name}{{{', '.join(metric.labels)}}}"


def sql() -> Iterator[str]:
    """From the committed dump, which a test compares with the migrations."""
    dump = (ROOT / "docs/reference/schema.sql").read_text()
    for line in re.findall(r"^CREATE (?:FUNCTION|VIEW) public\..*$", dump, re.M):
        name = re.split(r"[ (]", line.partition("public.")[2])[0]
        if name in SQL_FUNCTIONS or line.startswith("CREATE VIEW"):
            yield line.removesuffix(" AS")


if __name__ == "__main__":
    FILE.write_text(snapshot())
