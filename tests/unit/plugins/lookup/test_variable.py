"""A variable of any role: the host's value or the documented default, typed."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.gpufabric.rdma.plugins.lookup import variable

try:
    from ansible.template import trust_as_template
except ImportError:  # core before 2.19 trusts every text
    trust_as_template = str


def look_up(names, variables=None, hosts=None):
    """What a task with these variables gets."""
    templar = Templar(DataLoader(), variables=variables or {})
    return variable.LookupModule(templar=templar).run(names, variables or {}, hosts=hosts)


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        # The documented default.
        ("discovery_root", None, "/"),
        ("discovery_rails", None, []),
        ("flannel_fabric_allowed", None, None),
        ("k3s_startup_taint", None, True),
        ("networks_pods_per_node", None, 16),
        # A text becomes what the role documents.
        ("k3s_startup_taint", "false", False),
        ("k3s_selinux", "yes", True),
        ("networks_pods_per_node", "24", 24),
        ("kernel_modules_required", "mlx5_ib,ib_umad", ["mlx5_ib", "ib_umad"]),
        ("discovery_root", trust_as_template("/{{ inventory_hostname }}"), "/node1"),
    ],
)
def test_a_value_or_its_documented_default_has_the_documented_type(name, given, value):
    [found] = look_up([name], {**({} if given is None else {name: given}), "inventory_hostname": "node1"})
    assert (found, type(found)) == (value, type(value))


def test_several_names_give_a_list_and_hosts_give_their_own():
    variables = {
        "networks_pods_per_node": 1,
        "hostvars": {"node2": {"networks_pods_per_node": "2", "k3s_selinux": "no"}, "node3": {}},
    }
    assert look_up(["networks_pods_per_node", "k3s_selinux"], variables, hosts=["node2"]) == [2, False]
    assert look_up(["networks_pods_per_node"], variables, hosts=["node2", "node3"]) == [2, 16]
    assert look_up(["networks_pods_per_node"], variables, hosts=[]) == []
    assert look_up(["networks_pods_per_node"], variables) == [1]


@pytest.mark.parametrize(("name", "given", "message"), [
    ("networks_pods_per_node", "many", "networks_pods_per_node: wanted a whole number, seen 'many'"),
    ("networks_pods_per_node", None, "wanted a whole number, seen null.*Next step"),
    ("discovery_root", trust_as_template("{{ nowhere }}"), "'nowhere' is undefined. Next step: define what it"),
    ("discovery_rot", "/", "no role of gpufabric.rdma documents discovery_rot"),
])  # fmt: skip
def test_a_value_that_cannot_be_used_is_refused(name, given, message):
    with pytest.raises(AnsibleError, match=f"(?s){message}"):
        look_up([name], {name: given})


def test_a_secret_is_not_quoted():
    with pytest.raises(AnsibleError) as error:
        look_up(["k3s_registries"], {"k3s_registries": ["s3cr3t"]})
    assert "s3cr3t" not in str(error.value)
