"""A node of tests/fixtures that changes as hardware would. Needs PyYAML and nothing of the plugin."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import shutil

HERE = pathlib.Path(__file__).resolve().parent
_spec = importlib.util.spec_from_file_location("fixture_tree", HERE.parent / "tools/tree.py")
fixture_tree = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fixture_tree)


class Node:
    """A laid-out node below `root`."""

    def __init__(self, root, fixture="gh200-cx7-roce", rename=()):
        self.root = pathlib.Path(root)
        fixture = fixture_tree.load(fixture)
        if rename:
            text = json.dumps(fixture, default=str)
            for before, after in rename:
                text = text.replace(before, after)
            fixture = json.loads(text)
        fixture_tree.lay_out(fixture, self.root)
        self._aside = self.root / "aside"
        self._aside.mkdir()

    def path(self, name):
        return self.root / name.lstrip("/")

    def hcas(self):
        return sorted(path.name for path in self.path("/sys/class/infiniband").iterdir())

    def port(self, hca, state, number=1):
        """state: `4: ACTIVE`, `1: DOWN`"""
        path = self.path(f"/sys/class/infiniband/{hca}/ports/{number}/state")
        unfinished = path.with_suffix(".new")
        unfinished.write_text(f"{state}\n")
        os.rename(unfinished, path)

    def unplug(self, hca):
        self._move(self.path(f"/sys/class/infiniband/{hca}"), self._aside / hca)

    def plug(self, hca):
        self._move(self._aside / hca, self.path(f"/sys/class/infiniband/{hca}"))

    def _move(self, before, after):
        os.symlink(os.readlink(before), after)
        os.unlink(before)

    def unload(self, module):
        """Take what a module makes away: ib_umad, rdma_ucm."""
        for name in {"ib_umad": ["/sys/class/infiniband_mad"], "rdma_ucm": ["/sys/module/rdma_ucm"]}[module]:
            os.rename(self.path(name), self._aside / os.path.basename(name))
        return self

    def load(self, module):
        for name in {"ib_umad": ["/sys/class/infiniband_mad"], "rdma_ucm": ["/sys/module/rdma_ucm"]}[module]:
            os.rename(self._aside / os.path.basename(name), self.path(name))

    def netns(self, mode):
        self.path("/sys/module/ib_core/parameters/netns_mode").write_text(mode + "\n")

    def nodes(self, *names):
        """Make /dev/infiniband visible with these entries only."""
        directory = self.path("/dev/infiniband")
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for name in names:
            (directory / name).touch()
