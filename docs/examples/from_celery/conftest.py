"""Runs the tests against one of the two: `SHOP=before pytest` or `SHOP=after pytest`.

Both need SHOP_DATABASE_URL (postgresql+psycopg://...), and `after` needs HORSIES_DATABASE_URL (postgresql://...).
"""

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent
SHOP = os.environ.get("SHOP", "after")
os.environ.setdefault("COUNT_SECONDS", "1")
os.environ.setdefault("BROKER_URL", "memory://")
os.environ.setdefault("RESULT_BACKEND", "cache+memory://")
sys.path[:0] = [str(HERE / SHOP), str(HERE / "between"), str(HERE)]


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The module `orders`, with a worker and a scheduler behind it."""
    models = importlib.import_module("models")
    models.Base.metadata.create_all(models.engine)
    orders = importlib.import_module("orders")
    with {"before": celery_worker, "after": horsies_worker}[SHOP](tmp_path_factory.mktemp("shop")):
        yield orders


@contextmanager
def celery_worker(folder: Path) -> Iterator[None]:
    """In this process: the memory broker reaches no other."""
    from celery.beat import EmbeddedService
    from celery.contrib.testing.worker import start_worker
    from tasks import app

    app.conf.broker_transport_options = {"polling_interval": 0.05}
    app.conf.beat_schedule_filename = str(folder / "beat")
    beat = EmbeddedService(app, max_interval=0.2, thread=True)
    with start_worker(app, pool="threads", concurrency=4, perform_ping_check=False, shutdown_timeout=20):
        beat.start()
        try:
            yield
        finally:
            beat.stop()


@contextmanager
def horsies_worker(folder: Path) -> Iterator[None]:
    """It makes or upgrades the tables of horsies, then writes its health file."""
    health = folder / "health"
    command = [sys.executable, "-m", "horsies_worker", "tasks:app", "--processes=2", "--with-scheduler"]
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    worker = subprocess.Popen([*command, f"--health-file={health}"], cwd=HERE / "after", env=environment)
    try:
        while not health.exists():
            assert worker.poll() is None, "the worker has ended; its log says why"
            time.sleep(0.05)
        yield
    finally:
        worker.terminate()
        worker.wait(30)
