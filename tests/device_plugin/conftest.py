"""The device plugin's tests need grpcio: device_plugin/requirements-dev.txt, in a separate environment."""

import os
import pathlib
import shutil
import sys
import tempfile

import hypothesis
import pytest

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "device_plugin"
sys.path[:0] = [str(PACKAGE), str(HERE)]
# Children are started by fork and exec only; grpc's own handlers would warn about its threads.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
# An example has no time limit of its own; machines may be busy.
hypothesis.settings.register_profile("busy", deadline=None)
hypothesis.settings.load_profile("busy")


@pytest.fixture
def base():
    """A folder with a short path, because socket paths hold 107 characters; in memory, as a node has 1000 files."""
    folder = tempfile.mkdtemp(prefix="dp", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp")
    yield pathlib.Path(folder)
    shutil.rmtree(folder)


@pytest.fixture
def node(base):
    """The GH200 of the fixtures: two ports in RoCE, one without a cable."""
    from harness import Node

    return Node(base / "node")


@pytest.fixture(autouse=True)
def quiet():
    """Log state belongs to the process, but each test is a separate plugin."""
    from rdma_device_plugin import log

    log.forget("")
