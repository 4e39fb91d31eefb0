"""Peers by name into environments of their own, and a Redis, all in a cache outside the repository.

An environment is named after the digest of its requirements, so a new pin makes a new one. Redis comes from the PATH or,
unpacked and not installed, from Debian's archive; what cannot be had is skipped with a reason, never an error.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from bench.compare.table import PEERS, System

DEBIAN_PACKAGES = ("redis-server", "redis-tools", "liblzf1", "libjemalloc2")


class Absent(Exception):
    """Why something is left out."""


def cache_directory() -> Path:
    chosen = os.environ.get("HORSIES_BENCH_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(base) / "horsies-bench"


def interpreter(system: System) -> Path:
    """The python that runs `system`; Absent when it is not installed."""
    if not system.requirements:  # the workspace's own
        return Path(sys.executable)
    python = _environment(system) / "bin" / "python"
    if not (python.parent / "ready").exists():
        raise Absent("not installed: `just bench peers`")
    return python


def install(system: System) -> None:
    directory = _environment(system)
    ready = directory / "bin" / "ready"
    if ready.exists():
        return
    base = _python(system.python) if system.python else sys.executable
    shutil.rmtree(directory, ignore_errors=True)
    _run("uv", "venv", "--quiet", "--python", base, str(directory))
    _run(
        "uv", "pip", "install", "--quiet", "--compile-bytecode", "--python", str(directory / "bin" / "python"),
        *system.requirements,
    )  # fmt: skip
    ready.touch()  # last: a half-made environment is made again


def versions(system: System) -> list[str]:
    listed = subprocess.run(
        ["uv", "pip", "freeze", "--quiet", "--python", str(interpreter(system))],
        capture_output=True,
        text=True,
        check=False,
    )
    return [line for line in listed.stdout.splitlines() if "==" in line]


@cache
def redis_program() -> tuple[Path, dict[str, str]]:
    """`redis-server` and the environment it needs."""
    if found := shutil.which("redis-server"):
        return Path(found), dict(os.environ)
    root = cache_directory() / "redis"
    program = next((path for path in root.rglob("redis-*") if path.name in ("redis-server", "redis-check-rdb")), None)
    if program is None:
        raise Absent("no redis-server on the PATH: `just bench peers` fetches Debian's")
    libraries = ":".join(sorted({str(path.parent) for path in root.rglob("*.so*")}))
    # Debian's redis-server is a link to the binary of redis-tools, which looks at the name it is called by
    server = next((path for path in root.rglob("redis-server") if path.parent.name == "bin"), program)
    return server, {**os.environ, "LD_LIBRARY_PATH": libraries}


def fetch_redis() -> None:
    """Debian's packages, unpacked into the cache; nothing of the system is touched."""
    try:
        redis_program()
        return
    except Absent:
        redis_program.cache_clear()
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise Absent("no redis-server on the PATH, and no Debian to fetch it from")
    root = cache_directory() / "redis"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    _run("apt-get", "download", "-qq", *DEBIAN_PACKAGES, cwd=root)
    for package in root.glob("*.deb"):
        _run("dpkg", "-x", str(package), str(root / "root"))
    program, environment = redis_program()
    tried = subprocess.run([program, "--version"], env=environment, capture_output=True, text=True, check=False)
    if tried.returncode:
        shutil.rmtree(root, ignore_errors=True)
        raise Absent(f"Debian's redis-server does not run here: {tried.stderr.strip()}")


def install_all() -> int:
    """Everything that can be had; the number of things that could not."""
    missing = 0
    for name, action in [(peer.name, lambda peer=peer: install(peer)) for peer in PEERS] + [("redis", fetch_redis)]:
        try:
            action()
            print(f"{name:14} ready", flush=True)
        except Absent as reason:
            missing += 1
            print(f"{name:14} left out: {reason}", flush=True)
    return missing


def _environment(system: System) -> Path:
    words = " ".join((*system.requirements, system.python or sys.version.split()[0]))
    return cache_directory() / f"{system.name}-{hashlib.sha256(words.encode()).hexdigest()[:10]}"


def _python(version: str) -> str:
    """An interpreter of that version: uv's find, or one that pyenv keeps without showing it."""
    found = subprocess.run(["uv", "python", "find", "--quiet", "--no-python-downloads", version], capture_output=True, text=True, check=False)  # fmt: skip
    if found.returncode == 0:
        return found.stdout.strip()
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    kept = sorted(pyenv.glob(f"versions/{version}.*/bin/python"))
    if not kept:
        raise Absent(f"needs Python {version}, and there is none")
    return str(kept[-1])


def _run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Absent(f"`{command[0]} {command[1]}` failed: {(done.stderr or done.stdout).strip()[-400:]}")
