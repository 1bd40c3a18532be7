"""The trial next to the node with real apt, gpg, dkms and rpm (dnf is a double), and gpg's reading of key files."""

import glob
import os
import pathlib
import shutil
import subprocess
import zlib

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver import keys
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver.trial import AptTrial, DnfTrial
from ansible_collections.gpufabric.rdma.tests.driver import stack
from ansible_collections.gpufabric.rdma.tests.tools import kernel_modules

BASE, RPM = "mlnx-ofed-kernel-dkms", "mlnx-ofa_kernel-dkms"
FIRST, SECOND = (f"{stack.RELEASES[release]}-1" for release in ("3.2.1", "3.3.0"))


def run(argv, environment=None, cwd=None, stdin=None):
    more = {**os.environ, "LC_ALL": "C", **(environment or {})}
    done = subprocess.run(argv, env=more, cwd=cwd, input=stdin, capture_output=True, text=stdin is None, check=False)
    return done.returncode, done.stdout, done.stderr


def needs(*programs):
    for program in programs:
        if not shutil.which(program):
            pytest.skip(f"not verified: no {program} on this machine")


@pytest.fixture(scope="session")
def there(tmp_path_factory):
    needs("gpg", "apt-get", "dpkg-deb")
    folder = tmp_path_factory.mktemp("repositories")
    about = stack.build_all(folder)
    key = stack.Key(folder / "key")
    stack.Repository(folder / "greedy").package("doca-ofed", "3.2.1", {}, {}, "Conflicts: make").publish(key)
    key.close()
    return folder, about["fingerprint"]


def wanted(there, name="first", version="3.2.1", sha256=None, **more):
    folder, fingerprint = there
    repository = {"url": f"file://{folder}/{name}/", "key": (folder / "key.asc").read_text(), "label": "DOCA-HOST*"}
    repository |= {"fingerprints": [fingerprint], **more}
    return {"flavor": "doca", "version": version, "sha256": sha256 or {}, "repository": repository}


