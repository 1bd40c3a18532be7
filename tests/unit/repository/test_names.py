"""What is named exists, a job is done in one place, and nothing hides a failure."""

from __future__ import annotations

import pathlib
import re
import subprocess

import pytest
import yaml
from ansible_collections.gpufabric.rdma.tests.tools import check_tarball

ROOT = pathlib.Path(__file__).resolve().parents[3]
FILES = check_tarball.wanted_files(ROOT)
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PAGES = sorted(name for name in FILES if name.endswith(".md"))
SPECS = {path.parents[1].name: yaml.safe_load(path.read_text())["argument_specs"] for path in
         sorted(ROOT.glob("roles/*/meta/argument_specs.yml"))}  # fmt: skip
VARIABLES = {name for specs in SPECS.values() for spec in specs.values() for name in spec.get("options") or {}}


def lines(*patterns):
    """(file, line) of every line that git tracks in files of these patterns."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns]
    listing = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listing.split("\0")):
        if (ROOT / name).is_file():
            yield from ((name, line) for line in (ROOT / name).read_text(errors="replace").splitlines())


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_only_files_commands_and_playbooks_that_exist(page):
    assert check_tarball.page_problems(page, (ROOT / page).read_text(), FILES, TARGETS) == []


def test_a_looked_up_variable_is_documented():
    looked_up = re.compile(r"""__discovery_read['"]?\]?(?:\['|\.)variables(?:'\]\['|\.)(\w+)""")
    names = {name for _file, line in lines("roles", "playbooks") for name in looked_up.findall(line)}
    assert names
    assert names - VARIABLES == set()


def test_no_package_registry_is_named_by_its_host():
    """Mirrors come from the machine's own configuration, so that the lab works behind any of them."""
    hosts = re.compile(r"://[^/\s]*(" + "|".join(["debian", "ubuntu", "pypi", "npmjs", "golang"]) + r")\.(org|com|io)")
    assert {file for file, line in lines() if hosts.search(line)} == set()


def test_nothing_hides_a_failure():
    hidden = re.compile(
        r"ignore_errors:\s*(true|yes)|failed_when:\s*false|gpgcheck=0|validate_certs:\s*false|trusted=yes"
    )
    assert {file for file, line in lines("*.yml", "*.yaml", "*.j2") if hidden.search(line)} == set()


# What gives a second place away, where to look, and who holds the job.
ONE_PLACE = {
    "the routing table": (
        r"net/(ipv6_)?route\b",
        "plugins device_plugin",
        {"plugins/module_utils/hca/routes.py"},
    ),
    "writing files": (
        r"mkstemp|NamedTemporaryFile|os\.(replace|rename|symlink|link|chmod|fchmod)\(|symlink_to|\.touch\("
        r"|write_(text|bytes)\(|shutil\.(copy|move)|O_CREAT|open\((?!fileobj=).*\"[wxa]b?\"",
        "plugins/*.py",
        {
            "plugins/module_utils/_core/files.py",
            # Copies in a folder of their own, for one simulation.
            "plugins/module_utils/_driver/trial.py",
            # Output of a process that was started.
            "plugins/module_utils/_traffic/rounds.py",
        },
    ),
    "systemd's reload": (
        r"daemon.reload", "plugins roles playbooks", {"plugins/module_utils/_core/units.py"}
    ),
    "starting kubectl": (
        r"""\[[^\]]*["'](?:/usr/local/bin/)?kubectl["'](?!\],?\s*\})|command.*\bkubectl\b""",
        "roles/*/tasks playbooks",
        set(),
    ),
    "cordon and drain": (
        r"""["'](cordon|uncordon|drain)["'],|\bunschedulable\b""",
        "plugins roles playbooks",
        # The catalogue has the scheduler's own words.
        {"plugins/module_utils/_kube/node.py", "plugins/plugin_utils/_findings/catalogue.yml"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("job", ONE_PLACE)
def test_a_job_is_done_in_one_place(job):
    pattern, where, homes = ONE_PLACE[job]
    assert {file for file, line in lines(*where.split()) if re.search(pattern, line)} == homes


def test_a_task_that_runs_once_for_all_is_not_rescued():
    """Ansible runs the rescue of a run_once task on the first host only; the others go on as if nothing happened."""
    parts = ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks")

    def rescued(items, below=False, once=False):
        for item in items or []:
            here = once or bool(item.get("run_once"))
            if below and here and not any(part in item for part in parts):
                yield item.get("name")
            for part in parts:
                yield from rescued(item.get(part), (below or "rescue" in item) if part == "block" else below, here)

    files = [*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("playbooks/**/*.yml")]
    assert [name for path in files for name in rescued(yaml.safe_load(path.read_text()))] == []
