"""Failed tasks in Sentry. Needs `pip install horsies-client[sentry] horsies-worker`.

    HORSIES_DATABASE_URL=postgresql://... SENTRY_DSN=https://... horsies worker sentry_tasks:app

A web app that imports this module, and has called `sentry_sdk.init` itself, continues its traces in the tasks it sends.
"""

import sentry_sdk

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult
from horsies.contrib.sentry import Sentry

app = Horsies(AppConfig(PostgresConfig(), middleware=[Sentry()]))


@app.on_child_start
def report() -> None:
    sentry_sdk.init(traces_sample_rate=0.1)  # SENTRY_DSN says where


@app.task("charge")
def charge(card: str) -> TaskResult[int, TaskError]:
    raise ConnectionError("the bank does not answer")
