"""The trial beside the node, with real apt, gpg and dkms: each fault stops with its own message.

Nothing of this machine changes: apt and dkms work in folders of their own, which is what is tested.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver import packages
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver.proof import Proof, base_package
from ansible_collections.gpufabric.rdma.tests.driver import stack
from ansible_collections.gpufabric.rdma.tests.tools import kernel_headers

BASE = base_package("apt")
FIRST, SECOND = ({BASE: f"{stack.RELEASES[release]}-1"} for release in ("3.2.1", "3.3.0"))


@pytest.fixture(scope="session")
def repositories(tmp_path_factory):
    for program in ("gpg", "apt-get", "dpkg-deb"):
        if not shutil.which(program):
            pytest.skip(f"not verified: no {program} on this machine")
    folder = tmp_path_factory.mktemp("repositories")
    return {"folder": folder, **stack.build_all(folder)}


@pytest.fixture(scope="session")
def dkms():
    """The real dkms, a shell script: this machine's, else the Debian package unpacked into .cache."""
    installed = shutil.which("dkms")
    if installed:
        return installed
    folder = kernel_headers.CACHE.parent / "dkms"
    if not (folder / "usr/sbin/dkms").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for command in (["apt-get", "-q", "download", "dkms"], ["sh", "-c", "dpkg-deb --extract dkms_*.deb ."]):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"not verified: no dkms to be had ({done.stderr.strip()[-200:]})")
    return str(folder / "usr/sbin/dkms")


