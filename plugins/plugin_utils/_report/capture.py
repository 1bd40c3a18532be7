"""The file of a captured node.

PRIVATE to the collection. Pure.
"""

from __future__ import annotations

import yaml


class _Dumper(yaml.SafeDumper):
    """Representers are registered for base classes, because the controller tags the values it templates."""

    def ignore_aliases(self, _data):
        return True

    def text(self, value):
        return self.represent_scalar("tag:yaml.org,2002:str", str(value), style="|" if "\n" in value else None)

    def mapping(self, value):
        return self.represent_mapping("tag:yaml.org,2002:map", list(value.items()))

    def sequence(self, value):
        return self.represent_sequence("tag:yaml.org,2002:seq", value)


_Dumper.add_representer(str, _Dumper.text)
_Dumper.add_multi_representer(str, _Dumper.text)
_Dumper.add_multi_representer(dict, _Dumper.mapping)
_Dumper.add_multi_representer(list, _Dumper.sequence)
_Dumper.add_multi_representer(int, lambda dumper, value: dumper.represent_int(int(value)))


def text(fixture: dict) -> str:
    """YAML of what hca_capture returned.

    Texts of several lines are blocks and all else is on one line, so that two captures can be compared.
    """
    return yaml.dump(fixture, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True, explicit_start=True)
