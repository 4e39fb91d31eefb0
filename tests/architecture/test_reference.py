"""The generated pages of docs/reference and the pictures are up to date, and every event and field is documented.

tests/integration/test_reference_counts.py finds everything else that must be there."""

import html
import re

import pytest

from horsies.status import TRANSITIONS
from horsies_schema import described
from horsies_worker.events.bus import KINDS
from horsies_worker.metrics import cluster
from horsies_worker.metrics.worker import METRICS
from tests.support import pictures
from tests.support.reference import cli, parsers, schema
from tests.support.reference_pages import FOLDER, PAGES

OBVIOUS = {
    "worker_id", "hostname", "pid", "queues", "count", "task_id", "task_name", "queue_name", "attempt", "duration_s",
    "error_code", "retry_delay_s", "name", "workflow_id", "outage_s",
}  # fmt: skip
"""Fields whose names say it."""


@pytest.mark.parametrize("name", PAGES)
def test_the_committed_page_is_the_generated_one(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "run `just reference`"


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_the_committed_picture_is_the_drawn_one(name: str) -> None:
    assert (pictures.FOLDER / name).read_text() == pictures.PICTURES[name](), "run `just pictures`"


def test_the_picture_of_the_states_has_exactly_the_edges_of_the_table() -> None:
    drawn = re.findall(r'data-edge="([^"]+)"', (pictures.FOLDER / "task-states.svg").read_text())
    assert sorted(map(html.unescape, drawn)) == sorted(map(str, TRANSITIONS))


def test_every_picture_is_shown_and_none_other_is_there() -> None:
    assert {path.name for path in pictures.FOLDER.iterdir()} == set(pictures.PICTURES)
    pages = "".join(page.read_text() for page in pictures.FOLDER.parent.rglob("*.md"))
    assert [name for name in pictures.PICTURES if f"pictures/{name})" not in pages] == []


def test_every_event_has_a_section_and_every_field_a_meaning() -> None:
    page = (FOLDER / "events.md").read_text()
    for kind in KINDS:
        section = page.split(f"\n### {kind.__name__}\n\n")[1].split("\n##")[0]
        assert section.split("\n", maxsplit=1)[0], kind
        rows = dict(re.findall(r"^\| `(\w+)` \| [^\n]+ \| ([^|\n]*) \|$", section, re.MULTILINE))
        assert list(rows) == list(kind.__dataclass_fields__)
        silent = {name for name, meaning in rows.items() if not meaning.strip()}
        assert silent <= OBVIOUS, (kind, silent)


def test_every_metric_has_a_row() -> None:
    for name, metrics in (("worker-metrics.md", METRICS), ("exporter-metrics.md", cluster.METRICS)):
        page = (FOLDER / name).read_text()
        assert re.findall(r"^\| `(horsies_\w+)` \| (?:counter|gauge|histogram) \|", page, re.MULTILINE) == [
            metric.name for metric in metrics
        ]


def test_the_prose_of_the_command_line_is_about_commands_that_exist() -> None:
    assert cli.prose_commands() <= set(parsers.commands())


def test_no_description_is_of_a_thing_that_is_gone() -> None:
    known = {index for table in schema.tables().values() for index in table.indexes}
    assert described.INDEXES.keys() <= known
    assert described.ROUTINES.keys() <= schema.routines().keys()
    assert described.TRIGGERS.keys() <= schema.triggers().keys()
    assert described.VIEWS.keys() <= schema.views().keys()
