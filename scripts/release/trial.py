"""The built wheels in an empty environment, far from the repository: installed, imported and used."""

import os
import signal
import subprocess
import time
from pathlib import Path

from scripts.release.artefacts import PACKAGES, run
from scripts.release.plan import ReleaseError

APP = """\
import os

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult

app = Horsies(AppConfig(PostgresConfig(os.environ["HORSIES_DATABASE_URL"])))


@app.task("add")
def add(a: int, b: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a + b)
"""
SEND = "import shop; print(shop.add.send(20, 22).get(timeout_ms=60_000).ok_value)"
IMPORT = "import horsies, horsies_schema, horsies_tui, horsies_worker; print(horsies_worker.__file__)"
READY_S = 120.0


def use(artefacts: Path, version: str, folder: Path, python: str) -> None:
    """Install the wheels with their dependencies, then migrate, work, send and wait."""
    programs = folder / "venv" / "bin"
    run(["uv", "venv", "--quiet", "--no-project", "--python", python, str(folder / "venv")], folder)
    run(["uv", "pip", "install", "--quiet", "--python", programs / "python", *_requirements(artefacts)], folder)
    home = folder / "home"
    home.mkdir()
    place = run([programs / "python", "-c", IMPORT], home).strip()
    if not Path(place).is_relative_to(folder):
        raise ReleaseError(f"the trial imported {place}, not the wheel")
    told = run([programs / "horsies", "version"], home)
    if told.splitlines() != [f"{name} {version}" for name in PACKAGES]:
        raise ReleaseError(f"`horsies version` of the wheels says:\n{told}")
    (home / "shop.py").write_text(APP)
    url = {"HORSIES_DATABASE_URL": f"embedded://{folder / 'database'}"}
    run([programs / "horsies-migrate", "up"], home, env=url)
    run([programs / "horsies", "tui", "--help"], home, env=url)
    worker = _Worker([str(programs / "horsies"), "worker", "shop:app", "--processes", "1"], home, url)
    try:
        worker.wait_until_up()
        told = run([programs / "python", "-c", SEND], home, env=url).strip()
        if told != "42":
            raise ReleaseError(f"the trial's task returned {told!r}, not '42'")
    finally:
        code = worker.stop()
    if code != 0:
        raise ReleaseError(f"the trial's worker ended with exit code {code}:\n{worker.log()}")


def _requirements(artefacts: Path) -> list[str]:
    """By path: a package of the same name on an index is never asked for."""
    wheels = {wheel.name.partition("-")[0].replace("_", "-"): wheel for wheel in artefacts.glob("*.whl")}
    extras = {"horsies-schema": "[embedded]"}
    return [f"{name}{extras.get(name, '')} @ {wheels[name].resolve().as_uri()}" for name in PACKAGES]


class _Worker:
    def __init__(self, command: list[str], home: Path, env: dict[str, str]) -> None:
        self._log = home / "worker.log"
        with self._log.open("w") as out:
            self._process = subprocess.Popen(
                command, cwd=home, env={**os.environ, **env}, stdout=out, stderr=subprocess.STDOUT
            )

    def log(self) -> str:
        return self._log.read_text()

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + READY_S
        while " is up" not in self.log():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ReleaseError(f"the trial's worker did not start:\n{self.log()}")
            time.sleep(0.1)

    def stop(self) -> int:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(READY_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
