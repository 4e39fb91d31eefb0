"""What the client costs before it does anything: import time and installed size, beside its peers.

Each library is installed alone, in a fresh environment and with its bytecode compiled. Times are medians of interleaved
runs of fresh interpreters, counted inside them, from the first statement to the last. BENCH_RUNS=2 makes it shorter.
"""

import statistics
import subprocess
import tempfile
from pathlib import Path

from bench import support
from bench.compare.install import make_environment

CLIENT = str(Path(__file__).parents[1] / "packages" / "horsies-client")
ALONE = {"horsies-client": [CLIENT], "celery": ["celery"], "dramatiq": ["dramatiq"], "procrastinate": ["procrastinate"]}
READY = {  # what it takes to reach its broker
    **ALONE, "celery": ["celery[redis]"], "dramatiq": ["dramatiq[redis]"],
    "procrastinate": ["procrastinate", "psycopg[binary]"],
}  # fmt: skip
STEPS = ("import", "the app's class", "a first task")
STATEMENTS = {
    "horsies-client": ("import horsies", "from horsies import Horsies", """
from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult
app = Horsies(AppConfig(PostgresConfig("postgresql://localhost/x")))
@app.task("add")
def add(a: int, b: int) -> TaskResult[int, TaskError]: ..."""),
    "celery": ("import celery", "from celery import Celery", """
from celery import Celery
app = Celery("x", broker="redis://localhost")
@app.task
def add(a, b): ...
add.name  # the task is created on first use"""),
    "dramatiq": ("import dramatiq", "from dramatiq import actor, set_broker", """
import dramatiq
from dramatiq.brokers.redis import RedisBroker
dramatiq.set_broker(RedisBroker(url="redis://localhost"))
@dramatiq.actor
def add(a, b): ..."""),
    "procrastinate": ("import procrastinate", "from procrastinate import App", """
import procrastinate
app = procrastinate.App(connector=procrastinate.PsycopgConnector())
@app.task(name="add")
def add(a, b): ..."""),
}  # fmt: skip


def size(python: Path) -> str:
    """Megabytes without bytecode, and the number of distributions."""
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    files = [path for path in site.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return f"{sum(path.stat().st_size for path in files) / 1e6:8.1f} MB {len(list(site.glob('*.dist-info'))):3} dists"


def milliseconds(python: Path, statements: str) -> float:
    code = f"import time\nstart = time.perf_counter()\n{statements}\nprint((time.perf_counter() - start) * 1000)"
    run = subprocess.run([python, "-W", "ignore", "-c", code], check=True, capture_output=True, text=True)
    return float(run.stdout)


def main() -> None:
    took: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="horsies-bench-") as root:
        alone = {name: make_environment(Path(root) / f"{name}-alone", words) for name, words in ALONE.items()}
        ready = {name: make_environment(Path(root) / f"{name}-ready", words) for name, words in READY.items()}
        for _ in range(*support.numbers("BENCH_RUNS", "15")):
            for name, python in ready.items():
                for step, statements in enumerate(STATEMENTS[name]):
                    took.setdefault((name, step), []).append(milliseconds(python, statements))
        print(f"{'':15}", *(f"{step:>16}" for step in STEPS), "   installed alone   with its broker's client")
        for name, python in ready.items():
            medians = [f"{statistics.median(took[name, step]):13.1f} ms" for step in range(3)]
            print(f"{name:15}", *medians, size(alone[name]), size(python))
