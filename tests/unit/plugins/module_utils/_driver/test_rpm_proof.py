"""The trial on the dnf path with real rpmbuild, rpmsign, rpmkeys, rpm2cpio and cpio. dnf itself is a double: it has
"downloaded" what lies in its cache, and repoquery knows what it is told.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver import packages
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver.rpm_proof import RpmProof
from ansible_collections.gpufabric.rdma.tests.driver import stack

NAME = "mlnx-ofa_kernel-dkms"
SPEC = """Name: {name}
Version: 25.10
Release: 1.el9
Summary: stand-in of the driver tests
License: GPL-2.0-only
BuildArch: noarch
%description
Stand-in.
%install
mkdir -p %{{buildroot}}/usr/src/mlnx-ofa_kernel-25.10
echo 'PACKAGE_NAME="mlnx-ofa_kernel"' > %{{buildroot}}/usr/src/mlnx-ofa_kernel-25.10/dkms.conf
%files
/usr/src/mlnx-ofa_kernel-25.10
"""


def called(argv, **more):
    done = subprocess.run(argv, capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """{keys, signed, unsigned}: two keys, the base package signed by the first, and the same without a signature."""
    for program in ("gpg", "rpmbuild", "rpmsign", "rpmkeys", "rpm2cpio", "cpio"):
        if not shutil.which(program):
            pytest.skip(f"not verified: no {program} on this machine")
    folder = tmp_path_factory.mktemp("rpm")
    (folder / "base.spec").write_text(SPEC.format(name=NAME))
    called(["rpmbuild", "-bb", "--define", f"_topdir {folder}/top", str(folder / "base.spec")])
    (built,) = folder.glob("top/RPMS/*/*.rpm")
    keys = [stack.Key(folder / name, f"{name} <{name}@test.invalid>", "rsa3072") for name in ("one", "other")]
    for name in ("signed", "unsigned"):
        (folder / name).mkdir()
        shutil.copy(built, folder / name)
    (signed,), (unsigned,) = (list(folder.glob(f"{name}/*.rpm")) for name in ("signed", "unsigned"))
    identity = [
        "--define",
        f"__gpg {shutil.which('gpg')}",
        "--define",
        f"_gpg_name {keys[0].fingerprint}",
        "--define",
        f"_gpg_path {keys[0].home}",
    ]
    called(["rpmsign", *identity, "--addsign", str(signed)], env={**os.environ, "GNUPGHOME": str(keys[0].home)})
    yield {"keys": keys, "signed": str(signed), "unsigned": str(unsigned)}
    for key in keys:
        key.close()


class Node:
    """Runs rpm's tools; dnf and dkms are doubles that write down how they were called."""

    def __init__(self, out="", code=0):
        self.out, self.code, self.calls = out, code, []

    def __call__(self, argv, environment=None, cwd=None):
        self.calls.append(argv)
        if argv[0] in ("dnf", "dkms"):
            return self.code, self.out, ""
        done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr


def repository(key, *accepted):
    return {
        "url": "https://mirror.example.net/doca/",
        "key": key.public,
        "fingerprints": [one.fingerprint for one in accepted],
    }


def refused(action, *arguments):
    with pytest.raises(Refused) as caught:
        action(*arguments)
    return caught.value.findings[0]


def test_a_package_signed_by_the_key_passes_and_is_built_on_trial(made):
    node = Node()
    with RpmProof(node) as proof:
        proof.prepare(repository(made["keys"][0], made["keys"][0]), "doca 3.2.3")
        proof.signatures([made["signed"]], repository(made["keys"][0], made["keys"][0]))
        proof.build([made["signed"]], ["5.14.0-570.el9.x86_64"], "x86_64")
        sources = pathlib.Path(proof.directory) / "root/usr/src"
        assert (sources / "mlnx-ofa_kernel-25.10/dkms.conf").exists()
        assert not list(pathlib.Path(proof.directory).glob("root/.cpio"))
    built = [call[1] for call in node.calls if call[0] == "dkms"]
    assert built == ["add", "build"]
    assert not os.path.exists(proof.directory)


