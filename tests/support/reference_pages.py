"""Writes the generated pages of docs/reference. `just reference` runs it; tests/architecture/test_reference.py compares
the committed pages with these."""

from collections.abc import Callable
from pathlib import Path

from tests.support.reference.api import api_page
from tests.support.reference.cli import cli_page
from tests.support.reference.configuration import configuration_page
from tests.support.reference.errors import errors_page
from tests.support.reference.events import events_page
from tests.support.reference.metrics import exporter_metrics_page, worker_metrics_page
from tests.support.reference.schema import schema_page

FOLDER = Path(__file__).parents[2] / "docs/reference"

PAGES: dict[str, Callable[[], str]] = {
    "api.md": api_page,
    "cli.md": cli_page,
    "configuration.md": configuration_page,
    "errors.md": errors_page,
    "events.md": events_page,
    "exporter-metrics.md": exporter_metrics_page,
    "schema.md": schema_page,
    "worker-metrics.md": worker_metrics_page,
}


def main() -> None:
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())


if __name__ == "__main__":
    main()
