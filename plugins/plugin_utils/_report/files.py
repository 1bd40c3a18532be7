"""Files of a report on the controller: where the page goes, reading source documents, writing."""

import datetime
import json
import os
import pathlib
from typing import Any, Optional

import yaml
from ansible.errors import AnsibleActionFail

from ...module_utils._core import files as core_files
from ...module_utils._core.change import Finding
from . import document

_MADE_BY = {
    "results": "playbooks/verify.yml with verification_results",
    "drift": "playbooks/drift.yml",
    "matrix": "the bandwidth matrix",
}


def write(texts: dict, check_mode: bool) -> dict:
    """Effect: write each file that differs, atomically; in check mode only list them. changed and files."""
    files = []
    for name, text in texts.items():
        path, data = pathlib.Path(os.path.abspath(name)), text.encode()
        changed = not (path.is_file() and path.read_bytes() == data)
        if changed and not check_mode:
            _replace(path, data)
        files.append({"path": str(path), "bytes": len(data), "changed": changed})
    return {"changed": any(file["changed"] for file in files), "files": files}


def as_json(value) -> str:
    return json.dumps(value, indent=1, ensure_ascii=True) + "\n"


def _replace(path: pathlib.Path, data: bytes) -> None:
    try:
        core_files.put(os.fspath(path), data)
    except OSError as error:
        raise AnsibleActionFail(
            f"{path}: wanted to write it on the controller, seen: {error.strerror}; use a folder that you may write to"
        ) from error


def page_path(file: Optional[str], sources: list[str]) -> pathlib.Path:
    """The absolute path of the page: the given one, else next to the first existing inventory (never inside a folder of
    inventories, where Ansible would read it), else in the working directory.
    """
    if file:
        return pathlib.Path(os.path.abspath(file))
    for path in map(pathlib.Path, map(os.path.abspath, sources)):
        if path.exists():
            return path.with_name(f"{path.name if path.is_dir() else path.stem}-report.html")
    return pathlib.Path("report.html").absolute()


def unwritable(path: pathlib.Path, what: str, step: str) -> list[Finding]:
    """Why a file cannot be written at this absolute path."""
    folder = next(parent for parent in path.parents if parent.exists())
    if core_files.is_special(os.fspath(path)) and os.access(path, os.W_OK) and not path.is_dir():
        return []
    if path.is_dir() or not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        seen = "a folder" if path.is_dir() else f"{folder} takes no file"
        return [Finding(f"{what} {path}", "a file that can be written on the controller", seen, step)]
    return []


def kubeconfig(given: Optional[str]) -> list[Finding]:
    """Why the administrator's kubeconfig cannot be written. given: k3s_kubeconfig; it may be a file of the user's."""
    if given == "":
        return []
    path = pathlib.Path(os.path.abspath(os.path.expanduser(given or "~/.kube/gpufabric")))
    step = "set k3s_kubeconfig to a new path, or to an empty string to write none"
    wrong = unwritable(path, "the kubeconfig", step)
    if given and not wrong and path.exists():
        try:
            names = [cluster["name"] for cluster in yaml.safe_load(path.read_bytes())["clusters"]]
        except (OSError, LookupError, TypeError, yaml.YAMLError):
            names = []
        if names != ["gpufabric"]:
            wanted, seen = "no file, or one with only the cluster gpufabric", "another one, which would be lost"
            wrong = [Finding(f"the kubeconfig {path}", wanted, seen, step, "k3s:kubeconfig")]
    return wrong


def now() -> str:
    """UTC, ISO 8601."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def load(kind: str, path: Optional[str]) -> tuple[Any, Optional[Finding]]:
    """(document, why the file is not one)"""
    wanted = f"the {kind} document that {_MADE_BY[kind]} writes"
    if not path:
        step = "run ansible-playbook gpufabric.rdma.verify -e verification_results=results.json and give that file"
        return None, Finding(f"variable report_{kind}", wanted, "nothing", step)
    try:
        content = json.loads(pathlib.Path(path).read_bytes())
        return content, document.finding(kind, content)
    except OSError as error:
        seen = error.strerror
    except ValueError as error:
        seen = f"not valid JSON: {error}"
    return None, Finding("the file", wanted, seen, document.ANEW)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, _data):
        return True

    def text(self, value):
        return self.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _Dumper.text)


def capture_text(fixture: dict) -> str:
    """YAML of a capture of hca_facts.

    Multi-line texts are blocks and everything else is on one line, so that two captures can be compared.
    """
    # The controller tags the values it templates; YAML needs plain ones.
    plain = json.loads(json.dumps(fixture))
    return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True, explicit_start=True)