def run(argv, environment=None, cwd=None):
    more = {**os.environ, "LC_ALL": "C", **(environment or {})}
    done = subprocess.run(argv, env=more, cwd=cwd, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def proof(repositories):
    """A function: the proof of one repository, prepared."""
    made = []

    def prepared(name, key="key", run=run):
        proof = Proof(run).__enter__()
        made.append(proof)
        fingerprint = repositories["fingerprint" if key == "key" else "stranger"]
        repository = {
            "url": f"file://{repositories['repositories'][name]}/",
            "key": (repositories["folder"] / f"{key}.asc").read_text(),
            "fingerprints": [fingerprint],
            "label": "DOCA-HOST*",
        }
        proof.prepare(repository, "doca test")
        proof.repository = repository
        return proof

    yield prepared
    for proof in made:
        proof.__exit__()
        assert not os.path.exists(proof.directory)


def refused(action, *arguments):
    with pytest.raises(Refused) as caught:
        action(*arguments)
    return caught.value.findings[0]


def test_a_good_repository_passes_up_to_the_download(proof, repositories):
    good = proof("first")
    good.update(good.repository)
    exact = good.candidate("doca-ofed", "3.2.1", None)
    assert exact == "3.2.1-044000"
    coming = good.simulate([f"doca-ofed={exact}"])
    assert coming[BASE] == FIRST[BASE]
    assert coming["doca-ofed"] == exact
    (archive,) = good.fetch(FIRST)
    original = pathlib.Path(repositories["repositories"]["first"]) / pathlib.Path(archive).name
    assert pathlib.Path(archive).read_bytes() == original.read_bytes()


def test_a_repository_signed_by_someone_else(proof):
    strange = proof("strange")
    finding = refused(strange.update, strange.repository)
    assert finding.wanted == f"signed by the key {strange.repository['fingerprints'][0]}"
    assert "NO_PUBKEY" in finding.seen or "not signed" in finding.seen
    assert re.search(r"\n[0-9A-F]{16,40}: in no source that the lock names", finding.seen), finding.seen
    assert "driver_repository_fingerprint" in finding.next_step


def test_a_repository_that_is_not_there(proof):
    gone = proof("first")
    source = pathlib.Path(gone.directory) / "sources.list.d/gpufabric-rdma-driver.sources"
    source.write_text(source.read_text().replace("/first/", "/nowhere/"))
    finding = refused(gone.update, gone.repository)
    assert finding.wanted == "reachable from this node"


def test_a_version_that_is_not_there(proof):
    first = proof("first")
    first.update(first.repository)
    finding = refused(first.candidate, "doca-ofed", "3.3.0", None)
    assert finding.seen == "the repository offers 3.2.1-044000"


def test_a_sha256_that_is_not_the_locks(proof):
    first = proof("first")
    first.update(first.repository)
    finding = refused(first.candidate, BASE, None, "0" * 64)
    assert finding.wanted == f"SHA-256 {'0' * 64}, as in the lock"
    assert "in the repository's signed index" in finding.seen


def test_a_package_that_is_not_what_the_index_promises(proof):
    altered = proof("altered")
    altered.update(altered.repository)
    finding = refused(altered.fetch, SECOND)
    assert finding.wanted == "the bytes that the repository's signed index promises"
    assert "Hash Sum mismatch" in finding.seen


def test_headers_that_no_archive_has(proof):
    first = proof("first")
    finding = refused(first.tools, ["linux-headers-5.99.0-1-lost", "make"])
    assert finding.object == "kernel headers for 5.99.0-1-lost"


def test_a_package_that_would_drive_another_one_out(proof, repositories, tmp_path):
    """apt would remove make for it, which was not requested."""
    folder = tmp_path / "greedy"
    key = stack.Key(repositories["folder"] / "key")
    greedy = stack.Repository(folder).package("doca-ofed", "9.9", {}, {}, "Conflicts: make").publish(key)
    key.close()
    proved = proof("first")
    source = pathlib.Path(proved.directory) / "sources.list.d/gpufabric-rdma-driver.sources"
    source.write_text(source.read_text().replace(proved.repository["url"], greedy.url))
    proved.update(proved.repository)
    finding = refused(proved.simulate, ["doca-ofed=9.9"])
    assert "apt would remove" in finding.seen
    assert "make" in finding.seen


def test_a_downgrade_fetches_the_version_that_would_be_installed(proof, repositories, tmp_path):
    """Both versions are known to apt, the newer is installed; each part of the trial has to mean the older."""
    status = tmp_path / "status"
    installed = pathlib.Path("/var/lib/dpkg/status").read_text()
    for release, (package, version, depends) in {
        "dkms": ("dkms", "3.0.10-8", ""),
        "kernel": (BASE, SECOND[BASE], "Depends: dkms\n"),
        "anchor": ("doca-ofed", "3.3.0-044000", f"Depends: {BASE} (= {SECOND[BASE]})\n"),
    }.items():
        installed += (
            f"\nPackage: {package}\nStatus: install ok installed\nPriority: optional\nMaintainer: x <x@test.invalid>\n"
            f"Architecture: all\nVersion: {version}\n{depends}Description: {release}\n"
        )
    status.write_text(installed)
    first = proof("first")
    with (pathlib.Path(first.directory) / "apt.conf").open("a") as conf:
        conf.write(f'Dir::State::status "{status}";\n')
    first.update(first.repository)
    exact = first.candidate("doca-ofed", "3.2.1", None)
    coming = first.simulate([f"doca-ofed={exact}"], packages.downgrade_pins(first.repository["label"]))
    assert (coming["doca-ofed"], coming[BASE]) == ("3.2.1-044000", FIRST[BASE])
    (archive,) = first.fetch({BASE: coming[BASE]})
    assert pathlib.Path(archive).name == f"{BASE}_{FIRST[BASE]}_all.deb"


def with_headers(dkms, headers):
    """Runs dkms on headers that are not this machine's kernel's."""

    def here(argv, environment=None, cwd=None):
        if argv[0] == "dkms":
            argv = [dkms, *argv[1:], *(["--kernelsourcedir", str(headers)] if argv[1] == "build" else [])]
        return run(argv, environment, cwd)

    return here


def test_sources_that_build_are_built_and_leave_nothing(proof, headers, kernel, dkms):
    good = proof("first", run=with_headers(dkms, headers))
    good.update(good.repository)
    good.build(good.fetch(FIRST)[0], [kernel], "x86_64")
    built = sorted(path.name for path in pathlib.Path(good.directory).glob("dkms/**/module/*.ko*"))
    assert [name.partition(".ko")[0] for name in built] == ["mlx5_core", "mlx5_ib", "mlx_compat"]
    assert not pathlib.Path("/var/lib/dkms/mlnx-ofed-kernel").exists()


def test_a_build_that_fails_shows_the_error_of_the_compiler(proof, headers, kernel, dkms):
    broken = proof("broken", run=with_headers(dkms, headers))
    broken.update(broken.repository)
    finding = refused(broken.build, broken.fetch(SECOND)[0], [kernel], "x86_64")
    assert finding.object == "DKMS module mlnx-ofed-kernel 26.01.OFED.26.01.1.0.0.1"
    assert finding.wanted == f"built for kernel {kernel}"
    assert "the node's driver is unchanged" in finding.seen
    assert "this kernel has no struct devlink_port_ops" in finding.seen


@pytest.mark.parametrize("signature", ["foreign", "none", "no release file"])
def test_a_repository_out_of_a_verified_package_needs_no_signature(repositories, tmp_path, signature):
    folder = tmp_path / "repo"
    shutil.copytree(repositories["repositories"]["strange"], folder)
    if signature != "foreign":
        text = (folder / "InRelease").read_text()
        (folder / "InRelease").unlink()
        if signature == "none":
            body = text.partition("\n\n")[2].partition("-----BEGIN PGP SIGNATURE")[0]
            (folder / "Release").write_text(body)
    trusted = {"url": f"file://{folder}/", "key": "", "fingerprints": [], "label": "DOCA-HOST*", "trusted": True}
    with Proof(run) as proof:
        proof.prepare(trusted, "doca test")
        proof.update(trusted)
        assert proof.candidate("doca-ofed", "3.3.0", None) == "3.3.0-044000"
        (archive,) = proof.fetch(SECOND)
        assert os.path.exists(archive)
