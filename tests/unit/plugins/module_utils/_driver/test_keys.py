"""gpg reads a key file: one key and nothing beside it, and what it exports is what a node trusts."""

from __future__ import annotations

import shutil
import subprocess
import zlib

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver import keys
from ansible_collections.gpufabric.rdma.tests.driver import stack

GPG = shutil.which("gpg")
pytestmark = pytest.mark.skipif(not GPG, reason="not verified: no gpg on this machine")


def run(argv, stdin=None):
    done = subprocess.run(argv, capture_output=True, input=stdin, text=stdin is None, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    made = [stack.Key(folder / name, f"{name} <{name}@test.invalid>") for name in ("one", "other")]
    yield made
    for key in made:
        key.close()


def armored(data: bytes) -> str:
    text = run([GPG, "--batch", "--enarmor"], data)[1].decode()
    return text.replace("ARMORED FILE", "PUBLIC KEY BLOCK")


def binary(key) -> bytes:
    return run([GPG, "--dearmor"], key.public.encode())[1]


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
    read = keys.checked({"key": write(*pair), "fingerprints": [pair[0].fingerprint]}, run, GPG)
    assert (keys.problem(read) is None) is fits, read
    if fits:
        assert (read["key"], read["primary"]) == (pair[0].public, [pair[0].fingerprint])
