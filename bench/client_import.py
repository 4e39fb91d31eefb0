"""What the client costs before it does anything: import time and installed size, beside its peers.

Each library is installed alone, in a fresh environment and with its bytecode compiled. Times are medians of
interleaved runs of fresh interpreters, counted inside them, from the first statement to the last.
"""

import statistics
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

RUNS = 15
CLIENT = Path(__file__).parents[1] / "packages" / "horsies-client"


@dataclass(frozen=True, slots=True)
class Library:
    """`bare` is what the name alone installs, `ready` what it takes to reach its broker."""

    name: str
    bare: tuple[str, ...]
    ready: tuple[str, ...]
    package: str
    app: str
    task: str


LIBRARIES = (
    Library(
        "horsies-client", (str(CLIENT),), (str(CLIENT),), "import horsies", "from horsies import Horsies",
        """
        from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult
        app = Horsies(AppConfig(PostgresConfig("postgresql://localhost/x")))
        @app.task("add")
        def add(a: int, b: int) -> TaskResult[int, TaskError]: ...
        """,
    ),
    Library(
        "celery", ("celery",), ("celery[redis]",), "import celery", "from celery import Celery",
        """
        from celery import Celery
        app = Celery("x", broker="redis://localhost")
        @app.task
        def add(a, b): ...
        add.name  # made on first use
        """,
    ),
    Library(
        "dramatiq", ("dramatiq",), ("dramatiq[redis]",), "import dramatiq", "from dramatiq import actor, set_broker",
        """
        import dramatiq
        from dramatiq.brokers.redis import RedisBroker
        dramatiq.set_broker(RedisBroker(url="redis://localhost"))
        @dramatiq.actor
        def add(a, b): ...
        """,
    ),
    Library(
        "procrastinate", ("procrastinate",), ("procrastinate", "psycopg[binary]"), "import procrastinate",
        "from procrastinate import App",
        """
        import procrastinate
        app = procrastinate.App(connector=procrastinate.PsycopgConnector())
        @app.task(name="add")
        def add(a, b): ...
        """,
    ),
)  # fmt: skip
STEPS: dict[str, Callable[[Library], str]] = {
    "import": lambda library: library.package,
    "the app's class": lambda library: library.app,
    "a first task": lambda library: library.task,
}


def install(directory: Path, requirements: tuple[str, ...]) -> Path:
    subprocess.run(["uv", "venv", "--quiet", "--python", sys.executable, str(directory)], check=True)
    python = directory / "bin" / "python"
    subprocess.run(
        ["uv", "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python), *requirements], check=True
    )
    return python


def size(directory: Path) -> tuple[float, int]:
    """Megabytes without bytecode, and the number of distributions."""
    (site,) = directory.glob("lib/python*/site-packages")
    files = [path for path in site.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return sum(path.stat().st_size for path in files) / 1e6, len(list(site.glob("*.dist-info")))


def milliseconds(python: Path, statements: str) -> float:
    code = (
        "import time\nstart = time.perf_counter()\n"
        f"{textwrap.dedent(statements)}\n"
        "print((time.perf_counter() - start) * 1000)"
    )
    run = subprocess.run([python, "-W", "ignore", "-c", code], check=True, capture_output=True, text=True)
    return float(run.stdout)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="horsies-bench-") as root:
        sizes: dict[str, str] = {}
        pythons: dict[str, Path] = {}
        for library in LIBRARIES:
            bare, ready = Path(root) / f"{library.name}-bare", Path(root) / f"{library.name}-ready"
            install(bare, library.bare)
            pythons[library.name] = install(ready, library.ready)
            sizes[library.name] = "   ".join("{:5.1f} MB {:3} dists".format(*size(each)) for each in (bare, ready))
        took: dict[tuple[str, str], list[float]] = {}
        for _ in range(RUNS):
            for library in LIBRARIES:
                for step, statements in STEPS.items():
                    took.setdefault((library.name, step), []).append(
                        milliseconds(pythons[library.name], statements(library))
                    )
    print(f"{'':15}" + "".join(f"{step:>18}" for step in STEPS) + "   installed alone      ready to reach its broker")
    for library in LIBRARIES:
        medians = [statistics.median(took[library.name, step]) for step in STEPS]
        print(f"{library.name:15}" + "".join(f"{median:15.1f} ms" for median in medians) + f"   {sizes[library.name]}")


if __name__ == "__main__":
    main()
