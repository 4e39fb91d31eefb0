"""Install peers into environments of their own, and a Redis, in a cache outside the repository.

An environment is named after the digest of its requirements, so a new pin makes a new one. Redis comes from the PATH or,
unpacked and not installed, from Debian's archive. What cannot be installed is left out with a reason; that is no error.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.compare.systems import PEERS, System

DEBIAN_PACKAGES = ("redis-server", "redis-tools", "liblzf1", "libjemalloc2")
CACHE = Path(os.environ.get("HORSIES_BENCH_CACHE") or Path.home() / ".cache" / "horsies-bench")


class Unavailable(Exception):
    """The reason why a system or a scenario is left out."""


def interpreter(system: System) -> Path:
    """The Python that runs `system`; raises Unavailable when it is not installed."""
    if not system.requirements:
        return Path(system.interpreter or sys.executable)
    python = _environment(system) / "bin" / "python"
    if not (python.parent / "ready").exists():
        raise Unavailable("not installed: run `just bench peers`")
    return python


def install(system: System) -> None:
    with contextlib.suppress(Unavailable):
        interpreter(system)
        return
    shutil.rmtree(_environment(system), ignore_errors=True)
    python = make_environment(_environment(system), system.requirements)
    (python.parent / "ready").touch()  # last, so that an interrupted installation is repeated


def make_environment(directory: Path, requirements: Sequence[str]) -> Path:
    python = directory / "bin" / "python"
    run("uv", "venv", "--quiet", "--python", sys.executable, str(directory))
    run("uv", "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python), *requirements)
    return python


def redis_program() -> tuple[str, dict[str, str]]:
    """`redis-server` and the environment that it needs."""
    if found := shutil.which("redis-server"):
        return found, dict(os.environ)
    root = CACHE / "redis"
    program = next((path for path in root.rglob("redis-server") if path.parent.name == "bin"), None)
    if program is None:
        raise Unavailable("no redis-server on the PATH: `just bench peers` downloads Debian's")
    libraries = ":".join(sorted({str(path.parent) for path in root.rglob("*.so*")}))
    return str(program), {**os.environ, "LD_LIBRARY_PATH": libraries}


def fetch_redis() -> None:
    """Unpack Debian's packages into the cache; nothing is installed into the system."""
    with contextlib.suppress(Unavailable):
        redis_program()
        return
    root = CACHE / "redis"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    run("apt-get", "download", "-qq", *DEBIAN_PACKAGES, cwd=root)
    for package in root.glob("*.deb"):
        run("dpkg", "-x", str(package), str(root / "root"))
    program, environment = redis_program()
    run(program, "--version", env=environment)


def install_all(peers: Sequence[System] = PEERS) -> None:
    for name, action in [*((peer.name, lambda peer=peer: install(peer)) for peer in peers), ("redis", fetch_redis)]:
        try:
            action()
            print(f"{name:14} ready", flush=True)
        except Unavailable as reason:
            print(f"{name:14} left out: {reason}", flush=True)


def run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    try:
        subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Unavailable(f"`{' '.join(command[:3])}` failed: {getattr(error, 'stderr', error)}") from None


def _environment(system: System) -> Path:
    words = " ".join((*system.requirements, sys.version.split()[0]))
    return CACHE / f"{system.name}-{hashlib.sha256(words.encode()).hexdigest()[:10]}"
