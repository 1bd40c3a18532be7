"""pages.py FOLDER: writes the pages that browser.py looks at: two lab nodes, nodes of all kinds, 64 nodes."""

from __future__ import annotations

import pathlib
import sys

from ansible_collections.gpufabric.rdma.plugins.plugin_utils._report import page
from ansible_collections.gpufabric.rdma.tests.tools import report_documents


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for kind, make in report_documents.KINDS.items():
        (folder / f"{kind}.html").write_text(page.page(make(), f"RDMA report, {kind}"))


if __name__ == "__main__":
    main()
