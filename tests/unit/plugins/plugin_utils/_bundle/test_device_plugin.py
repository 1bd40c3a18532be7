"""The device plugin as one code file: the same bytes from the same sources, and it runs."""

from __future__ import annotations

import io
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import node
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import device_plugin as code

ROOT = pathlib.Path(__file__).resolve().parents[5]


def run(path, *arguments):
    command = [sys.executable, "-I", "-B", str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_same_sources_make_the_same_bytes_whatever_their_dates_are(tmp_path):
    for name in ("device_plugin/rdma_device_plugin", "plugins/module_utils/hca"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"), copy_function=shutil.copyfile
        )
    assert code.archive(tmp_path) == code.archive(ROOT)
    members = zipfile.ZipFile(io.BytesIO(code.archive(ROOT))).infolist()
    assert {member.compress_type for member in members} == {zipfile.ZIP_STORED}
    assert [member.filename for member in members] == sorted(member.filename for member in members)


def test_the_code_file_runs_and_carries_the_library(tmp_path):
    (tmp_path / "plugin.pyz").write_bytes(code.archive(ROOT))
    assert run(tmp_path / "plugin.pyz", "-version").stdout.startswith("k8s-rdma-shared-dev-plugin version:")
    names = zipfile.ZipFile(tmp_path / "plugin.pyz").namelist()
    assert {"rdma_device_plugin/hca/rails.py", "rdma_device_plugin/config.schema.json"} <= set(names)


def test_an_incomplete_collection_is_reported(tmp_path):
    with pytest.raises(FileNotFoundError, match="not complete"):
        code.archive(tmp_path)


def test_byte_code_stands_beside_each_source_and_is_what_runs(tmp_path):
    (tmp_path / "source.pyz").write_bytes(code.archive(ROOT))
    node._compiled(str(tmp_path / "source.pyz"), str(tmp_path / "plugin.pyz"))
    with zipfile.ZipFile(tmp_path / "plugin.pyz") as archive:
        names = archive.namelist()
    sources = [name for name in names if name.endswith(".py")]
    assert len(sources) > 20
    assert {f"{name}c" for name in sources} <= set(names)
    with zipfile.ZipFile(tmp_path / "plugin.pyz") as archive, zipfile.ZipFile(tmp_path / "blind.pyz", "w") as blind:
        for name in names:
            blind.writestr(name, b"raise SystemExit(9)" if name.endswith(".py") else archive.read(name))
    assert run(tmp_path / "blind.pyz", "-version").returncode == 0
