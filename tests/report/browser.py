"""browser.py FOLDER: the pages in headless Chromium, measured; exit code 1 on a fault.

For each page: size, load time, requests besides the page itself (0), findings of axe-core in light and dark (0; the
table has the serious ones of all), whole-page overflow on a narrow screen, keyboard, links into folded nodes, and print
output.
"""

import os
import pathlib
import shutil
import sys

import axe_playwright_python
from playwright.sync_api import sync_playwright

AXE = (pathlib.Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
SIZE_LIMIT, LOAD_LIMIT = 2_000_000, 5000


class Look:
    """One page open in one context; counts its requests and its errors."""

    def __init__(self, browser, path, scheme="light", width=1280, height=900):
        self.context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height})
        # Far beyond LOAD_LIMIT: a page that is late on a busy machine is a figure in the table, not a broken run.
        self.context.set_default_timeout(180_000)
        self.page = self.context.new_page()
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(path.resolve().as_uri())

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.context.close()

    def further(self):
        return self.requests[1:]

    def axe(self):
        """[(impact, rule, number of places)], the serious ones first."""
        # Injected over the debugging protocol, to which the page's own policy does not apply.
        self.page.evaluate(AXE)
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        return [
            (item["impact"], item["id"], len(item["nodes"]), item["nodes"][0]["html"][:160])
            for item in sorted(found, key=lambda item: item["impact"] not in ("serious", "critical"))
        ]


def grave(findings):
    return [item for item in findings if item[0] in ("serious", "critical")]


def examine(browser, path):
    """Faults of a page, and its row of figures."""
    faults, row = [], {"page": path.stem, "bytes": path.stat().st_size}
    with Look(browser, path) as look:
        row["load ms"] = round(look.page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"))
        faults += keyboard(look) + links(look)
        row["requests"] = len(look.further())
        faults += [f"request: {url}" for url in look.further()] + [f"console: {text}" for text in look.complaints]
        faults += printed(look)
    for scheme in ("light", "dark"):
        with Look(browser, path, scheme) as look:
            opened = look.page.evaluate(
                "[...document.querySelectorAll('details')].slice(0, 60).map(d => d.open = true).length"
            )
            findings = look.axe()
            row[f"axe {scheme}"] = f"{len(grave(findings))} of {len(findings)}"
            row["folds opened"] = opened
            faults += [f"axe {scheme}: {item}" for item in findings]
    with Look(browser, path, width=360, height=740) as look:
        width = look.page.evaluate("document.documentElement.scrollWidth")
        if width > 360:
            faults.append(f"narrow: the page is {width} px wide on a screen of 360")
    if row["bytes"] > SIZE_LIMIT or row["load ms"] > LOAD_LIMIT:
        faults.append(f"{row['bytes']} bytes in {row['load ms']} ms; wanted {SIZE_LIMIT} in {LOAD_LIMIT} at most")
    return [f"{path.stem}: {fault}" for fault in faults], row


def keyboard(look):
    """Tab reaches the skip link first; Enter folds and unfolds a node."""
    look.page.keyboard.press("Tab")
    faults = []
    if look.page.evaluate("document.activeElement.className") != "skip":
        faults.append("keyboard: the first stop is not the link to the report")
    node = look.page.locator("details.node").first
    before = node.evaluate("node => node.open")
    node.locator("> summary").focus()
    look.page.keyboard.press("Enter")
    if node.evaluate("node => node.open") == before:
        faults.append("keyboard: Enter does not fold or unfold a node")
    look.page.keyboard.press("Enter")
    return faults


def links(look):
    """A link to a folded node unfolds it."""
    target = look.page.locator("details.node:not([open])").last
    if not target.count():
        return []
    identity = target.get_attribute("id")
    look.page.locator(f"a[href='#{identity}']").first.click()
    look.page.wait_for_timeout(200)
    return (
        [] if look.page.evaluate(f"document.getElementById('{identity}').open") else [f"link: {identity} stays folded"]
    )


def printed(look):
    """On paper the nodes with problems are open and the others stay one line."""
    look.page.reload()
    look.page.emulate_media(media="print")
    shown = look.page.evaluate(
        "[...document.querySelectorAll('details.node:not([open])')].map(d =>"
        " [d.classList.contains('matters'), d.querySelector('.inside').checkVisibility()])"
    )
    look.page.emulate_media(media="screen")
    wrong = sum(matters != visible for matters, visible in shown)
    return [f"print: {wrong} of {len(shown)} folded nodes are shown wrongly"] if wrong else []


def main():
    folder = pathlib.Path(sys.argv[1])
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not chromium:
        sys.exit("browser.py: wanted chromium on PATH (or its path in CHROMIUM), seen none; run lab/packages browser")
    # Chromium's own sandbox refuses to run as root, which containers and this lab are.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=arguments)
        print(f"Chromium {browser.version}")
        faults, rows = [], []
        for path in sorted(folder.glob("*.html")):
            found, row = examine(browser, path)
            faults, rows = faults + found, [*rows, row]
        browser.close()
    if not rows:
        sys.exit(f"browser.py: wanted pages in {folder}, seen none; run tests/tools/report_documents.py {folder}")
    for row in rows:
        print("  ".join(f"{key}: {value}" for key, value in row.items()))
    for fault in faults:
        print(f"FAULT {fault}")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
