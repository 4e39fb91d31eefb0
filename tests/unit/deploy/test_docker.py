"""The Dockerfile and compose.yaml of deploy/docker; `just containers` carries them out."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from horsies.scaffold.rendering import Framework, project_files
from tests.support.containers import compose, dockerfile
from tests.support.containers.dockerfile import Image

DOCKER = Path(__file__).parents[3] / "deploy/docker"
ROOT = DOCKER.parents[1]
STAGES = dockerfile.read(DOCKER / "Dockerfile")
IMAGES = ("worker", "scheduler", "migrate", "exporter", "dashboard", "pgbouncer")
SECRETS = re.findall(r"^(\w+)=$", (DOCKER / ".env.example").read_text(), re.MULTILINE)
SERVICES = compose.read(DOCKER / "compose.yaml", dict.fromkeys(SECRETS, "secret"))


def image(name: str) -> Image:
    """What the image says of itself, without a build."""
    found = Image()
    chain = [STAGES[name]]
    while chain[0].base in STAGES:
        chain.insert(0, STAGES[chain[0].base])
    for stage in chain:
        for one in stage.instructions:
            found.take(one)
    return found


def shutdown_timeout(command: list[str]) -> float:
    return float(command[command.index("--shutdown-timeout") + 1])


@pytest.mark.parametrize("name", IMAGES)
def test_images_run_as_an_account_without_rights(name: str) -> None:
    assert image(name).user == "10001:10001"


def test_copied_files_exist_and_reach_the_build() -> None:
    sent = [line[1:] for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [
        word
        for stage in STAGES.values()
        for one in stage.instructions
        if one.word == "COPY" and not one.text.startswith("--from")
        for word in one.text.split()[:-1]
    ]
    assert set(copied) == set(sent)
    assert all((ROOT / name).exists() for name in sent)


def test_compose_is_a_good_file() -> None:
    command = [Path(sys.executable).parent / "check-jsonschema", "--builtin-schema", "vendor.compose-spec"]
    run = subprocess.run([*command, DOCKER / "compose.yaml"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_secret_comes_from_the_environment() -> None:
    text = (DOCKER / "compose.yaml").read_text()
    assert set(re.findall(r"\$\{(\w+)", text)) == set(re.findall(r"\$\{(\w+):\?", text)) == set(SECRETS)
    assert not re.search(r"://\w+:(?!\$\{)", text)
    with pytest.raises(AssertionError, match=r"_PASSWORD: write it into \.env"):
        compose.read(DOCKER / "compose.yaml", {})


def test_services_are_built_from_targets_that_exist_and_are_locked() -> None:
    for service in SERVICES.values():
        if service.target is None:
            assert service.name in ("postgres", "prometheus")  # images of others
            continue
        assert service.target in STAGES
        assert service.given["read_only"] is True
        assert service.given["cap_drop"] == ["ALL"]
        assert service.given["security_opt"] == ["no-new-privileges:true"]
        assert set(service.tmpfs) == {"/tmp"}


def test_they_start_after_what_they_need() -> None:
    names = [service.name for service in compose.in_order(SERVICES)]
    assert set(names) == {"postgres", "pgbouncer", "migrate", "worker", "scheduler", "exporter"}
    assert names.index("postgres") < names.index("pgbouncer") < names.index("worker")
    for name in ("worker", "scheduler", "exporter", "client", "dashboard"):
        assert SERVICES[name].depends_on["migrate"] == "service_completed_successfully"
    for service in SERVICES.values():
        for other, condition in service.depends_on.items():
            if condition == "service_healthy":
                target = SERVICES[other].target
                assert SERVICES[other].healthcheck or (target and image(target).healthcheck), other


@pytest.mark.parametrize("name", ["worker", "scheduler"])
def test_a_container_has_longer_to_stop_than_its_process_takes(name: str) -> None:
    assert SERVICES[name].grace_s >= shutdown_timeout(image(name).command) + 10


def test_new_projects_are_deployed_alike() -> None:
    """The Dockerfile and the compose file of `horsies init`."""
    files = {str(path): text for path, text in project_files(Framework.NONE, "shop", "0.1.0").items()}
    ours, theirs = (re.findall(r"^FROM (python:\S+)", text, re.M) for text in (
        (DOCKER / "Dockerfile").read_text(), files["Dockerfile"]
    ))  # fmt: skip
    assert set(ours) == set(theirs)
    made = compose.YAML(typ="safe").load(files["compose.yaml"].replace("${", "$"))["services"]
    assert made["postgres"]["image"] == SERVICES["postgres"].given["image"]
    assert made["worker"]["stop_grace_period"] == SERVICES["worker"].given["stop_grace_period"]
    assert shutdown_timeout(made["worker"]["command"]) == shutdown_timeout(image("worker").command)
    check = image("worker").healthcheck
    assert check is not None
    assert made["worker"]["healthcheck"]["test"] == ["CMD", *check.command]
    assert made["migrate"]["command"][:2] == [*image("migrate").entrypoint, image("migrate").command[0]]


def test_the_pooler_s_accounts_are_those_of_the_database() -> None:
    accounts = (DOCKER / "postgres/accounts.sh").read_text()
    for name in ("worker", "producer", "viewer"):
        assert f"CREATE ROLE shop_{name} LOGIN" in accounts
    from horsies_schema import grants

    settings = re.findall(r"ALTER ROLE <login account> SET (.*);", grants())
    assert settings == re.findall(r"ALTER ROLE shop_worker SET (.*);", accounts)


# -- the reader ----------------------------------------------------------------------------------


def test_an_unknown_instruction_is_refused(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM a AS b\nONBUILD RUN true\n")
    with pytest.raises(AssertionError, match="unknown instruction: ONBUILD"):
        dockerfile.read(tmp_path / "Dockerfile")


def test_durations() -> None:
    assert [dockerfile.seconds(text) for text in ("40s", "1m30s", "250ms")] == [40, 90, 0.25]
    with pytest.raises(AssertionError, match="not a duration"):
        dockerfile.seconds("40")
