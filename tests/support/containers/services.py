"""Services of compose.yaml as processes: each in its own mount and process namespace, all in one network namespace.

The first process of a service is PID 1 of its namespace, as in a container without an init process.
"""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.containers.compose import Service
from tests.support.containers.dockerfile import Healthcheck, Image
from tests.support.containers.roots import ENTER, Root, as_user
from tests.support.waiting import eventually


class Network:
    """A network namespace with nothing but a loopback, and a file of names for it. Every service has an address there,
    so that it is found by its name."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        eventually(self._is_apart, describe="the network namespace is there")
        subprocess.run(self.inside(["ip", "link", "set", "lo", "up"]), check=True)
        self.hosts = folder / "hosts"
        lines = [f"127.0.1.{number} {name}" for number, name in enumerate(names, start=1)]
        self.hosts.write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n")

    def _is_apart(self) -> bool:
        return Path(f"/proc/{self._holder.pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()

    def inside(self, command: Sequence[str]) -> list[str]:
        return ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net", "--", *command]

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()


class Container:
    """One service, started from its image."""

    def __init__(
        self, service: Service, root: Root, network: Network, log: Path, terminal: int = subprocess.DEVNULL
    ) -> None:
        """`terminal`: the end of a pseudo-terminal for a service with `tty`; its output goes there, not to the log."""
        self.service = service
        self.image: Image = root.image
        self._network = network
        self.log = log
        image, given = root.image, service.given
        entrypoint = given.get("entrypoint", image.entrypoint)
        command = given.get("command", [] if "entrypoint" in given else image.command)
        # what the engine would set up is demanded of the file here, because this module always does it
        assert given["cap_drop"] == ["ALL"], service.name
        assert given["security_opt"] == ["no-new-privileges:true"], service.name
        mode = "read-only" if given.get("read_only") else "writable"
        tmpfs = [word for pair in service.tmpfs.items() for word in pair]
        self.command = [*entrypoint, *command]
        words = as_user(image, self.command, service.environment)
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                network.inside(
                    ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--", "sh", "-c", ENTER, "sh",
                     str(root.path), str(network.hosts), *tmpfs, "--", mode, *words]
                ),
                stdin=terminal, stdout=output if terminal == subprocess.DEVNULL else terminal, stderr=subprocess.STDOUT,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """The first process of the service, as this machine numbers it."""

        def children() -> list[str]:
            self.require_running()
            return Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()

        return int(eventually(children, describe=f"{self.service.name} has a process")[0])

    def run(self, command: Sequence[str], timeout_s: float = 60, *, user: str | None = None) -> tuple[int, str]:
        """A further command in the running container, as `docker exec` would: its exit code and its output."""
        image = Image(self.image.environment, self.image.directory, user or self.image.user)
        words = as_user(image, command, self.service.environment)
        done = subprocess.run(
            ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--net", "--root", "--wd=/", "--", *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s,
        )  # fmt: skip
        return done.returncode, done.stdout

    @property
    def healthcheck(self) -> Healthcheck | None:
        return self.service.healthcheck or self.image.healthcheck

    def await_health(self) -> float:
        """The seconds until its health check succeeded. A busy machine gets a minute more than an engine would give."""
        check = self.healthcheck
        assert check is not None, f"{self.service.name} has no health check"
        began = time.monotonic()
        told = ""

        def is_healthy() -> bool:
            nonlocal told
            self.require_running()
            code, told = self.run(check.command, check.timeout_s + 30)
            return code == 0

        limit = check.start_period_s + check.retries * check.interval_s + 60
        try:
            eventually(is_healthy, timeout=limit, interval=1, describe=f"the health check of {self.service.name}")
        except AssertionError as error:
            raise SystemExit(f"{error}\n{told}\n{self.tail()}") from None
        return time.monotonic() - began

    def require_running(self) -> None:
        if self._process.poll() is not None:
            raise SystemExit(f"{self.service.name} ended with exit code {self._process.returncode}\n{self.tail()}")

    def await_end(self, timeout_s: float = 120) -> int:
        return self._process.wait(timeout_s)

    def stop(self) -> tuple[int, float]:
        """SIGTERM to its first process: the exit code and the seconds. Longer than its grace period is a failure."""
        began = time.monotonic()
        os.kill(self.pid, signal.SIGTERM)
        try:
            code = self._process.wait(self.service.grace_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise SystemExit(
                f"{self.service.name} has not ended {self.service.grace_s:g} s after SIGTERM\n{self.tail()}"
            ) from None
        return code, time.monotonic() - began

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()  # --kill-child ends the namespace
            self._process.wait()

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def check_locks(self) -> None:
        """It runs as the image's user, without rights of the kernel, and its root cannot be written."""
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{self.pid}/status").read_text().splitlines() if ":" in line
        )
        uid = self.image.user.partition(":")[0]
        assert status["Uid"].split() == [uid] * 4 != ["0"] * 4, status["Uid"]
        assert int(status["CapBnd"], 16) == int(status["CapEff"], 16) == 0, status["CapBnd"]
        assert status["NoNewPrivs"].strip() == "1"
        code, told = self.run(["touch", "/root/file", "/etc/file", "/opt/file"], user="0:0")
        assert code != 0, told
        assert told.count("Read-only file system") == 3, told
        assert self.run(["touch", "/tmp/file"])[0] == 0