@pytest.mark.parametrize(("package", "key"), [("signed", 1), ("unsigned", 0)])
def test_another_signature_or_none_stops_it(made, package, key):
    wanted = repository(made["keys"][key], made["keys"][key])
    with RpmProof(Node()) as proof:
        proof.prepare(wanted, "doca")
        finding = refused(proof.signatures, [made[package]], wanted)
    assert finding.wanted == f"signed by the key {made['keys'][key].fingerprint}"
    assert "driver_repository_fingerprint" in finding.next_step


def test_a_build_that_fails_stops_it_before_the_change(made):
    with RpmProof(Node(code=1, out="x.c:1: error: no such member")) as proof:
        proof.prepare(repository(made["keys"][0]), "doca")
        finding = refused(proof.build, [made["signed"]], ["5.14.0-570.el9.x86_64"], "x86_64")
    assert "known to dkms" in finding.wanted


def test_a_truncated_package_is_no_rpm(made, tmp_path):
    cut = tmp_path / f"{NAME}-1.rpm"
    cut.write_bytes(pathlib.Path(made["signed"]).read_bytes()[:2000])
    with RpmProof(Node()) as proof:
        proof.prepare(repository(made["keys"][0]), "doca")
        assert refused(proof.build, [str(cut)], [], "x86_64").wanted == "an RPM"


def test_the_repositories_of_the_trial_are_the_nodes_and_the_new_one(made, tmp_path):
    (tmp_path / "baseos.repo").write_text("[baseos]\n")
    (tmp_path / os.path.basename(packages.REPOSITORIES["dnf"])).write_text("[old]\n")
    with RpmProof(Node(), etc=str(tmp_path)) as proof:
        proof.prepare(repository(made["keys"][0]), "doca 3.2.3")
        folder = pathlib.Path(proof.directory)
        assert sorted(path.name for path in folder.glob("repos/*")) == ["baseos.repo", "gpufabric-rdma-driver.repo"]
        text = (folder / "repos/gpufabric-rdma-driver.repo").read_text()
        assert f"gpgkey=file://{folder}/key.asc" in text
        assert (folder / "key.asc").read_text() == made["keys"][0].public


REMOVES = """Dependencies resolved.
================================================================================
 Package            Arch     Version            Repository                 Size
================================================================================
Installing:
 doca-ofed          x86_64   3.2.3-019000       gpufabric-rdma-driver      10 k
Removing dependent packages:
 lustre-client      x86_64   2.15.4             @lustre                    5 M
 mlnx-tools         noarch   24.10              @mlnx                      1 M

Transaction Summary
"""


def test_what_dnf_would_remove_beside_the_stack_stops_it():
    with RpmProof(Node(out=REMOVES)) as proof:
        finding = refused(proof.fetch, ["doca-ofed-3.2.3*"])
    assert finding.seen == "dnf would remove lustre-client"


@pytest.mark.parametrize(
    ("name", "says"), [("dkms", "epel-release"), ("kernel-devel-5.14.0-1.el9.x86_64", "boot another kernel")]
)
def test_a_tool_that_no_repository_has(name, says):
    with RpmProof(Node(out="\n")) as proof:
        assert says in refused(proof.tools, [name]).next_step


def test_what_was_downloaded_is_taken_from_the_cache(tmp_path):
    place = tmp_path / "gpufabric-rdma-driver-0123456789abcdef/packages"
    place.mkdir(parents=True)
    (place / f"{NAME}-1.rpm").touch()
    node = Node()
    with RpmProof(node, cache=str(tmp_path)) as proof:
        assert proof.fetch(["doca-ofed-3.2.3*"]) == [str(place / f"{NAME}-1.rpm")]
    assert node.calls[0][-1] == "--downloadonly"
