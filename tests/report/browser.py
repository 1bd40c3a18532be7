"""browser.py FOLDER: the pages in headless Chromium; prints a line per page and each fault, exit code 1 on a fault.

Faults: a request besides the page itself, a message on the console, a finding of axe-core in light or dark, a page
wider than a phone, a node that neither Enter nor a link unfolds, and on paper an open node without a problem.
"""

import contextlib
import os
import pathlib
import shutil
import sys

import axe_playwright_python
from playwright.sync_api import sync_playwright

AXE = (pathlib.Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
OPEN_ALL = "[...document.querySelectorAll('details')].slice(0, 60).forEach(d => d.open = true)"
PRINTED = """[...document.querySelectorAll('details.node:not([open])')].filter(d =>
    d.classList.contains('matters') != d.querySelector('.inside').checkVisibility()).map(d => d.id)"""


@contextlib.contextmanager
def opened(browser, path, faults, **options):
    """The page in a context with these options; requests and messages become faults."""
    context = browser.new_context(**options)
    context.set_default_timeout(180_000)  # a busy machine
    page, requests = context.new_page(), []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: faults.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: faults.append(f"console: {error}"))
    page.goto(path.resolve().as_uri())
    yield page
    faults += [f"request: {url}" for url in requests[1:]]
    context.close()


def used(page):
    """Faults of the keyboard, of links to folded nodes, and on paper."""
    page.keyboard.press("Tab")
    if page.evaluate("document.activeElement.className") != "skip":
        yield "keyboard: the first stop is not the link to the report"
    node = page.locator("details.node").first
    before = node.evaluate("node => node.open")
    node.locator("> summary").focus()
    page.keyboard.press("Enter")
    if node.evaluate("node => node.open") == before:
        yield "keyboard: Enter does not fold or unfold a node"
    page.keyboard.press("Enter")
    page.emulate_media(media="print")
    yield from (f"print: {identity} is shown wrongly" for identity in page.evaluate(PRINTED))
    page.emulate_media(media="screen")
    folded = page.locator("details.node:not([open])").last
    if folded.count():
        identity = folded.get_attribute("id")
        page.locator(f"a[href='#{identity}']").first.click()
        page.wait_for_timeout(200)
        if not page.evaluate(f"document.getElementById('{identity}').open"):
            yield f"link: {identity} stays folded"


def examine(browser, path):
    faults = []
    with opened(browser, path, faults) as page:
        faults += used(page)
    for scheme in ("light", "dark"):
        with opened(browser, path, faults, color_scheme=scheme) as page:
            page.evaluate(OPEN_ALL)
            page.evaluate(AXE)  # over the debugging protocol, to which the page's own policy does not apply
            found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
            faults += [f"axe {scheme}: {item['id']}: {item['nodes'][0]['html'][:160]}" for item in found]
    with opened(browser, path, faults, viewport={"width": 360, "height": 740}) as page:
        width = page.evaluate("document.documentElement.scrollWidth")
        faults += [f"narrow: {width} px wide on a screen of 360"] * (width > 360)
    return faults


def main():
    folder = pathlib.Path(sys.argv[1])
    pages = sorted(folder.glob("*.html"))
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not pages or not chromium:
        sys.exit(f"browser.py: wanted pages in {folder} and chromium on PATH, seen {len(pages)} and {chromium}")
    # Chromium's own sandbox refuses to run as root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=arguments)
        faults = {path: examine(browser, path) for path in pages}
        browser.close()
    for path, found in faults.items():
        print(f"{path.stem}: {path.stat().st_size} bytes, {len(found)} faults", *found, sep="\n  ")
    sys.exit(any(faults.values()))


if __name__ == "__main__":
    main()