class Postgres:
    """In the place of the image `postgres:18`: the same server from a wheel, set up as that image's entry point does.
    It runs in the network namespace, as an account of this machine that is not root."""

    def __init__(self, service: Service, network: Network, folder: Path, compose: Path, programs: Path) -> None:
        import pwd

        self.service = service
        self._network = network
        self._account = pwd.getpwnam("postgres" if _has_account("postgres") else "nobody")
        self._folder = folder
        folder.mkdir()
        os.chown(folder, self._account.pw_uid, self._account.pw_gid)
        self.log = folder / "log"
        given = service.environment
        self._environment = given | {"PATH": f"{programs}:/usr/bin:/bin", "PGHOST": str(folder), "LC_ALL": "C.UTF-8"}
        password = folder / "password"
        password.write_text(given["POSTGRES_PASSWORD"])
        os.chown(password, self._account.pw_uid, self._account.pw_gid)
        self._call(
            ["initdb", "--pgdata", str(folder / "data"), "--username", given["POSTGRES_USER"], "--pwfile",
             str(password), "--auth-local=trust", "--auth-host=scram-sha-256", "--encoding=UTF8"]
        )  # fmt: skip
        password.unlink()
        with (folder / "data/pg_hba.conf").open("a") as rules:
            rules.write("host all all all scram-sha-256\n")
        self._process = subprocess.Popen(
            self._as_account(
                ["postgres", "-D", str(folder / "data"), "-k", str(folder), "-c", "listen_addresses=*", "-c",
                 "password_encryption=scram-sha-256"]
            ),
            stdin=subprocess.DEVNULL, stdout=self.log.open("wb"), stderr=subprocess.STDOUT, env=self._environment,
        )  # fmt: skip
        self.await_health(["pg_isready", "--username", given["POSTGRES_USER"]])
        self._call(["createdb", "--username", given["POSTGRES_USER"], given["POSTGRES_DB"]])
        for volume in service.given["volumes"]:
            source, _, rest = volume.partition(":")
            if rest.startswith("/docker-entrypoint-initdb.d"):
                for script in sorted((compose.parent / source).glob("*.sh")):
                    self._call(["sh", str(script)])

    def _as_account(self, command: Sequence[str]) -> list[str]:
        account = ["setpriv", f"--reuid={self._account.pw_uid}", f"--regid={self._account.pw_gid}", "--clear-groups"]
        return self._network.inside([*account, "--", *command])

    def _call(self, command: Sequence[str]) -> None:
        done = subprocess.run(self._as_account(command), env=self._environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{command[0]} failed: {done.stdout}{done.stderr}")

    def await_health(self, command: Sequence[str] | None = None) -> float:
        check = command or (self.service.healthcheck.command if self.service.healthcheck else [])
        began = time.monotonic()
        eventually(
            lambda: (
                subprocess.run(
                    self._as_account(check), env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                ).returncode == 0
            ),
            timeout=60, describe="PostgreSQL answers",
        )  # fmt: skip
        return time.monotonic() - began

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)  # the image's STOPSIGNAL
        self._process.wait(30)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(30)


def _has_account(name: str) -> bool:
    import pwd

    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
