"""What a run wants of the device plugin on a node, as its plan takes it; tests override single keys."""

from __future__ import annotations

WANTED = {
    "present": True,
    "code": "c1",
    "stamp": "python 3.11\ngrpcio==1\n",
    "config": "{}\n",
    "unit": "[Unit]\n",
    "names": ["a"],
    "wheels_missing": [],
    "from_index": False,
    "migrate_allowed": None,
    "kubeconfig": None,
}
