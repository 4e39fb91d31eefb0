"""What this machine lends to the soak: a small disk, a network namespace, an older release of the code."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FAKETIME: Final = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
DISK_MB: Final = 640
_MIGRATIONS: Final = "packages/horsies-schema/src/horsies_schema/migrations"


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A file system of its own at `folder`, which can be filled without harm; None where rights are missing."""
    folder.mkdir()
    if os.geteuid() != 0 or _run("mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "soak", str(folder)).returncode:
        yield None
        return
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        _run("umount", "--lazy", str(folder))


class Namespace:
    """A network of one worker, joined to this machine's by a pair of virtual cards."""

    def __init__(self, number: int) -> None:
        self.name = f"soak{number % 1_000_000}"
        self._card = f"sk{number % 1_000_000}"
        subnet = f"10.{200 + number % 40}.{number // 40 % 250}"
        self.host, self._inside = f"{subnet}.1", f"{subnet}.2"

    def make(self) -> bool:
        peer = f"{self._card}p"
        inside = ("ip", "netns", "exec", self.name)
        steps = [
            ("ip", "netns", "add", self.name),
            ("ip", "link", "add", self._card, "type", "veth", "peer", "name", peer),
            ("ip", "link", "set", peer, "netns", self.name),
            ("ip", "addr", "add", f"{self.host}/30", "dev", self._card),
            ("ip", "link", "set", self._card, "up"),
            (*inside, "ip", "addr", "add", f"{self._inside}/30", "dev", peer),
            (*inside, "ip", "link", "set", peer, "up"),
            (*inside, "ip", "link", "set", "lo", "up"),
        ]
        return all(_run(*step).returncode == 0 for step in steps)

    def remove(self) -> None:
        _run("ip", "link", "del", self._card)
        _run("ip", "netns", "del", self.name)

    def command(self) -> tuple[str, ...]:
        """What a command is started with to be inside."""
        return ("ip", "netns", "exec", self.name)

    def blackhole(self, *, on: bool) -> None:
        """Packets vanish in both directions, and neither side is told."""
        _run("ip", "link", "set", self._card, "down" if on else "up")


@contextmanager
def namespace() -> Iterator[Namespace | None]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        yield None
        return
    made = Namespace(os.getpid())
    try:
        yield made if made.make() else None
    finally:
        made.remove()


def older_release(folder: Path) -> list[Path] | None:
    """The sources before the last change of the packages, for a deploy of another release: folders for PYTHONPATH. The
    variable HORSIES_SOAK_OLDER names another commit. None where the schema was another one, and outside of git."""
    commit = os.environ.get("HORSIES_SOAK_OLDER") or next(
        (
            each
            for each in _run("git", "-C", str(ROOT), "log", "--first-parent", "-40", "--format=%H").stdout.split()
            if _run("git", "-C", str(ROOT), "diff", "--quiet", each, "HEAD", "--", "packages").returncode
        ),
        None,
    )
    same = ("git", "-C", str(ROOT), "diff", "--quiet", str(commit), "HEAD", "--", _MIGRATIONS)
    if commit is None or _run(*same).returncode:
        return None
    folder.mkdir()
    packed = folder / "packages.tar"
    if _run("git", "-C", str(ROOT), "archive", f"--output={packed}", commit, "packages").returncode:
        return None
    shutil.unpack_archive(packed, folder, filter="data")
    packed.unlink()
    (folder / "COMMIT").write_text(commit)
    return sorted(folder.glob("packages/*/src"))


def orphans(mark: str) -> list[tuple[int, str]]:
    """Processes of this run that are still there: they have its mark in their environment."""
    found: list[tuple[int, str]] = []
    for entry in Path("/proc").iterdir() if sys.platform == "linux" else []:
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found.append((int(entry.name), line[:200]))
            except OSError:
                continue
    return found
