"""check_tarball.py TARBALL CHECKOUT: the tarball contains exactly the product, checked independently of galaxy.yml, and
its pages lead nowhere else: relative links, commands and names of the collection are in the tarball.

Exit code 1 names each file that is missing or too many, and each link or command without its file.
"""

import pathlib
import posixpath
import re
import subprocess
import sys
import tarfile

# What a user of the collection gets; everything else in the repository serves its development.
PRODUCT_FOLDERS = ("LICENSES", "bin", "changelogs", "device_plugin", "docs", "inventory/examples", "lock", "meta")
PRODUCT_FOLDERS += ("playbooks", "plugins", "roles")
PRODUCT_FILES = ("CHANGELOG.md", "LICENSE", "README.md", "REUSE.toml", "SECURITY.md", "bindep.txt", "requirements.txt")
# Pages about the repository, whose readers have a clone.
REPOSITORY_PAGES = {"docs/development.md", "docs/lab.md"}
GENERATED = {"FILES.json", "MANIFEST.json"}

# Where `ansible-galaxy collection install` puts the files, as pages write it.
_INSTALLED = re.compile(r"\S*collections/ansible_collections/gpufabric/rdma/")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_NAME = re.compile(r"\bgpufabric\.rdma\.(\w+)")
_MAKE = re.compile(r"\bmake ([a-z]+(?:-[a-z]+)*)(?=[`\s]|$)")
_CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_PLUGIN_FOLDERS = ("action", "callback", "filter", "lookup", "modules")


def wanted_files(checkout: pathlib.Path) -> set[str]:
    """Files of the product as git knows them, relative to the checkout."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(words, cwd=checkout, check=True, capture_output=True, text=True).stdout
    return {
        name
        for name in listing.split("\0")
        if name
        and name not in REPOSITORY_PAGES
        and (checkout / name).exists()
        and (name in PRODUCT_FILES or name.startswith(tuple(f"{folder}/" for folder in PRODUCT_FOLDERS)))
    }


def known_names(files: set[str]) -> set[str]:
    """What `gpufabric.rdma.NAME` can be: playbooks, roles and plugins."""
    parts = [pathlib.PurePosixPath(name) for name in files]
    return (
        {path.stem for path in parts if path.parent.name == "playbooks" and path.suffix == ".yml"}
        | {path.parts[1] for path in parts if path.parts[0] == "roles" and len(path.parts) > 1}
        | {path.stem for path in parts if path.parts[0] == "plugins" and path.parent.name in _PLUGIN_FOLDERS}
    )


def page_problems(page: str, text: str, files: set[str], targets: set[str]) -> list[str]:
    """Links, files, names and commands of a page that whoever has the tarball alone does not have.

    page: its path in the tarball. files: paths in the tarball. targets: those of the repository's Makefile, which only
    tables of evidence may name, and a paragraph that says that it takes a clone, with the code under it.
    """
    there = files | {str(folder) for name in files for folder in pathlib.PurePosixPath(name).parents}
    problems = []
    for link in _LINK.findall(text):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link.partition("#")[0] or page))
        if not re.match(r"[a-z]+:|#", link) and target not in there:
            problems.append(f"{page}: links to {link}, which is not in the tarball")
    known = known_names(files)
    problems += [f"{page}: gpufabric.rdma.{name} does not exist" for name in _NAME.findall(text) if name not in known]
    for code in _CODE.findall(text):
        for word in code.strip("`").split():
            path = _INSTALLED.sub("", word).rstrip("/")
            if path != word.rstrip("/") and path not in there:
                problems.append(f"{page}: names {word}, which is not in the tarball")
    before = ""
    for block in re.split(r"\n\s*\n", text):
        named = {target for code in _CODE.findall(block) for target in _MAKE.findall(code)}
        problems += [f"{page}: make {target} does not exist" for target in sorted(named - targets)]
        alone = not block.startswith("|") and "clone" not in (before if block.startswith("```") else "") + block
        if named & targets and alone:
            problems.append(f"{page}: make {', '.join(sorted(named & targets))} needs a clone, and does not say so")
        before = block
    return problems


def main() -> int:
    tarball, checkout = sys.argv[1], pathlib.Path(sys.argv[2])
    with tarfile.open(tarball) as archive:
        seen = {member.name for member in archive if not member.isdir()}
        pages = {name: archive.extractfile(name).read().decode() for name in sorted(seen) if name.endswith(".md")}
    wanted = wanted_files(checkout) | GENERATED
    problems = [f"missing in the tarball: {name}" for name in sorted(wanted - seen)]
    problems += [f"in the tarball, but not part of the product: {name}" for name in sorted(seen - wanted)]
    targets = set(re.findall(r"^([a-z][a-z-]*):", (checkout / "Makefile").read_text(), re.MULTILINE))
    problems += [problem for page, text in pages.items() for problem in page_problems(page, text, seen, targets)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
