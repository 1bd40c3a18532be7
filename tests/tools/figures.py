"""Figures that tests note: a section of their own at the end of the session."""

from __future__ import annotations

import pytest


class Section:
    def __init__(self, title: str) -> None:
        self._title, self._key = title, pytest.StashKey()

    def lines(self, config) -> list[str]:
        """Those of this session, to be appended to."""
        return config.stash.setdefault(self._key, [])

    def write(self, terminalreporter, config) -> None:
        """What a conftest's pytest_terminal_summary does; nothing where nothing was noted."""
        lines = self.lines(config)
        if lines:
            terminalreporter.section(self._title)
            for line in lines:
                terminalreporter.write_line(line)
