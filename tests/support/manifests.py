"""The manifests of deploy/kubernetes, put together as kustomize would, and checked against published schemas.

It knows what these files use (resources, components, labels, namespace, images, patches by path) and refuses the rest.
`just manifests` runs it: kubernetes-validate, from PyPI, carries the schemas of Kubernetes; the packages
@kubernetes-models/keda and @kubernetes-models/prometheus-operator, from npm, those of the other kinds.
"""

import contextlib
import io
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

KUBERNETES = Path(__file__).parents[2] / "deploy/kubernetes"
Manifest = dict[str, Any]
_KNOWN = {"apiVersion", "kind", "labels", "namespace", "resources", "components", "images", "patches"}
NPM = {
    "keda.sh": "@kubernetes-models/keda@2.0.0",
    "monitoring.coreos.com": "@kubernetes-models/prometheus-operator@6.0.0",
}
VERSIONS = ("1.29", "1.33", "1.37")


def load(path: Path) -> list[Manifest]:
    return [one for one in YAML(typ="safe").load_all(path.read_text()) if one is not None]


def rendered(folder: Path, onto: list[Manifest] | None = None) -> list[Manifest]:
    """The manifests of a kustomization; of a component, those that it is laid over included."""
    (given,) = load(folder / "kustomization.yaml")
    assert set(given) <= _KNOWN, set(given) - _KNOWN
    found = list(onto or [])
    for name in given.get("resources", []):
        path = folder / name
        found += rendered(path) if path.is_dir() else deepcopy(load(path))
    for name in given.get("components", []):
        found = rendered(folder / name, found)
    for entry in given.get("labels", []):
        for one in found:
            one["metadata"].setdefault("labels", {}).update(entry["pairs"])
    for one in found:
        if "namespace" in given:
            one["metadata"]["namespace"] = given["namespace"]
        for container in containers(one):
            for image in given.get("images", []):
                if container["image"] == image["name"]:
                    container["image"] = f"{image['newName']}:{image['newTag']}"
    for patch in given.get("patches", []):
        targets = [
            one
            for one in found
            if (one["kind"], one["metadata"]["name"]) == (patch["target"]["kind"], patch["target"]["name"])
        ]
        assert targets, f"{folder}: a patch has no target: {patch['target']}"
        for one in targets:
            for step in YAML(typ="safe").load(patch["patch"]):
                _apply(one, step)
    return found


def _apply(manifest: Manifest, step: dict[str, Any]) -> None:
    *parents, last = step["path"].lstrip("/").split("/")
    place: Any = manifest
    for part in parents:
        place = place[int(part) if isinstance(place, list) else part]
    key: Any = int(last) if isinstance(place, list) else last
    place[key]  # a path that is not there is an error, as with kustomize
    if step["op"] == "remove":
        del place[key]
    else:
        assert step["op"] == "replace", step
        place[key] = step["value"]


def pod(manifest: Manifest) -> Manifest | None:
    """The template of its pods."""
    return manifest["spec"]["template"] if manifest["kind"] in ("Deployment", "Job") else None


def containers(manifest: Manifest) -> list[Manifest]:
    template = pod(manifest)
    if template is None:
        return []
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def problems_of_kubernetes(manifests: list[Manifest], version: str) -> list[str]:
    """Of the kinds that Kubernetes itself has, by the strict schemas: unknown fields are errors."""
    import kubernetes_validate

    found: list[str] = []
    for one in manifests:
        if one["apiVersion"].partition("/")[0] in NPM:
            continue
        try:
            kubernetes_validate.validate(one, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            found.append(f"{one['kind']} {one['metadata']['name']}: {error.message} at {list(error.path)}")
    return found


_CHECK = """
import { readFileSync } from "fs";
const packages = JSON.parse(process.argv[1]);
const found = [];
for (const one of JSON.parse(readFileSync(0, "utf8"))) {
  const group = one.apiVersion.split("/")[0];
  const Kind = (await import(`${packages[group]}/${one.apiVersion}`))[one.kind];
  try { new Kind(one).validate(); } catch (error) { found.push(`${one.kind} ${one.metadata.name}: ${error.message}`); }
}
console.log(JSON.stringify(found));
"""


def problems_of_other_kinds(manifests: list[Manifest]) -> list[str]:
    """Of the kinds of KEDA and of Prometheus' operator."""
    theirs = [one for one in manifests if one["apiVersion"].partition("/")[0] in NPM]
    names = json.dumps({group: package.rpartition("@")[0] for group, package in NPM.items()})
    with tempfile.TemporaryDirectory() as folder:
        install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", *NPM.values()]
        subprocess.run(install, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        done = subprocess.run(
            ["node", "--input-type=module", "-e", _CHECK, names],
            cwd=folder,
            input=json.dumps(theirs),
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@cache
def _help(words: tuple[str, ...]) -> str:
    from horsies_schema.cli import main as migrate
    from horsies_worker.cli import exporter_main, scheduler_main, worker_main

    verbs = {"worker": worker_main, "scheduler": scheduler_main, "exporter": exporter_main, "migrate": migrate}
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
        verbs[words[0]]([*words[1:], "--help"])
    assert told.getvalue(), words
    return told.getvalue()


def help_of(words: Sequence[str]) -> str:
    """What `horsies WORDS --help` prints."""
    return _help(tuple(words))


def main() -> int:
    problems: list[str] = []
    for name in ("base", "overlays/example"):
        manifests = rendered(KUBERNETES / name)
        for version in VERSIONS:
            problems += [f"{name}, Kubernetes {version}: {one}" for one in problems_of_kubernetes(manifests, version)]
        sys.stdout.write(f"{name}: {len(manifests)} manifests, against Kubernetes {', '.join(VERSIONS)}\n")
    if shutil.which("npm") is None:
        sys.stdout.write("npm is missing: the kinds of KEDA and Prometheus were not checked\n")
    else:
        problems += problems_of_other_kinds(rendered(KUBERNETES / "overlays/example"))
        sys.stdout.write(f"overlays/example: the kinds of {', '.join(NPM.values())}\n")
    sys.stdout.write("".join(f"{one}\n" for one in problems) or "no problem\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
