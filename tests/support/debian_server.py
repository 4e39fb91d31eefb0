"""Runs a command with HORSIES_TEST_DATABASE_URL pointing at a private server of Debian's PostgreSQL 15.

`just test-pg15` uses it. Needs the package postgresql-15 (programs in /usr/lib/postgresql/15/bin); as root
the server runs as the account `postgres`, which that package creates.
"""

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support import places

PROGRAMS = Path("/usr/lib/postgresql/15/bin")
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "300",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.max": "20000",  # with fewer, databases push out each other's statements
}


def main(command: list[str]) -> int:
    if not (PROGRAMS / "postgres").exists():
        print(f"PostgreSQL 15 is not in {PROGRAMS}: apt-get install postgresql-15", file=sys.stderr)  # noqa: T201
        return 2
    directory = places.directory("horsies-pg15-")
    account = "postgres" if os.geteuid() == 0 else None
    if account is not None:
        entry = pwd.getpwnam(account)
        os.chown(directory, entry.pw_uid, entry.pw_gid)

    def program(name: str, *arguments: str) -> None:
        subprocess.run(
            [PROGRAMS / name, "-D", directory / "data", *arguments],
            user=account, extra_groups=[] if account else None, cwd=directory, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip

    try:
        program("initdb", "--encoding=UTF8", "--locale=C.UTF-8", "--auth=trust", "--username=postgres", "--no-sync")
        options = " ".join(f"-c {name}='{value}'" for name, value in SETTINGS.items())
        program("pg_ctl", "start", "-w", "-l", str(directory / "log"), "-o", f"-k {directory} {options}")
        try:
            url = f"postgresql://postgres@/postgres?host={directory}"
            return subprocess.run(command, env={**os.environ, "HORSIES_TEST_DATABASE_URL": url}, check=False).returncode
        finally:
            program("pg_ctl", "stop", "-m", "immediate")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
