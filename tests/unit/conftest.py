"""Shared by all unit tests: Ansible's home, archives of modules that are built once, no long sleep."""

import os
import time

import pytest
from ansible_collections.gpufabric.rdma.tests.tools import running


@pytest.fixture(scope="session", autouse=True)
def _plays_share_what_they_make(tmp_path_factory, worker_id):
    os.environ["ANSIBLE_CALLBACK_PLUGINS"] = str(running.PLUGINS)
    os.environ["ANSIBLE_HOME"] = str(tmp_path_factory.mktemp("ansible-home"))
    os.environ["ANSIBLE_PIPELINING"] = "1"  # like our ansible.cfg for nodes: no files per module
    own = tmp_path_factory.getbasetemp()
    # Workers of one run have adjacent folders. Ansible locks each archive while it builds it.
    archives = (own if worker_id == "master" else own.parent) / "built-modules"
    archives.mkdir(exist_ok=True)
    os.environ["BUILT_MODULES"] = str(archives)


@pytest.fixture(autouse=True)
def _no_long_sleep(monkeypatch):
    """Waits of more than a second get a clock from the test, or a shorter interval."""

    def sleep(seconds, _sleep=time.sleep):
        assert seconds <= 1, f"a real sleep of {seconds} s; wanted 1 s at most; hand in a clock or a shorter interval"
        _sleep(seconds)

    monkeypatch.setattr(time, "sleep", sleep)
