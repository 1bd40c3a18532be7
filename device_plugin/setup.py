# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add files from elsewhere to the built package: the discovery library and the build's commit and date.

RDMA_DEVICE_PLUGIN_COMMIT and SOURCE_DATE_EPOCH fill the commit and date that -version prints.
"""

from __future__ import annotations

import atexit
import datetime
import os
import pathlib
import shutil
import tempfile

from setuptools import setup
from setuptools.command.build import build
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = "rdma_device_plugin"


def library() -> pathlib.Path:
    """plugins/module_utils/hca of the checkout, or the copy in an sdist."""
    for place in (HERE / PACKAGE / "hca", HERE.parent / "plugins/module_utils/hca"):
        if place.is_dir():
            return place
    raise SystemExit(f"plugins/module_utils/hca not found above {HERE}: build from a checkout of the collection")


def add_library(target: pathlib.Path) -> None:
    shutil.copytree(library(), target / "hca", ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)


def scratch() -> str:
    """A folder for files that setuptools would leave in the checkout."""
    folder = tempfile.mkdtemp(prefix="rdma-device-plugin-build-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class Build(build):
    def initialize_options(self) -> None:
        super().initialize_options()
        self.build_base = scratch()


class EggInfo(egg_info):
    def initialize_options(self) -> None:
        super().initialize_options()
        self.egg_base = scratch()


class BuildPy(build_py):
    def run(self) -> None:
        super().run()
        target = pathlib.Path(self.build_lib, PACKAGE)
        add_library(target)
        epoch = os.environ.get("SOURCE_DATE_EPOCH")
        date = datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc).isoformat() if epoch else "unknown"
        commit = os.environ.get("RDMA_DEVICE_PLUGIN_COMMIT") or "none"
        (target / "_build.py").write_text(f"COMMIT = {commit!r}\nDATE = {date!r}\n")


class Sdist(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        add_library(pathlib.Path(base_dir, PACKAGE))


setup(cmdclass={"build": Build, "build_py": BuildPy, "egg_info": EggInfo, "sdist": Sdist})
