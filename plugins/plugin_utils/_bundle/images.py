"""Images of objects, by the digest that the lock has for them.

PRIVATE to the collection. Pure; runs on the controller. What a bundle brings was fetched by digest and is imported
under its tag, the only name that containerd then knows it by; the kubelet pulls everything else, and a tag may move.
"""

from __future__ import annotations

_CONTAINERS = ("initContainers", "containers")


def by_digest(objects: list[dict], lock: dict, bundle: dict | None) -> list[dict]:
    """The objects with REFERENCE@DIGEST for each locked image that the bundle (bundle.yml, or None) does not bring.

    An image that the lock does not have, that has no digest there or that names its own, stays as it is.
    """
    brought = {image.get("reference") for image in (bundle or {}).get("images") or ()}
    digests = {
        image["reference"]: image["digests"]["index"]
        for image in lock["images"]
        if image["digests"].get("index") and image["reference"] not in brought
    }
    made = _copied(objects)
    for item in made:
        pod = ((item.get("spec") or {}).get("template") or {}).get("spec") or {}
        for container in [one for kind in _CONTAINERS for one in pod.get(kind) or ()]:
            if container.get("image") in digests:
                container["image"] += f"@{digests[container['image']]}"
    return made


def _copied(value):
    """As copy.deepcopy, which takes seconds for what Ansible tags and renders lazily."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value
