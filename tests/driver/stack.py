"""A stand-in driver stack in real packages: a DKMS module with the vendor's names and versions.

Each repository is flat, like the vendor's, and signed with a key made here. The modules only load.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import subprocess

MODULES = ("mlx_compat", "mlx5_core", "mlx5_ib")
NAME = "mlnx-ofed-kernel"
# DOCA release -> version of its kernel package; the same pairs as in the vendor's release notes.
RELEASES = {"3.2.1": "25.10.OFED.25.10.1.6.6.1", "3.3.0": "26.01.OFED.26.01.1.0.0.1"}
# The stack's user space with the names of DOCA 3.2.1, and the distribution's packages instead.
USER_SPACE, DISTRIBUTION = ("srptools", "2510.0.11-1"), ("srptools", "50.0-2")
# The function that GPU memory registers with has another CRC in each release, like the vendor's.
_CLIENTS = {"3.2.1": "const void *client, int version", "3.3.0": "const void *client, unsigned long version"}
NVIDIA = "570.86.15"
LABEL = "DOCA-HOST test"

# Without <linux/module.h>, which takes seven times as long as the rest on an emulated processor.
_SOURCE = """
#include <linux/errno.h>
#include <linux/export.h>
#include <linux/moduleparam.h>
{body}
__MODULE_INFO(license, license, "GPL");
__MODULE_INFO(version, version, "{version}");
"""
_BODIES = {
    "mlx_compat": "int mlx_compat_present(void);\nint mlx_compat_present(void) { return 1; }\n"
    "EXPORT_SYMBOL(mlx_compat_present);",
    "mlx5_core": "int mlx_compat_present(void);\nint mlx5_core_present(void);\n"
    "int mlx5_core_present(void) { return mlx_compat_present(); }\nEXPORT_SYMBOL(mlx5_core_present);",
    "ib_core": "void *ib_register_peer_memory_client(CLIENT);\n"
    "void *ib_register_peer_memory_client(CLIENT) { return 0; }\nEXPORT_SYMBOL(ib_register_peer_memory_client);",
    "mlx5_ib": "int mlx5_core_present(void);\n"
    "int init_module(void) { return mlx5_core_present() ? 0 : -EIO; }\nvoid cleanup_module(void) {}",
}
_POSTINST = """#!/bin/sh
set -e
case "$1" in configure) /usr/lib/dkms/common.postinst {name} {version} "" "" ;; esac
"""
# Like the vendor's, a build leaves behind the files for building foreign modules.
_POST_BUILD = """#!/bin/sh
case "$PWD" in /var/lib/dkms/*) ;; *) exit 0 ;; esac
mkdir -p /usr/src/ofa_kernel/default
echo 'void *ib_register_peer_memory_client(CLIENT);' > /usr/src/ofa_kernel/default/peer.h
cp Module.symvers /usr/src/ofa_kernel/default/
"""
# A closed GPU driver, which finds the symbol where the RDMA stack left it, or becomes a stub.
_NVIDIA_MAKE = """obj-m := nvidia.o nvidia-peermem.o
OFA := /usr/src/ofa_kernel/default
ifneq ($(wildcard $(OFA)/peer.h),)
ccflags-y += -DPEER -include $(OFA)/peer.h
KBUILD_EXTRA_SYMBOLS := $(OFA)/Module.symvers
endif
"""
_NVIDIA_PEERMEM = """
#ifdef PEER
int init_module(void) { return ib_register_peer_memory_client(0, 0) ? 0 : -EINVAL; }
#else
int init_module(void) { return -EINVAL; }
#endif
void cleanup_module(void) {}
"""
_NVIDIA_GPU = "int nvidia_present(void);\nint nvidia_present(void) { return 1; }"
_PRERM = """#!/bin/sh
set -e
case "$1" in
remove|upgrade|deconfigure) [ ! -x "$(command -v dkms)" ] || dkms remove -m {name} -v {version} --all || true ;;
esac
"""


class Key:
    """An OpenPGP key in a separate keyring."""

    def __init__(self, home: pathlib.Path, user: str = "Driver test <driver@test.invalid>", kind: str = "ed25519"):
        self.home = home
        home.mkdir(parents=True, mode=0o700, exist_ok=True)
        if not (home / "pubring.kbx").exists():
            self._gpg("--quick-generate-key", user, kind, "sign", "never")
        self.public = self._gpg("--armor", "--export").decode()
        listing = self._gpg("--with-colons", "--fingerprint").decode()
        self.fingerprint = next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:"))

    def clearsign(self, text: str) -> bytes:
        return self._gpg("--clearsign", "--output", "-", stdin=text.encode())

    def close(self) -> None:
        subprocess.run(["gpgconf", "--homedir", str(self.home), "--kill", "all"], check=False, capture_output=True)

    def _gpg(self, *argv: str, stdin: bytes | None = None) -> bytes:
        command = ["gpg", "--homedir", str(self.home), "--batch", "--quiet", "--passphrase", "", *argv]
        return subprocess.run(command, input=stdin, check=True, capture_output=True).stdout


class Repository:
    """A flat apt repository in a folder."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def stack(self, release: str, broken: bool = False, whole: bool = False) -> Repository:
        """The packages of one DOCA release; broken: its sources do not compile. whole: with user space and an ib_core
        that GPU memory registers with, which would keep a machine's other RDMA modules from loading.
        """
        kernel_version = RELEASES[release]
        user_space = ""
        if whole:
            self.package(*USER_SPACE, {"/usr/share/driver-test/user-space": "the stack's\n"}, {}, "Multi-Arch: foreign")
            user_space = f", {USER_SPACE[0]} (= {USER_SPACE[1]})"
        self.package(
            f"{NAME}-dkms",
            f"{kernel_version}-1",
            _sources(kernel_version, broken, _CLIENTS[release] if whole else None),
            {
                "postinst": _POSTINST.format(name=NAME, version=kernel_version),
                "prerm": _PRERM.format(name=NAME, version=kernel_version),
            },
            "Depends: dkms (>= 2.8)\nProvides: mlnx-ofed-kernel-modules",
        )
        depends = f"Depends: {NAME}-dkms (= {kernel_version}-1){user_space}"
        return self.package("doca-ofed", f"{release}-044000", {}, {}, depends)

    def package(self, name, version, files, scripts, fields) -> Repository:
        tree = self.folder / f".{name}"
        control = tree / "DEBIAN"
        control.mkdir(parents=True)
        for path, text in files.items():
            target = tree / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            target.chmod(0o755 if text.startswith("#!") else 0o644)
        (control / "control").write_text(
            f"Package: {name}\nVersion: {version}\nArchitecture: all\nSection: kernel\nPriority: optional\n"
            f"Maintainer: gpufabric tests <driver@test.invalid>\n{fields}\nDescription: stand-in of the driver tests\n"
        )
        for script, text in scripts.items():
            (control / script).write_text(text)
            (control / script).chmod(0o755)
        for folder in [tree, *(path for path in tree.rglob("*") if path.is_dir())]:
            folder.chmod(0o755)
        archive = self.folder / f"{name}_{version}_all.deb"
        _run("dpkg-deb", "--root-owner-group", "-Zgzip", "--build", str(tree), str(archive))
        _run("rm", "-r", str(tree))
        return self

    def take_in(self, archive: pathlib.Path) -> Repository:
        """A foreign package, repacked with zstd, because an emulated processor needs minutes for xz."""
        tree = self.folder / ".taken"
        _run("dpkg-deb", "--raw-extract", str(archive), str(tree))
        target = self.folder / archive.name.replace("%3a", ".")
        _run("dpkg-deb", "--root-owner-group", "-Zzstd", "-z3", "--build", str(tree), str(target))
        _run("rm", "-r", str(tree))
        return self

    def publish(self, key: Key, label: str = LABEL) -> Repository:
        """Index and signature of the present packages."""
        stanzas = []
        for archive in sorted(self.folder.glob("*.deb")):
            data = archive.read_bytes()
            stanzas.append(
                _run("dpkg-deb", "--field", str(archive)).strip()
                + f"\nFilename: ./{archive.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
            )
        index = "\n".join(stanzas)
        (self.folder / "Packages").write_text(index)
        digest = hashlib.sha256(index.encode()).hexdigest()
        date = _run("date", "--utc", "--rfc-email", "--date=yesterday").strip()
        release = (
            f"Origin: gpufabric\nLabel: {label}\nDate: {date}\nSHA256:\n {digest} {len(index.encode())} Packages\n"
        )
        (self.folder / "InRelease").write_bytes(key.clearsign(release))
        return self

    def tamper(self, name: str) -> Repository:
        """Changes a byte of a package without updating the signed index; its size stays."""
        archive = next(self.folder.glob(f"{name}_*.deb"))
        data = bytearray(archive.read_bytes())
        data[-1] ^= 0xFF
        archive.write_bytes(data)
        return self


def tools(folder: pathlib.Path, status: str, kernel: str, target: pathlib.Path, key: Key) -> Repository:
    """A repository in target with dkms, compiler and headers, resolved against a dpkg status by this machine's apt."""
    (folder / "archives/partial").mkdir(parents=True)
    (folder / "status").write_text(status)
    options = (
        f"Dir::State::status={folder}/status",
        f"Dir::Cache::archives={folder}/archives",
        "APT::Sandbox::User=root",
    )
    flags = [word for option in options for word in ("-o", option)]
    wanted = ["dkms", f"linux-headers-{kernel}"]
    _run("apt-get", *flags, "install", "--yes", "--download-only", "--no-install-recommends", *wanted)
    repository = Repository(target)
    for archive in (folder / "archives").glob("*.deb"):
        repository.take_in(archive)
    # Not the label of the stack, because the role pins that repository's dkms away.
    repository.publish(key, "driver test tools")
    key.close()
    return repository


def nvidia_sources() -> dict[str, str]:
    """{path: text} of the closed GPU driver in DKMS."""
    base = f"/usr/src/nvidia-{NVIDIA}"
    bodies = {"nvidia": _NVIDIA_GPU, "nvidia-peermem": _NVIDIA_PEERMEM}
    files = {f"{base}/dkms.conf": _conf("nvidia", NVIDIA, bodies), f"{base}/Makefile": _NVIDIA_MAKE}
    for module, body in bodies.items():
        text = _SOURCE.format(body=body, version=NVIDIA)
        files[f"{base}/{module}.c"] = (
            text.replace('license, "GPL"', 'license, "NVIDIA"') if module == "nvidia" else text
        )
    return files


def _conf(name: str, version: str, modules) -> str:
    conf = [f'PACKAGE_NAME="{name}"', f'PACKAGE_VERSION="{version}"', "AUTOINSTALL=yes"]
    conf += ['MAKE[0]="make -C ${kernel_source_dir} M=${dkms_tree}/${PACKAGE_NAME}/${PACKAGE_VERSION}/build modules"']
    for number, module in enumerate(modules):
        conf += [f'BUILT_MODULE_NAME[{number}]="{module}"', f'DEST_MODULE_LOCATION[{number}]="/updates/dkms"']
    return "\n".join(conf) + "\n"


def _sources(version: str, broken: bool, client: str | None = None) -> dict[str, str]:
    base = f"/usr/src/{NAME}-{version}"
    shown = version.partition(".OFED.")[2].rpartition(".")[0]
    modules = [*MODULES, "ib_core"] if client else MODULES
    files = {
        f"{base}/dkms.conf": _conf(NAME, version, modules) + ("POST_BUILD=post_build\n" if client else ""),
        f"{base}/Makefile": "obj-m := " + " ".join(f"{module}.o" for module in modules) + "\n",
    }
    if client:
        files[f"{base}/post_build"] = _POST_BUILD.replace("CLIENT", client)
    for module in modules:
        body = _BODIES[module].replace("CLIENT", client or "")
        if broken and module == "mlx5_core":
            body += '\n#error "this kernel has no struct devlink_port_ops as the driver knows it"\n'
        files[f"{base}/{module}.c"] = _SOURCE.format(body=body, version=shown)
    return files


def _run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}).stdout


def build_all(target: pathlib.Path) -> dict:
    """Every repository of the tests, with the two keys and their data."""
    key, stranger = Key(target / "key"), Key(target / "stranger", "Someone else <x@test.invalid>")
    Repository(target / "first").stack("3.2.1").publish(key)
    Repository(target / "second").stack("3.3.0").publish(key)
    Repository(target / "broken").stack("3.3.0", broken=True).publish(key)
    Repository(target / "strange").stack("3.3.0").publish(stranger)
    Repository(target / "altered").stack("3.3.0").publish(key).tamper(f"{NAME}-dkms")
    (target / "key.asc").write_text(key.public)
    (target / "stranger.asc").write_text(stranger.public)
    key.close()
    stranger.close()
    about = {"fingerprint": key.fingerprint}
    (target / "about.json").write_text(json.dumps(about, indent=1))
    return about
