"""What --check announces on bare nodes is what the run does: files of the nodes, objects of the cluster."""

from __future__ import annotations

from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.objects import OWNER_LABEL
from ansible_collections.gpufabric.rdma.tests.tools.lab_cluster import OBJECTS, SNAPSHOT

# Everything a role may write to; what the kernel and the services keep for themselves lies elsewhere.
CHANGED = "find /boot /etc /opt /root /usr /var/lib/rancher -xdev -newer /run/before-the-run -type f"
CHANGED = f"{CHANGED} ! -path '/root/.ansible/*' 2>/dev/null; true"


def test_check_mode_on_bare_nodes_announces_what_the_first_run_made(breakable):
    breakable.labctl("restore", "ready")
    for name in breakable.nodes:
        breakable.node(name, "touch /run/before-the-run; sleep 1")
    with breakable.timed("site.yml --check on bare nodes"):
        announced = breakable.run("site.yml", "--check", "--diff")
    changed = {name: breakable.node(name, CHANGED) for name in breakable.nodes}
    breakable.labctl("restore", SNAPSHOT)
    breakable.wait(breakable.settled, "all nodes Ready and all pods running")

    assert announced.code == 0, announced.text[-6000:]
    assert changed == dict.fromkeys(breakable.nodes, "")
    foretold = {
        name: {change["object"] for change in announced.record["hosts"][name]["changes"]} for name in breakable.nodes
    }
    for name, things in foretold.items():
        files = sorted(thing for thing in things if thing.startswith("/"))
        breakable.note(f"{len(files):7}    files announced for {name}, {len(things)} changes in all")
        absent = breakable.node(name, f"for file in {' '.join(files)}; do [ -e $file ] || echo $file; done")
        assert (len(files) > 10, absent) == (True, ""), name
    made = {
        f"{row['kind']} " + "/".join(filter(None, (row["metadata"].get("namespace"), row["metadata"]["name"])))
        for row in breakable.get(OBJECTS, "--all-namespaces", "-l", OWNER_LABEL)["items"]
    }
    breakable.note(f"{len(made):7}    objects of the cluster announced")
    kinds = {thing.split()[0] for thing in made}
    assert made == {thing for things in foretold.values() for thing in things if thing.split()[0] in kinds}
