"""figures.py: the ratio of test and lab code to product code, at most LIMIT; generated pages, make targets, files.

The rules are in docs/development.md. Lines of code are lines of Python and Go that are neither blank nor a comment.
"""

import pathlib
import re
import subprocess
import sys
from collections import Counter

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIMIT = 0.83  # lower it when the figure has fallen


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    code: Counter = Counter()
    for path in files:
        if path.suffix in (".py", ".go") and "_pb2" not in path.name:
            part = "test" if path.relative_to(ROOT).parts[0] in ("tests", "molecule", "lab") else "product"
            lines = path.read_text().splitlines()
            code[part] += sum(1 for line in lines if line.strip() and not line.strip().startswith(("#", "//")))
    ratio = code["test"] / code["product"]
    targets = len(re.findall(r"^[a-z][a-z-]*:.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    modules = len(list((ROOT / "plugins/modules").glob("*.py")))
    amount = (
        f"{code['product']} lines of product code, {code['test']} of test and lab code: {ratio:.2f} (at most {LIMIT})"
    )
    sys.stdout.write(f"figures: {amount}; {len(files)} files, {modules} modules, {targets} make targets\n")
    return int(round(ratio, 2) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
