"""Who the server runs as. PostgreSQL refuses root, so root borrows an existing unprivileged account.

This module creates no account and changes no permission; it only answers questions. Whether an account can enter a
directory is asked of the kernel, by a shell that runs as that account, because mode bits miss ACLs and mount options.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from horsies_schema.embedded.errors import EmbeddedError

ACCOUNT_VARIABLE: Final = "HORSIES_EMBEDDED_USER"
_CANDIDATES: Final = ("postgres", "nobody")

# Directories have to be searchable, files readable; prints the first path that is not.
_PROBE: Final = """
for path do
  if [ -d "$path" ]; then [ -x "$path" ]; else [ -r "$path" ]; fi || { printf '%s' "$path"; exit 1; }
done
"""


@dataclass(frozen=True, slots=True)
class Account:
    """An unprivileged system account that root lends to the server."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]


def server_account() -> Account | None:
    """The account for initdb and postgres when we are root; None means: our own account will do."""
    if os.geteuid() != 0:
        return None
    wanted = os.environ.get(ACCOUNT_VARIABLE)
    for name in (wanted,) if wanted else _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid == 0:
            raise EmbeddedError(f"{ACCOUNT_VARIABLE}={name} is root, and PostgreSQL refuses to run as root")
        return Account(name, entry.pw_uid, entry.pw_gid, tuple(os.getgrouplist(name, entry.pw_gid)))
    tried = f"{ACCOUNT_VARIABLE}={wanted} does" if wanted else f"the accounts {' and '.join(_CANDIDATES)} do"
    raise EmbeddedError(
        f"PostgreSQL refuses to run as root, and {tried} not exist: "
        f"set {ACCOUNT_VARIABLE} to an unprivileged account, or run as a normal user"
    )


def first_unreachable(account: Account | None, path: Path, *files: Path) -> Path | None:
    """What keeps `account` from `path`: the first directory on the way that it cannot enter, or a file it cannot read.

    What does not exist yet is no obstacle. Never anything for our own account: there the real operation will tell.
    """
    if account is None:
        return None
    existing = [step for step in (*reversed(path.parents), path, *files) if step.exists()]
    probe = subprocess.run(
        ["/bin/sh", "-c", _PROBE, "sh", *(str(step) for step in existing)],
        check=False,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        user=account.uid,
        group=account.gid,
        extra_groups=account.groups,
    )
    return None if probe.returncode == 0 else Path(os.fsdecode(probe.stdout))
