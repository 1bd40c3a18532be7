"""What management uses in the running kernel, and the way out of rails in one subnet."""

import base64
import io
import json
import pathlib
import subprocess
import tarfile

import pytest
import testinfra


@pytest.fixture(scope="module")
def nodes(request):
    config = request.config.getoption("ssh_config")
    return [testinfra.get_host(f"ssh://node{number}", ssh_config=config) for number in (1, 2)]


# Each state is set up on node2, read with the library, and undone.
LIBRARY = pathlib.Path(__file__).resolve().parents[3] / "plugins/module_utils/hca"
USES = """
import json, sys
sys.path[:0] = ["/run/lab-library"]
from hca import Tree
from hca.management import uses
from hca.seams import Seams
tree = Tree("/")
print(json.dumps(uses(tree, Seams.of(tree))))
"""
GATEWAY = "via 10.77.{0}.99 dev eth{1} onlink"
ECMP = f"default metric 4242 nexthop {GATEWAY.format(1, 2)} nexthop {GATEWAY.format(2, 3)}"
SESSION = "systemd-run --quiet --collect --unit=lab-session bash -c 'exec 3<>/dev/tcp/10.77.1.2/22; sleep 60'"
VRF = [
    "ip link add lab-vrf type vrf table 4242",
    "ip link set lab-vrf up",
    "ip link set eth9 master lab-vrf",
    "ip route add default dev eth9 table 4242",
]


@pytest.fixture(scope="module")
def used(nodes):
    """used(): the interfaces of node2 that management uses."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(LIBRARY, "hca", filter=lambda entry: None if "__pycache__" in entry.name else entry)
    text = base64.b64encode(packed.getvalue()).decode()
    nodes[1].check_output(f"mkdir -p /run/lab-library && echo {text} | base64 -d | tar xz -C /run/lab-library")
    return lambda: set(json.loads(nodes[1].check_output("python3 -c %s", USES)))


@pytest.mark.parametrize(
    ("on", "steps", "undo", "wanted"),
    [
        pytest.param(1, [f"ip route add {ECMP}"], ["ip route del default metric 4242"], {"eth2", "eth3"}, id="ECMP"),
        pytest.param(1, VRF, ["ip link set eth9 nomaster", "ip link del lab-vrf"], {"eth9"}, id="VRF"),
        pytest.param(0, [SESSION, "sleep 1"], ["systemctl stop lab-session"], {"eth2"}, id="SSH at the HCA's address"),
    ],
)
def test_what_management_uses(nodes, used, on, steps, undo, wanted):
    assert not wanted & used()
    try:
        for step in steps:
            done = nodes[on].run(step)
            if "type vrf" in step and done.rc:
                pytest.skip(f"not verified: {done.stderr.strip()}")
            assert done.rc == 0, done.stderr
        assert wanted <= used()
    finally:
        for step in undo:
            nodes[on].run(step)
    assert not wanted & used()


@pytest.fixture
def one_subnet(nodes):
    """Rail 1 of node2 also has an address in the subnet of rail 0."""
    nodes[1].check_output("ip address add 10.77.1.102/24 dev eth3")
    yield "10.77.1.102"
    nodes[1].check_output("ip address del 10.77.1.102/24 dev eth3")


def test_an_address_in_another_rails_subnet_leaves_by_its_own_nic_once_asked(nodes, one_subnet):
    def set_routes(on):
        options = f"source_routes={on} software_hcas=true"
        inventory = LIBRARY.parents[2] / "inventory/lab"
        words = ["ansible", "node2", "-i", inventory, "-b", "-m", "gpufabric.rdma.rail_links", "-a", options]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.split()[2]

    def leaves_by():
        return nodes[1].check_output(f"ip route get 10.77.1.1 from {one_subnet}").split("dev ")[1].split()[0]

    try:
        assert (leaves_by(), set_routes("true"), leaves_by()) == ("eth2", "CHANGED", "eth3")
        assert set_routes("true") == "SUCCESS"
        nodes[1].check_output("systemctl restart gpufabric-rdma-routes")
        assert leaves_by() == "eth3"
    finally:
        assert (set_routes("false"), leaves_by()) == ("CHANGED", "eth2")