NEWER = {"version": "3.3.0"}
FAULTS = {
    "signed by someone else": ({"name": "strange", **NEWER}, [], "signed by the key "),
    "not there": ({"name": "nowhere"}, [], "reachable from this node"),
    "another version": (NEWER, [], "version 3.3.0"),
    "another sum than the lock's": ({"sha256": {BASE: "0" * 64}}, [], f"SHA-256 {'0' * 64}, as in the lock"),
    "altered": ({"name": "altered", **NEWER}, [], "the bytes that the repository's signed index promises"),
    "no headers": ({}, ["linux-headers-5.99.0-1-lost"], "the package linux-headers-5.99.0-1-lost, "),
    "drives another out": ({"name": "greedy"}, [], "installed without removing anything else"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_stops_it(there, fault):
    options, tools, says = FAULTS[fault]
    with AptTrial(run) as trial, pytest.raises(Refused) as caught:
        trial.resolve(wanted(there, **options), ["doca-ofed"], tools, False)
    assert caught.value.findings[0].wanted.startswith(says), caught.value.findings
    assert not os.path.exists(trial.directory)


def test_a_downgrade_fetches_the_version_that_would_be_installed(there, tmp_path, monkeypatch):
    """Both versions are known to apt, the newer is installed; each part of the trial has to mean the older. Beside the
    node's sources is a folder, as somebody keeps old ones in.
    """
    found = glob.glob
    monkeypatch.setattr(glob, "glob", lambda path: found(path) + [str(tmp_path)] * path.startswith("/etc/apt/"))
    installed = pathlib.Path("/var/lib/dpkg/status").read_text()
    depends = f"Depends: {BASE} (= {SECOND})\n"
    newer = (("dkms", "3.0.10-8", ""), (BASE, SECOND, "Depends: dkms\n"), ("doca-ofed", "3.3.0-044000", depends))
    for package, version, more in newer:
        installed += (
            f"\nPackage: {package}\nStatus: install ok installed\nPriority: optional\nMaintainer: x <x@test.invalid>\n"
            f"Architecture: all\nVersion: {version}\n{more}Description: x\n"
        )
    (tmp_path / "status").write_text(installed)

    def here(argv, environment=None, cwd=None):
        more = ["-o", f"Dir::State::status={tmp_path}/status"] if argv[:2] == ["apt-get", "install"] else []
        return run([*argv, *more], environment, cwd)

    with AptTrial(here) as trial:
        exact, archives = trial.resolve(wanted(there), ["doca-ofed"], [], True)
        assert exact == {"doca-ofed": "3.2.1-044000"}
        assert [pathlib.Path(path).name for path in archives] == [f"{BASE}_{FIRST}_all.deb"]


@pytest.fixture(scope="session")
def dkms():
    """The real dkms, a shell script: this machine's, else the Debian package unpacked into .cache."""
    folder = kernel_modules.CACHE.parent / "dkms"
    if not shutil.which("dkms") and not (folder / "usr/sbin/dkms").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for command in (["apt-get", "-q", "download", "dkms"], ["sh", "-c", "dpkg-deb --extract dkms_*.deb ."]):
            code, _out, error = run(command, cwd=folder)
            if code:
                pytest.skip(f"not verified: no dkms to be had ({error.strip()[-200:]})")
    return shutil.which("dkms") or str(folder / "usr/sbin/dkms")


@pytest.mark.parametrize(("name", "version"), [("first", "3.2.1"), ("broken", "3.3.0")])
def test_the_base_module_is_built_by_the_real_dkms(there, headers, kernel, dkms, name, version):
    def here(argv, environment=None, cwd=None):
        if argv[0] == "dkms":
            argv = [dkms, *argv[1:], *(["--kernelsourcedir", str(headers)] if argv[1] == "build" else [])]
        return run(argv, environment, cwd)

    with AptTrial(here) as trial:
        _exact, archives = trial.resolve(wanted(there, name, version), ["doca-ofed"], [], False)
        if name == "broken":
            with pytest.raises(Refused) as caught:
                trial.build(archives, [kernel], "x86_64")
            assert caught.value.findings[0].wanted == f"built for kernel {kernel}"
            assert "this kernel has no struct devlink_port_ops" in caught.value.findings[0].seen
            return
        trial.build(archives, [kernel], "x86_64")
        built = sorted(path.name.partition(".ko")[0] for path in pathlib.Path(trial.directory).glob("dkms/**/*.ko*"))
        assert built == ["mlx5_core", "mlx5_ib", "mlx_compat"]
    assert not pathlib.Path("/var/lib/dkms/mlnx-ofed-kernel").exists()


SPEC = f"""Name: {RPM}
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
REMOVES = """Installing:
Removing:
 mlnx-tools         noarch   24.10              @mlnx                      1 M
Removing dependent packages:
 lustre-client-with-a-name-that-takes-a-line-of-its-own
                    x86_64   2.15.4             @lustre                    5 M

Operation aborted.
"""


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    needs("gpg")
    folder = tmp_path_factory.mktemp("keys")
    made = [stack.Key(folder / name, f"{name} <{name}@test.invalid>", "rsa3072") for name in ("one", "other")]
    yield made
    for key in made:
        key.close()


@pytest.fixture(scope="session")
def rpms(tmp_path_factory, pair):
    """{signed, unsigned, cut: cache folder}: the base package signed by the first key, and not."""
    needs("rpmbuild", "rpmsign", "rpmkeys", "rpm2cpio", "cpio")
    folder = tmp_path_factory.mktemp("rpm")
    (folder / "base.spec").write_text(SPEC)
    assert run(["rpmbuild", "-bb", "--define", f"_topdir {folder}/top", str(folder / "base.spec")])[0] == 0
    (built,) = folder.glob("top/RPMS/*/*.rpm")
    caches = {name: folder / f"{name}/gpufabric-rdma-driver-0123/packages" for name in ("signed", "unsigned", "cut")}
    for cache in caches.values():
        cache.mkdir(parents=True)
        shutil.copy(built, cache)
    identity = {"__gpg": shutil.which("gpg"), "_gpg_name": pair[0].fingerprint, "_gpg_path": pair[0].home}
    given = [word for name, value in identity.items() for word in ("--define", f"{name} {value}")]
    (signed,), (cut,) = (list(caches[name].iterdir()) for name in ("signed", "cut"))
    assert run(["rpmsign", *given, "--addsign", str(signed)], {"GNUPGHOME": str(pair[0].home)})[0] == 0
    cut.write_bytes(signed.read_bytes()[:2000])
    return {name: str(path.parents[1]) for name, path in caches.items()}


def dnf_trial(cache="/nowhere", out="", error="", etc="/nowhere"):
    """The trial on rpm's tools; dnf and dkms are doubles that record their calls."""
    calls = []

    def here(argv, environment=None, cwd=None):
        if argv[0] not in ("dnf", "dkms"):
            return run(argv, environment, cwd)
        calls.append(argv)
        return int("--assumeno" in argv and bool(out or error)), out, error

    trial = DnfTrial(here, etc, cache)
    trial.calls = calls
    return trial


def rpm_wanted(key=None, **more):
    repository = {"url": "https://mirror.example.net/", "key": key and key.public, **more}
    repository["fingerprints"] = [key.fingerprint] if key else []
    return {"flavor": "doca", "version": "3.2.3", "sha256": {}, "repository": repository}


def test_a_package_signed_by_the_key_is_built_on_trial_beside_the_nodes_repositories(rpms, pair, tmp_path):
    (tmp_path / "baseos.repo").write_text("[baseos]\n")
    (tmp_path / "gpufabric-rdma-driver.repo").write_text("[old]\n")
    with dnf_trial(rpms["signed"], etc=str(tmp_path)) as trial:
        exact, archives = trial.resolve(rpm_wanted(pair[0]), ["doca-ofed"], ["dkms"], False)
        trial.build(archives, ["5.14.0-570.el9.x86_64"], "x86_64")
        folder = pathlib.Path(trial.directory)
        assert (folder / "root/usr/src/mlnx-ofa_kernel-25.10/dkms.conf").exists()
        assert sorted(path.name for path in folder.glob("repos/*")) == ["baseos.repo", "gpufabric-rdma-driver.repo"]
        assert f"file://{folder}/key.asc" in (folder / "repos/gpufabric-rdma-driver.repo").read_text()
    assert exact == {"doca-ofed": "3.2.3*"}
    assert [call[1] for call in trial.calls if call[0] == "dkms"] == ["add", "build"]


@pytest.mark.parametrize(("package", "key"), [("signed", 1), ("unsigned", 0)])
def test_another_signature_or_none_stops_it(rpms, pair, package, key):
    with dnf_trial(rpms[package]) as trial, pytest.raises(Refused) as caught:
        trial.resolve(rpm_wanted(pair[key]), ["doca-ofed"], [], False)
    assert caught.value.findings[0].wanted == f"signed by the key {pair[key].fingerprint}"


def test_a_truncated_package_is_no_rpm(rpms):
    with dnf_trial(rpms["cut"]) as trial, pytest.raises(Refused) as caught:
        trial.build(trial.resolve(rpm_wanted(trusted=True), ["doca-ofed"], [], False)[1], [], "x86_64")
    assert caught.value.findings[0].wanted == "a package that can be unpacked"


@pytest.mark.parametrize(("out", "error", "seen"), [
    (REMOVES, "", "dnf would remove lustre-client-with-a-name-that-takes-a-line-of-its-own"),
    ("", "No match for argument: kernel-devel-5.14.0-1.el9.x86_64",
        "no such package in the archives of this node"),
    ("", "Error: conflicting requests", "Error: conflicting requests"),
])  # fmt: skip
def test_what_dnf_says_it_would_do_stops_it(out, error, seen):
    with dnf_trial(out=out, error=error) as trial, pytest.raises(Refused) as caught:
        trial.resolve(rpm_wanted(trusted=True), ["doca-ofed"], [], False)
    assert caught.value.findings[0].seen == seen


def armored(data: bytes) -> str:
    text = run(["gpg", "--batch", "--enarmor"], stdin=data)[1].decode()
    return text.replace("ARMORED FILE", "PUBLIC KEY BLOCK")


def binary(key) -> bytes:
    return run(["gpg", "--dearmor"], stdin=key.public.encode())[1]


def compressed(key) -> bytes:
    body = b"\2" + zlib.compress(binary(key))
    return b"\xc8\xff" + len(body).to_bytes(4, "big") + body


FILES = {
    "alone": (lambda one, other: one.public, True),
    "windows": (lambda one, other: one.public.replace("\n", "\r\n"), True),
    "two": (lambda one, other: one.public + other.public, False),
    "message before": (lambda one, other: other.public.replace("PUBLIC KEY BLOCK", "MESSAGE") + one.public, False),
    "file behind": (lambda one, other: one.public + other.public.replace("PUBLIC KEY BLOCK", "ARMORED FILE"), False),
    "no end": (lambda one, other: one.public + other.public.partition("-----END")[0], False),
    "compressed": (lambda one, other: armored(binary(one) + compressed(other)), False),
    "page": (lambda one, other: "<html>", False),
    "cut": (lambda one, other: one.public[:150], False),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_of_one_key_is_taken_as_gpg_exports_it(pair, case):
    write, fits = FILES[case]
    known = {"key": write(*pair), "fingerprints": [pair[0].fingerprint]}
    read = keys.checked(known, lambda argv, stdin=None: run(argv, stdin=stdin), "gpg")
    assert (keys.problem(read) is None) is fits, read
    if fits:
        assert (read["key"], read["primary"]) == (pair[0].public, [pair[0].fingerprint])
