"""playbooks/render.yml against the roles' applied objects, and cluster_objects_owner: gitops.

Two nodes' trees and a double of kubectl. It keeps the input of each real apply, so a rendered file can be
compared with the API server's.
"""

import json
import pathlib
import subprocess

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused, settle
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._gitops import folder as planner
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._gitops.folder import MARK, name_of
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster, running, tree

ROLES = ("flannel", "node_ready", "multus", "networks", "device_plugin")
OWNERS = dict(zip(("flannel", "node-ready", "multus", "networks", "rdma-device-plugin"), ROLES))
FLUX = "kustomize-controller"
VARIABLES = {
    "cluster_objects_folder": "git/rack1",
    "device_plugin_mode": "daemonset",
    "networks_rails": True,
    "networks_components": ["nv-ipam"],
    "k3s_node_features_by_nfd": True,
}


class Site:
    def __init__(self, folder: pathlib.Path):
        self.folder, self.git = folder, folder / "git/rack1"
        self.cluster = kubectl_cluster.Cluster(folder / "cluster.json")
        self.roots = [tree.lay_out(tree.load("lab-rxe-debian12"), folder / name) for name in ("node1", "node2")]
        for root in self.roots:
            (root / "proc/sys/kernel/hostname").write_text(f"{root.name}\n")
        self.cluster.install(folder / "bin/k3s")
        self.cluster.add(kubectl_cluster.definition("nfd.k8s-sigs.io", "NodeFeatureRule", "nodefeaturerules"))
        self.cluster.state(tokens={"*": "secret-token"})
        rails = [{"hca": "rxe0"}, {"hca": "rxe1"}]
        common = running.local(discovery_software_hcas=True, discovery_rails=rails, **VARIABLES)
        nodes = {"hosts": {root.name: {"discovery_root": str(root)} for root in self.roots}, "vars": common}
        self.inventory = {"gpu_nodes": nodes, "k3s_servers": {"hosts": {"node1": {}}}}

    def play(self, name: str, *arguments: str, **variables) -> tuple[int, str]:
        words = (name, "--diff", "-e", json.dumps(variables), *arguments)
        return running.play(self.folder, *words, inventory=self.inventory)

    def render(self, *arguments: str, **variables) -> tuple[int, str]:
        return self.play("gpufabric.rdma.render", *arguments, **variables)

    def apply(self, *arguments: str, roles=ROLES, **variables) -> tuple[int, str]:
        facts = {"root": "{{ discovery_root }}", "software_hcas": True, "rails": "{{ discovery_rails }}"}
        tasks = [{"gpufabric.rdma.hca_facts": facts}]
        tasks += [{"ansible.builtin.import_role": {"name": f"gpufabric.rdma.{role}"}} for role in roles]
        play = {"hosts": "gpu_nodes", "gather_facts": False, "any_errors_fatal": True, "tasks": tasks}
        (self.folder / "apply.yml").write_text(json.dumps([play]))
        return self.play("apply.yml", *arguments, **variables)

    def sync(self) -> None:
        """Does Flux' work on the folder: applies each list in order under its own name, and marks its objects."""
        for role in yaml.safe_load((self.git / "kustomization.yaml").read_text())["resources"]:
            names = yaml.safe_load((self.git / role / "kustomization.yaml").read_text())["resources"]
            for item in (yaml.safe_load((self.git / role / name).read_text()) for name in names):
                item["metadata"].setdefault("labels", {})["kustomize.toolkit.fluxcd.io/name"] = role
                argv = [*self.cluster.argv, "apply", "--server-side", "--filename=-", f"--field-manager={FLUX}"]
                subprocess.run(argv, input=json.dumps(item), text=True, check=True, stdout=subprocess.DEVNULL)

    def files(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.git)): path.read_bytes() for path in self.git.rglob("*") if path.is_file()}

    def put(self, files: dict[str, bytes]) -> None:
        for path, content in files.items():
            (self.git / path).parent.mkdir(parents=True, exist_ok=True)
            (self.git / path).write_bytes(content)

    def nodes(self) -> dict:
        files = [path for root in self.roots for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    def applied(self) -> list[dict]:
        """The input of any real apply; nothing else can write: see the double's verbs."""
        assert self.cluster.calls("delete") == []
        applied = self.cluster.state().get("applied", {})
        return [item for manager, items in applied.items() if manager != FLUX for item in items]


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """The files of one rendering, which is announced and changes no node."""
    site = Site(tmp_path_factory.mktemp("rendered"))
    before = site.nodes()
    code, output = site.render("--check")
    assert code == 0, output
    assert not site.git.exists(), "check mode has written something"
    assert "flannel/daemonset_kube-flannel_kube-flannel-ds.yaml (write)" in output, "--diff names each file"
    code, output = site.render()
    assert code == 0, output
    assert site.nodes() == before, "rendering has changed a node"
    assert site.cluster.calls() == [], "rendering has asked the cluster"
    return site.files()


def test_each_role_s_folder_has_byte_for_byte_what_the_role_applies(site, rendered):
    code, output = site.apply()
    assert code == 0, output
    sent = [item for item in site.applied() if item["kind"] != "Secret"]
    assert len(site.applied()) == len(sent) + 2, "the tokens of the nodes, which are never rendered"
    expected = {f"{role_of(item)}/{name_of(item)}": (MARK + planner.text(item)).encode() for item in sent}
    assert {path.partition("/")[0] for path in expected} == set(ROLES)
    kustomizations = {"kustomization.yaml", *(f"{role}/kustomization.yaml" for role in ROLES)}
    assert set(rendered) == set(expected) | kustomizations
    assert {path: rendered[path] for path in expected} == expected
    for path, content in expected.items():
        assert yaml.safe_load(content) in sent, f"{path} is read as another object than the server got"
    for role in ROLES:
        listed = yaml.safe_load(rendered[f"{role}/kustomization.yaml"])["resources"]
        assert listed == [name_of(item) for item in sent if role_of(item) == role], "the order is that of applying"
    assert yaml.safe_load(rendered["kustomization.yaml"])["resources"] == list(ROLES)
    assert b"c2VjcmV0LXRva2Vu" not in b"".join(rendered.values())


def role_of(item: dict) -> str:
    """A namespace has no label of its owner, because others create it too."""
    owner = (item["metadata"].get("labels") or {}).get("rdma.gpufabric.io/owner")
    spaces = {"kube-flannel": "flannel", "kube-multus": "multus", "gpufabric-rdma": "node_ready"}
    return OWNERS[owner] if owner else spaces[item["metadata"]["name"]]


def test_a_second_run_changes_nothing_what_is_not_wanted_goes_and_what_is_not_ours_stays(site, rendered):
    foreign = {"networks/patch-of-mine.yaml": b"kind: Mine\n", "README.md": b"mine\n"}
    # Nothing is known about a directory without our files, so nothing is reported.
    silent = {".git/config": b"theirs", "theirs/kustomization.yaml": b"resources: []\n", "multus/binary": b"\xff\xfe"}
    site.put({**rendered, **foreign, **silent})
    code, output = site.render()
    assert code == 0, output
    assert output.count("changed=0") == 2, output
    for path in foreign:
        assert f"{path} is not from this playbook: it is kept" in " ".join(output.split())
    assert site.files() == {**rendered, **foreign, **silent}

    edited = "multus/namespace_kube-multus.yaml"
    site.put({edited: rendered[edited] + b"aggregationRule: {}\n"})
    code, output = site.render(device_plugin_mode="systemd", networks_components=[])
    assert code == 0, output
    left = site.files()
    assert not [path for path in left if "nv-ipam" in path], "no longer made by a role that still makes others"
    assert not (site.git / "device_plugin").exists(), "no longer made by the role at all"
    assert yaml.safe_load(left["kustomization.yaml"])["resources"] == list(ROLES[:-1])
    assert {path: left[path] for path in (*foreign, *silent)} == {**foreign, **silent}
    assert left[edited] == rendered[edited]
    assert "-aggregationRule: {}" in output, "--diff shows what someone had edited"
    assert left["multus/kustomization.yaml"] == rendered["multus/kustomization.yaml"]


def test_what_cannot_be_rendered_is_refused_before_anything_is_written(site):
    wrong = {"cluster_objects_owner": "argo", "cluster_objects_foldr": "x"}
    wrong |= {"multus_global_namespaces": ["kube-system"]}
    wrong |= {"networks_attachments": [{"name": "one", "type": "macvlan", "master": "eth9"}]}
    for arguments, variables, words in (
        ((), {"cluster_objects_folder": ""}, ["variable cluster_objects_folder"]),
        (("--limit", "node2"), {}, ["nodes of this run", "without node1"]),
        ((), wrong, ["variable cluster_objects_owner", "did you mean cluster_objects_folder?", "multus_glob", "eth9"]),
    ):
        code, output = site.render(*arguments, **variables)
        assert code != 0, (words, output)
        assert [word for word in words if word not in " ".join(output.split())] == [], output
        assert "Traceback" not in output
        assert not site.git.exists()


def test_with_gitops_the_roles_apply_nothing_accept_what_was_synced_and_name_each_difference(site, rendered):
    site.put(rendered)
    site.sync()
    synced = site.cluster.objects
    code, output = site.apply(cluster_objects_owner="gitops")
    assert code == 0, output
    applied = {(item["kind"], item.get("type")) for item in site.applied()}
    assert applied == {("Secret", "kubernetes.io/service-account-token")}, "the tokens that the nodes lacked"
    left = {name: item for name, item in site.cluster.objects.items() if item["kind"] != "Secret"}
    assert left == synced
    waited = [call[2] for call in site.cluster.calls("rollout")]
    assert "daemonset/kube-multus-ds" in waited, "objects are still awaited"
    site.cluster.state(applied={})

    objects = site.cluster.objects
    objects["ConfigMap/kube-flannel/kube-flannel-cfg"]["data"]["net-conf.json"] = "{}"
    attachment = objects.pop("NetworkAttachmentDefinition/default/rail1")
    attachment["metadata"] = {**attachment["metadata"], "name": "rail9"}
    objects["NetworkAttachmentDefinition/default/rail9"] = attachment
    site.cluster.state(objects=objects)
    code, output = site.apply(roles=["flannel"], cluster_objects_owner="gitops")
    said = " ".join(output.split())
    assert code != 0
    assert 'ConfigMap kube-flannel/kube-flannel-cfg: wanted data.net-conf.json "{' in said
    assert 'seen data.net-conf.json "{}". Next step: run ansible-playbook -i INVENTORY gpufabric.rdma.render' in said
    code, output = site.apply("--check", roles=["networks"], cluster_objects_owner="gitops")
    said = " ".join(output.split())
    assert code != 0
    assert "NetworkAttachmentDefinition default/rail1: wanted present, seen absent" in said
    assert "default/rail9: wanted absent: no role creates it any longer, seen present" in said
    assert site.cluster.objects == objects
    assert site.applied() == []


def test_with_gitops_check_mode_without_an_api_server_says_what_was_not_compared(site):
    site.cluster.state(down=True)
    code, output = site.apply("--check", roles=["flannel"], cluster_objects_owner="gitops")
    assert code == 0, output
    assert "6 cluster objects were not compared: no API server responds" in " ".join(output.split())


# --- the folder: names, texts, and which files come and go ------------------------------------------------------------


def config_map(name, namespace="default", **data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}


ROLE = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "system:ours"}}
RENDERED = {"networks": [config_map("b"), config_map("a", "train")], "multus": [ROLE]}


