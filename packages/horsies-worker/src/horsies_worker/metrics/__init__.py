"""Figures for Prometheus: the HTTP endpoint (`http.py`), and `horsies exporter`, which serves those of the whole
installation. It reads through the client's read model and writes no table.

It must never ask the database because of a scrape, label a figure by anything without a bound (ids, arguments), or be
imported without the extra `metrics`; this module alone may.
"""

from typing import Final

from horsies.errors import HorsiesError

DEFAULT_HOST: Final = "0.0.0.0"
"""Prometheus asks from another container or machine, so all addresses are the default."""
_INSTALL: Final = "pip install 'horsies-worker[metrics]'"


class MetricsUnavailable(HorsiesError):
    """Metrics cannot be served: a package is missing, or the address cannot be used."""


def require_extra() -> None:
    """Raise MetricsUnavailable when the packages of the extra `metrics` are not installed."""
    try:
        import prometheus_client  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        raise MetricsUnavailable(f"metrics need another package: {_INSTALL}") from None
