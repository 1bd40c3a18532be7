"""Promises about the whole repository that a text search can keep."""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[3]


def tracked(*patterns):
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file()]


def lines(*patterns):
    for path in tracked(*patterns):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            yield f"{path.relative_to(ROOT)}:{number}", line


def test_no_package_registry_is_named_by_its_host():
    """Mirrors come from the machine's own configuration, so that the lab works behind any of them."""
    hosts = re.compile(r"://[^/\s]*(" + "|".join(["debian", "ubuntu", "pypi", "npmjs", "golang"]) + r")\.(org|com|io)")
    assert [place for place, line in lines() if hosts.search(line)] == []


def test_nothing_hides_a_failure():
    hidden = re.compile(
        r"ignore_errors:\s*(true|yes)|failed_when:\s*false|gpgcheck=0|validate_certs:\s*false|trusted=yes"
    )
    found = [place for place, line in lines("*.yml", "*.yaml", "*.j2") if hidden.search(line)]
    assert [place for place in found if not place.startswith("tests/unit/repository/test_repository.py")] == []


def test_no_unfinished_marks_are_left():
    marks = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
    assert [place for place, line in lines("*.py", "*.yml", "*.sh", "lab/*", "Makefile") if marks.search(line)] == []


# Translated word by word; beside each what a native speaker would write.
TRANSLATED = {
    r"belongs? into\b": "belongs in",
    r"hangs since\b": "has been hanging for",
    r"goes on where it stoo" + r"d": "picks up where it left off",
    r"\b(is|was) no (failure|difference|label|kind)\b": "is not a failure",
    r"no valid (JSON|YAML)": "not valid JSON",
    r"nobody liste" + r"ns": "nothing is listening",
    r"out of reach": "unavailable",
    r"\bsomebody\b": "someone",
    r"(?i)\bmen" + r"d(s|ed|ing)?\b": "fix, correct, revert",
    r"(?i)\bhopele" + r"ss": "unrecoverable",
    r"(?i)\bpatient" + r"ly\b": "until, with retries",
    r"(?i)\binsis" + r"ts?\b": "retry, require",
    r"In the making": "what stands, in the present tense",
}


def translated(text):
    return [phrase for phrase in TRANSLATED if re.search(phrase, text)]


def test_the_english_is_not_translated_word_by_word():
    own = "tests/unit/repository/test_repository.py"
    found = [place for place, line in lines(":!*go.sum", ":!*.png", ":!tests/fixtures/hosts") if translated(line)]
    assert [place for place in found if not place.startswith(own)] == []
    assert translated("it hangs since" + " 5 s") == [r"hangs since\b"]


def pipeline_stages():
    """Make targets of .ci/run without the set-up, and those that `make test` runs side by side."""
    lines = re.findall(r"^\s*(?:stage|rest) .*", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    targets = [target for line in lines for target in re.findall(r"(?<!\()make ([\w-]+)(?: &&)?$", line)]
    text = (ROOT / "tests/run-test").read_text().replace("\\\n", "")
    lanes = re.findall(r"^(?:first|second)=\((.+)\)$", text, re.MULTILINE)
    return targets + [word for lane in lanes for word in shlex.split(lane)[::2]]


def workflow_stages(text):
    return yaml.safe_load(text)["jobs"]["stage"]["strategy"]["matrix"]["target"]


def test_the_workflow_has_the_stages_of_the_pipeline():
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    stages = pipeline_stages()
    assert len(stages) > 8
    assert sorted(stages) == sorted(workflow_stages(workflow))
    assert sorted(stages) != sorted(workflow_stages(workflow.replace("          - sanity\n", "")))


@pytest.mark.parametrize("path", [".github/workflows/ci.yml", "docs/examples/drift/github-actions.yml"])
def test_the_workflow_takes_only_pinned_actions_and_keeps_no_credentials(path):
    workflow = (ROOT / path).read_text()
    used = re.findall(r"uses: (\S+)", workflow)
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action)] == []
    assert workflow.count("actions/checkout@") == workflow.count("persist-credentials: false")


def test_the_pipeline_runs_nowhere_but_in_its_checkout(tmp_path):
    """Without its checkout it would build and remove wherever the caller stands."""
    script = tmp_path / "gone/.ci/run"
    script.parent.mkdir(parents=True)
    start = (ROOT / ".ci/run").read_text().partition("\ndeclare ")[0]
    script.write_text(start.replace("$0", str(tmp_path / "nowhere/run")) + "\necho went on\n")
    done = subprocess.run(["bash", script], capture_output=True, text=True, check=False)
    assert (done.returncode != 0, done.stdout) == (True, "")


