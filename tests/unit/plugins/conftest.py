"""Facts of the fixture nodes, the default variables, kernel headers and the modules that are compiled against them."""

import copy

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import config
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight.variables import documented_roles
from ansible_collections.gpufabric.rdma.tests.tools import kernel_modules, pitfall_world, tree


@pytest.fixture
def facts_of():
    """facts_of(fixture name, **gather options): a copy of ansible_facts.rdma of that node."""
    return tree.facts


@pytest.fixture(scope="session")
def options():
    return {name: option for role in documented_roles().values() for name, option in role.items()}


@pytest.fixture
def variables(options):
    effective, findings = host.validate(options, {})
    assert findings == []
    return copy.deepcopy(effective)


@pytest.fixture(scope="session")
def headers():
    try:
        return kernel_modules.build_tree()
    except kernel_modules.NoHeaders as reason:
        pytest.skip(f"not verified: no kernel headers to build modules against ({reason})")


@pytest.fixture(scope="session")
def kernel(headers):
    return kernel_modules.release(headers)


@pytest.fixture(scope="session")
def built(headers):
    return kernel_modules.build_all(headers)


@pytest.fixture
def short_names(monkeypatch):
    """Short names of resources, independent of the device plugin's names."""
    monkeypatch.setattr(config, "NAME", "rail{index}")


@pytest.fixture
def put(tmp_path):
    """put(path, text): a file below the test's folder, with the folders above it."""

    def write(path, text=""):
        place = tmp_path / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        return place

    return write


@pytest.fixture
def script(put):
    """script(name, text): the path of a shell script in the test's folder."""

    def write(name, text):
        path = put(name, text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return write


@pytest.fixture
def captured(facts_of, variables):
    """Facts of the nodes of a healthy cluster (pitfall_world), and the variables of a host without any."""
    nodes = {name: facts_of(name, rails=[]) for name in ("card-without-mlx5-ib", "exclusive-netns-foreign-file")}
    rails = [{"hca": "mlx5_0"}, {"hca": "mlx5_1"}]
    nodes["gh200-cx7-roce"] = facts_of("gh200-cx7-roce", rails=rails[:1])
    nodes["gh200-two-rails"] = facts_of("gh200-cx7-roce", rails=rails)
    pitfall_world.converged(nodes["gh200-cx7-roce"], variables)
    return {**nodes, "variables": variables}