def wanted(rendered=None):
    return planner.files(RENDERED if rendered is None else rendered)


def bring(folder, files, check_mode=False):
    return settle(
        read=lambda: planner.read(folder, files),
        plan=lambda found: planner.plan(found, files),
        apply=lambda changes: planner.apply(folder, changes),
        check_mode=check_mode,
    )


@pytest.mark.parametrize("name", ["x/../../../site/all", "..", ".", "", "a/b", "/etc/x", "a\n", "-rf", "a b", "a%2fb"])
def test_a_name_that_is_none_writes_nothing(tmp_path, name):
    for item in (config_map(name), config_map("a", name or "/")):
        with pytest.raises(Refused) as refused:
            bring(tmp_path, wanted({"networks": [config_map("fine"), item]}))
        assert [finding.id for finding in refused.value.findings] == ["gitops:name"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [
    *("", "y", "No", "null", "~", "1e3", "0o17", "017", "1_000", "12:30", "2026-11-22", ".inf", "=", "a: b"),
    *("a #b", "- a", "{a}", "*a", "&a", "!a", "%a", "@a", "`a", "'a'", '"a"', " a", "a ", "a\\b", "ä", "\t"),
    *("one\ntwo\n", "one\ntwo", "one\n\n", "\none", " one\ntwo", "one \ntwo", "a\tb\nc", "x y " * 90),
])  # fmt: skip
def test_a_text_is_quoted_wherever_a_parser_could_take_it_for_something_else(value):
    item = {"data": {value: value}, "list": [value, True, None, 7]}
    text = planner.text(item)
    assert yaml.safe_load(text) == item
    assert planner.text(yaml.safe_load(text)) == text
    plain = next(line for line in planner.text([value]).splitlines())[2:]
    assert plain.startswith(('"', "|")), plain


@pytest.mark.parametrize(("path", "content"), [
    ("kustomization.yaml", "resources: []\n"),
    ("kustomization.yml", "resources: []\n"),
    ("multus", "a file"),
    ("multus", None),
    ("networks/configmap_train_a.yaml", None),
    ("networks/Kustomization", "kind: Kustomization\n"),
])  # fmt: skip
def test_what_is_in_the_way_stops_before_anything_is_written(tmp_path, path, content):
    """None: a symbolic link."""
    (tmp_path / "networks").mkdir()
    (tmp_path / path).symlink_to("/etc/hostname") if content is None else (tmp_path / path).write_text(content)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(Refused) as refused:
        bring(tmp_path, wanted())
    assert [finding.object for finding in refused.value.findings] == [path]
    assert sorted(tmp_path.rglob("*")) == before
