"""A finding has one fix: a plugin that the role installs is put back by it, another has to be named to it first."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import node_lint
from ansible_collections.gpufabric.rdma.tests.tools import pitfall_world


@pytest.mark.parametrize(("names", "named"), [([], False), (["loopback", "bridge", "host-local", "portmap"], True)])
def test_a_missing_plugin_has_one_fix(names, named):
    state = pitfall_world.cni_state()
    del state["programs"]["bridge"]
    found = node_lint.lint(state, {**pitfall_world.CNI_WANTED, "plugins": names})
    (finding,) = [one for one in found if one.id == "plugin-missing"]
    assert (finding.next_step == "run playbooks/site.yml") is named
    assert ("add it to cni_plugins_names" in finding.next_step) is not named
