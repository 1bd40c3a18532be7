"""render_docs.py [--check]: the pages of docs/ that are generated; --check writes none and lists those that differ."""

from __future__ import annotations

import sys

from ansible_collections.gpufabric.rdma.tests.tools import (
    render_doca,
    render_failures,
    render_options,
    render_pitfalls,
    render_upstream,
)

PAGES = {
    page.TARGET: page.render
    for page in (render_doca, render_failures, render_options, render_pitfalls, render_upstream)
}


def main() -> int:
    differ = [page for page, render in PAGES.items() if page.read_text() != render()]
    if sys.argv[1:] == ["--check"]:
        for page in differ:
            print(f"{page}: differs from what it is generated from; run tests/tools/render_docs.py", file=sys.stderr)
        return int(bool(differ))
    for page in differ:
        page.write_text(PAGES[page]())
    return 0


if __name__ == "__main__":
    sys.exit(main())
