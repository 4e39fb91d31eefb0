"""The manifests of deploy/kubernetes agree with each other, and with the programs that they start."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import manifests
from tests.support.manifests import KUBERNETES, Manifest, containers, help_of, pod, rendered

PAGE = KUBERNETES.parents[1] / "docs/operations/deploying.md"
MARGIN_S = 10
"""What a grace period has beyond the worker's own: the kubelet sends the signal late, and the kernel ends processes."""


@pytest.fixture(params=["base", "overlays/example"])
def found(request: pytest.FixtureRequest) -> list[Manifest]:
    return rendered(KUBERNETES / request.param)


def by_kind(found: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {one["metadata"]["name"]: one for one in found if one["kind"] == kind}


def option(arguments: list[str], name: str) -> float:
    (value,) = [item.partition("=")[2] for item in arguments if item.startswith(f"{name}=")]
    return float(value)


def labels(manifest: Manifest) -> dict[str, str]:
    template = pod(manifest)
    assert template is not None
    return template["metadata"]["labels"]


def selects(selector: dict[str, Any], manifest: Manifest) -> bool:
    return selector["matchLabels"].items() <= labels(manifest).items()


def workloads(found: list[Manifest]) -> list[Manifest]:
    return [one for one in found if pod(one) is not None]


def test_every_file_is_used() -> None:
    for folder in KUBERNETES.glob("*/**/kustomization.yaml"):
        (given,) = manifests.load(folder)
        named = {name for name in given.get("resources", []) if name.endswith(".yaml")}
        assert named == {path.name for path in folder.parent.glob("*.yaml")} - {folder.name}
    assert [path.name for path in KUBERNETES.glob("*.yaml")] == []


def test_selectors_select_what_they_should(found: list[Manifest]) -> None:
    for one in by_kind(found, "Deployment").values():
        assert selects(one["spec"]["selector"], one)
        others = [other for other in workloads(found) if other is not one]
        assert not any(selects(one["spec"]["selector"], other) for other in others)
        for constraint in pod(one)["spec"].get("topologySpreadConstraints", []):  # type: ignore[index]
            assert selects(constraint["labelSelector"], one)
    for kind in ("PodDisruptionBudget", "PodMonitor"):
        for name, one in by_kind(found, kind).items():
            assert [
                each["metadata"]["name"] for each in workloads(found) if selects(one["spec"]["selector"], each)
            ] == [name]
    (policy,) = by_kind(found, "NetworkPolicy").values()
    assert all(selects(policy["spec"]["podSelector"], one) for one in workloads(found))


def test_ports_probes_and_the_policy_agree(found: list[Manifest]) -> None:
    (policy,) = by_kind(found, "NetworkPolicy").values()
    admitted = {item["port"] for rule in policy["spec"]["ingress"] for item in rule["ports"]}
    served: set[int] = set()
    for one in by_kind(found, "Deployment").values():
        (main,) = pod(one)["spec"]["containers"]  # type: ignore[index]
        ports = {port["name"]: port["containerPort"] for port in main.get("ports", [])}
        served |= set(ports.values())
        annotations = pod(one)["metadata"].get("annotations", {})  # type: ignore[index]
        assert {int(annotations["prometheus.io/port"])} == set(ports.values()) if ports else not annotations
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            check = main[probe]
            assert check["timeoutSeconds"] > 4  # /healthz itself waits up to 2 s for the event loop
            if "httpGet" in check:
                assert check["httpGet"]["port"] in ports
                assert check["httpGet"]["path"] == ("/readyz" if probe == "readinessProbe" else "/healthz")
            else:
                assert check["exec"]["command"][:2] == ["horsies", "health"]
        for name, flag in (("worker", "--metrics-port"), ("exporter", "--port")):
            if main["name"] == name:
                assert option(main["args"], flag) == ports["metrics"]
    assert served == admitted
    for one in by_kind(found, "PodMonitor").values():
        assert {item["port"] for item in one["spec"]["podMetricsEndpoints"]} == {"metrics"}


def test_a_pod_has_longer_to_stop_than_its_process_takes(found: list[Manifest]) -> None:
    for name in ("worker", "scheduler"):
        spec = pod(by_kind(found, "Deployment")[f"horsies-{name}"])["spec"]  # type: ignore[index]
        assert (
            spec["terminationGracePeriodSeconds"]
            >= option(spec["containers"][0]["args"], "--shutdown-timeout") + MARGIN_S
        )


def test_every_pod_is_locked_down(found: list[Manifest]) -> None:
    for one in workloads(found):
        spec = pod(one)["spec"]  # type: ignore[index]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert spec["serviceAccountName"] in by_kind(found, "ServiceAccount")
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        for container in containers(one):
            locked = container["securityContext"]
            assert locked["readOnlyRootFilesystem"] is True
            assert locked["allowPrivilegeEscalation"] is False
            assert locked["capabilities"] == {"drop": ["ALL"]}
            assert {"cpu", "memory"} == set(container["resources"]["requests"])
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes


def test_secrets_are_named_and_not_here(found: list[Manifest]) -> None:
    assert by_kind(found, "Secret") == {}
    named = {
        (item["valueFrom"]["secretKeyRef"]["name"], item["valueFrom"]["secretKeyRef"]["key"])
        for one in workloads(found)
        for container in containers(one)
        for item in container["env"]
    }
    for one in by_kind(found, "TriggerAuthentication").values():
        named |= {(item["name"], item["key"]) for item in one["spec"]["secretTargetRef"]}
    assert {name for name, _ in named} == {"horsies-database"}
    assert {key for _, key in named} <= set(re.findall(r"--from-literal=([a-z-]+)=", PAGE.read_text()))


def test_images_of_the_base_are_replaced_in_the_overlay() -> None:
    names = {container["image"] for one in rendered(KUBERNETES / "base") for container in containers(one)}
    (given,) = manifests.load(KUBERNETES / "overlays/example/kustomization.yaml")
    assert names == {image["name"] for image in given["images"]}


def test_every_deployment_that_imports_an_app_gets_that_of_the_overlay() -> None:
    deployments = by_kind(rendered(KUBERNETES / "base"), "Deployment")
    importing = {
        name
        for name, one in deployments.items()
        if any(":" in word for container in containers(one) for word in container["args"])
    }
    (given,) = manifests.load(KUBERNETES / "overlays/example/kustomization.yaml")
    assert importing == {patch["target"]["name"] for patch in given["patches"]}


def test_commands_are_ones_that_the_programs_know() -> None:
    """Every option stands in the help of its command."""
    for one in workloads(rendered(KUBERNETES / "base")):
        for container in containers(one):
            words = container["args"]
            verb = {"horsies-migrate": ["migrate", words[0]], "horsies-exporter": ["exporter"]}.get(
                container["image"], [words[0]]
            )
            options = [word.partition("=")[0] for word in words if word.startswith("--")]
            assert [word for word in options if not re.search(rf"{word}\b", help_of(verb))] == []


def test_the_autoscaler_scales_the_workers() -> None:
    found = rendered(KUBERNETES / "overlays/example")
    (scaled,) = by_kind(found, "ScaledObject").values()
    worker = by_kind(found, "Deployment")[scaled["spec"]["scaleTargetRef"]["name"]]
    assert "replicas" not in worker["spec"]
    assert scaled["spec"]["minReplicaCount"] >= 1
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["authenticationRef"]["name"] in by_kind(found, "TriggerAuthentication")
    window = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert window["stabilizationWindowSeconds"] >= pod(worker)["spec"]["terminationGracePeriodSeconds"]  # type: ignore[index]


def test_nodes_can_be_drained_at_the_lowest_number_of_replicas(found: list[Manifest]) -> None:
    """`kubectl drain` waits for ever for a pod whose budget allows no eviction."""
    lowest = {name: one["spec"].get("replicas", 1) for name, one in by_kind(found, "Deployment").items()}
    for scaled in by_kind(found, "ScaledObject").values():
        lowest[scaled["spec"]["scaleTargetRef"]["name"]] = scaled["spec"]["minReplicaCount"]
    budgets = by_kind(found, "PodDisruptionBudget")
    assert {"horsies-worker", "horsies-scheduler"} <= set(budgets)
    for name, one in budgets.items():
        spec = one["spec"]
        assert spec.get("maxUnavailable", lowest[name] - spec.get("minAvailable", 0)) >= 1
        assert "minAvailable" not in spec, "an overlay may have fewer replicas"


def test_a_patch_without_a_target_and_a_path_that_is_not_there_are_errors(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a}\n")
    patch = "patches:\n- target: {kind: ServiceAccount, name: %s}\n  patch: '[{op: remove, path: %s}]'"
    text = f"resources: [one.yaml]\n{patch}"
    for name, path, error in (("b", "/kind", AssertionError), ("a", "/spec", KeyError)):
        (tmp_path / "kustomization.yaml").write_text(text % (name, path))
        with pytest.raises(error):
            rendered(tmp_path)


# -- published schemas: `just manifests` ---------------------------------------------------------


def test_kubernetes_accepts_them(found: list[Manifest]) -> None:
    pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed: `just manifests` has it")
    for version in manifests.VERSIONS:
        assert manifests.problems_of_kubernetes(found, version) == []


def _no_selector(found: list[Manifest]) -> None:
    del by_kind(found, "Deployment")["horsies-worker"]["spec"]["selector"]


def _misspelt(found: list[Manifest]) -> None:
    pod(by_kind(found, "Deployment")["horsies-worker"])["spec"]["terminationGracePeriod"] = 45  # type: ignore[index]


def _wrong_type(found: list[Manifest]) -> None:
    by_kind(found, "PodDisruptionBudget")["horsies-worker"]["spec"]["maxUnavailable"] = [1]


@pytest.mark.parametrize("change", [_no_selector, _misspelt, _wrong_type])
def test_and_would_refuse_others(change: Callable[[list[Manifest]], None]) -> None:
    pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed: `just manifests` has it")
    found = rendered(KUBERNETES / "base")
    change(found)
    assert len(manifests.problems_of_kubernetes(found, manifests.VERSIONS[0])) == 1