def last_stage(tmp_path, elapsed, versions):
    """The table's line of .ci/run's last stage, started after so many seconds, with a make that does nothing."""
    (tmp_path / "tests").mkdir(exist_ok=True)
    (tmp_path / "tests/versions.txt").write_text(versions)
    (tmp_path / "make").write_text("#!/bin/sh\n")
    (tmp_path / "make").chmod(0o755)
    functions = (ROOT / ".ci/run").read_text().partition("\ndeclare ")[2].partition("\nmkdir ")[0]
    for name in ("stages", "pythons"):
        (tmp_path / f"tests/{name}.sh").write_text((ROOT / f"tests/{name}.sh").read_text())
    script = f'declare {functions}\nSECONDS={elapsed}; newest_core_stage newest; echo "${{report[*]}}"'
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": os.environ["HOME"]}
    return subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()[-1]


def test_the_last_stage_of_the_pipeline_says_what_it_could_not_run(tmp_path):
    here = f"2.21.5 {sys.version_info[0]}.{sys.version_info[1]}"
    assert re.search(r"newest .*  ok$", last_stage(tmp_path, 0, here))
    assert re.search(r"not verified: 0 minutes are left, 8 at least are needed", last_stage(tmp_path, 76 * 60, here))
    assert "not verified: no Python 3.99 on this machine" in last_stage(tmp_path, 0, "2.21.5 3.99")


def test_no_script_goes_on_where_it_could_not_change_folder():
    """run-gates cleans what it stands in: without its copy that would be the checkout."""
    scripts = [*sorted(ROOT.glob("tests/run-*")), ROOT / ".ci/run"]
    assert len(scripts) > 5
    unguarded = [
        f"{path.name}: {line}"
        for path in scripts
        if "set -e" not in path.read_text()
        for line in re.findall(r"^cd .*$", path.read_text(), re.MULTILINE)
        if not line.endswith("|| exit")
    ]
    assert unguarded == []


def fragment_faults(text, sections):
    """What the release could not take from a fragment: ["fixes: no section"]."""
    try:
        entries = yaml.safe_load(text)
    except yaml.YAMLError as error:
        return [str(error)]
    if not isinstance(entries, dict):
        return ["no sections"]
    unknown = [f"{name}: no section" for name in entries if name not in sections]
    return unknown + [
        f"{name}: no list of texts"
        for name, texts in entries.items()
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts)
    ]


def test_each_changelog_fragment_can_be_taken_into_a_release():
    config = yaml.safe_load((ROOT / "changelogs/config.yaml").read_text())
    sections = {name for name, _title in config["sections"]}
    faults = {path.name: fragment_faults(path.read_text(), sections) for path in tracked("changelogs/fragments/*")}
    assert {name: found for name, found in faults.items() if found} == {}
    assert "mapping values" in fragment_faults("bugfixes:\n  - k3s - one\n    two: three.\n", sections)[0]
    assert fragment_faults("fixes: [One.]", sections) == ["fixes: no section"]
    assert fragment_faults("bugfixes:\n  - one: two\n", sections) == ["bugfixes: no list of texts"]


# Jobs that are done in one place: what gives a second one away, and who may hold it.
ONE_PLACE = {
    "the routing table": (
        r"net/(ipv6_)?route\b",
        "plugins device_plugin lab",
        # The lab reads the table of a captured machine, laid out below its own folder.
        ("plugins/module_utils/hca/routes.py", "lab/nspawn/machine.py"),
    ),
    "writing files": (
        r"mkstemp|NamedTemporaryFile|os\.(replace|rename|symlink|link|chmod|fchmod)\(|symlink_to|\.touch\("
        r"|write_(text|bytes)\(|shutil\.(copy|move)|O_CREAT|open\((?!fileobj=).*\"[wxa]b?\"",
        "plugins/*.py",
        (
            "plugins/module_utils/_core/files.py",
            # Package lists and archives that are copied or linked into a folder of its own, for one simulation.
            "plugins/module_utils/_driver/trial.py",
            # What a process that was started says, for as long as it runs.
            "plugins/module_utils/_traffic/fabric.py",
            "plugins/module_utils/_traffic/rounds.py",
        ),
    ),
    "what a stage took": (r"min %[0]2d s|SECONDS[^/]*/ [6]0", "tests lab .ci Makefile", ("tests/stages.sh",)),
    "systemd's reload": (r"daemon.reload", "plugins roles playbooks", ("plugins/module_utils/_core/units.py",)),
}


@pytest.mark.parametrize("job", ONE_PLACE)
def test_a_job_is_done_in_one_place(job):
    pattern, where, homes = ONE_PLACE[job]
    found = {place.partition(":")[0] for place, line in lines(*where.split()) if re.search(pattern, line)}
    assert sorted(found) == sorted(homes)
