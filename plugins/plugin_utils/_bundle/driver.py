"""The HCA driver in a bundle folder: doca-host, a package with a whole repository in it. Pure."""

from ...module_utils._bundle.lock import DRIVER
from ...module_utils._core.change import Finding
from ...module_utils._driver import packages as driver_packages
from . import folder as bundle_folder


def release(given: str | None, lock: dict, node: dict, flavor: str, bundle: dict | None = None) -> str:
    """driver_version. Null is the newest release whose key the lock trusts on the node's platform; without one the
    newest there, or anywhere. Empty if the lock has none of the flavor.

    bundle: content of bundle.yml if it is the source: its newest release, else the newest that it can get.
    """
    if given:
        return str(given)
    platform = (driver_packages.distribution(node), driver_packages.architecture(node))

    def here(places: list[dict]) -> bool:
        return platform in [(place.get("distribution"), place.get("architecture")) for place in places]

    rows = [row for row in lock.get("repositories") or [] if row["name"] == flavor]
    fitting = [row for row in rows if row["kind"] == driver_packages.manager(node) and here(row["places"])]
    choices = [[row for row in fitting if any(key["fingerprint"] for key in row["keys"])], fitting, rows]
    if bundle is not None:
        held = [row for row in bundle.get("files") or [] if row.get("name") == DRIVER and here([row])]
        locked = [row for row in lock.get("artifacts") or [] if row["name"] == DRIVER and here(row["files"])]
        choices = [held, locked, *choices]
    known = [str(row.get("version") or "") for row in next(filter(None, choices), [])]
    return max(known, key=driver_packages.order, default="")


def packages(bundle: dict, node: dict, version: str) -> list[dict]:
    """Rows of bundle.yml with doca-host of this version for the node's distribution and architecture."""
    wanted = (DRIVER, str(version), driver_packages.distribution(node), driver_packages.architecture(node))
    fields = ("name", "version", "distribution", "architecture")
    return [row for row in bundle.get("files") or [] if tuple(str(row.get(field)) for field in fields) == wanted]


def from_bundle(variables: dict) -> bool:
    """Whether the bundle is the source: with driver_source bundle; with auto, unless another source is set."""
    if variables["driver_flavor"] != "doca" or variables["driver_source"] == "repository":
        return False
    given = variables["driver_repository_url"] or variables["driver_host_package"]
    return variables["driver_source"] == "bundle" or bool(_folder(variables) and not given)


def _folder(variables: dict) -> str | None:
    """The bundle folder; the controller's cache never has a driver."""
    given = variables["k3s_bundle_dir"]
    return None if given == bundle_folder.cache() else given


def findings(variables: dict, node: dict, bundle: dict | None, lock: dict) -> list[Finding]:
    """Why the driver cannot come from the bundle, with the command that adds it."""
    if not from_bundle(variables):
        return []
    folder = _folder(variables)
    version = release(variables["driver_version"], lock, node, variables["driver_flavor"], bundle or {})
    if packages(bundle or {}, node, version):
        return []
    if not folder:
        step = "set k3s_bundle_dir to a folder that playbooks/bundle.yml has filled, or driver_source: repository"
        return [Finding("variable driver_source", "a bundle folder to take the driver from", "no k3s_bundle_dir", step)]
    distribution, architecture = driver_packages.distribution(node), driver_packages.architecture(node)
    rows = [row for row in (bundle or {}).get("files") or [] if row.get("name") == DRIVER]
    others = sorted(f"{row.get('version')} for {row.get('distribution')} {row.get('architecture')}" for row in rows)
    step = bundle_folder.fill(bundle or {}, folder, architecture, distribution, driver_version=version)
    step += "; or set driver_version to one that it has, driver_source: repository where the nodes reach NVIDIA's "
    step += "server, or driver_repository_url to a mirror"
    seen = f"{DRIVER} {', '.join(others)}" if others else "no driver" if bundle else "no readable bundle.yml"
    return [Finding(f"bundle {folder}", f"{DRIVER} {version} for {distribution} {architecture}", seen, step)]
