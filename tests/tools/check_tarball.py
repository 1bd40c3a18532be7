"""check_tarball.py TARBALL CHECKOUT: the tarball contains exactly the product, checked independently of galaxy.yml.

Exit code 1 names each file that is missing or too many.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tarfile

# What a user of the collection gets; everything else in the repository serves its development.
PRODUCT_FOLDERS = (
    "LICENSES",
    "bin",
    "changelogs",
    "device_plugin",
    "docs",
    "inventory/examples",
    "lock",
    "meta",
    "playbooks",
    "plugins",
    "roles",
)
PRODUCT_FILES = ("CHANGELOG.md", "LICENSE", "README.md", "REUSE.toml", "SECURITY.md", "requirements.txt")
GENERATED = {"FILES.json", "MANIFEST.json"}


def wanted_files(checkout: pathlib.Path) -> set[str]:
    """Files of the product as git knows them, relative to the checkout."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=checkout,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return {
        name
        for name in listing.split("\0")
        if name
        and (checkout / name).exists()
        and (name in PRODUCT_FILES or name.startswith(tuple(f"{folder}/" for folder in PRODUCT_FOLDERS)))
    }


def main() -> int:
    tarball, checkout = sys.argv[1], pathlib.Path(sys.argv[2])
    with tarfile.open(tarball) as archive:
        seen = {member.name for member in archive if not member.isdir()}
    wanted = wanted_files(checkout) | GENERATED
    problems = [f"missing in the tarball: {name}" for name in sorted(wanted - seen)]
    problems += [f"in the tarball, but not part of the product: {name}" for name in sorted(seen - wanted)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
