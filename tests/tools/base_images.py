"""Base images for the device plugin's, in skopeo's format: a few files instead of a distribution."""

import hashlib
import io
import json
import tarfile

# Like python:3.12-slim: a merged /usr, its own Python below /usr/local.
SLIM = {
    "bin": "-> usr/bin",
    "usr/bin/sh": "sh",
    "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2": "loader",
    "usr/lib/x86_64-linux-gnu/libstdc++.so.6": "-> libstdc++.so.6.0.30",
    "usr/local/bin/python3": "-> python3.12",
    "usr/local/bin/python3.12": "python",
}


def layer(files):
    """A tar archive of {name: content}, where "-> target" is a link."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for name, content in files.items():
            entry, data = tarfile.TarInfo(name), content.encode() if isinstance(content, str) else content
            if data.startswith(b"-> "):
                entry.type, entry.linkname, data = tarfile.SYMTYPE, content[3:], b""
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return held.getvalue()


def base_archive(path, *layers, architecture="amd64", damaged=False):
    """A docker-archive as skopeo writes one. layers: files, or a tar archive."""
    datas = [files if isinstance(files, bytes) else layer(files) for files in layers]
    ids = [hashlib.sha256(data).hexdigest() for data in datas]
    config = {
        "architecture": architecture,
        "os": "linux",
        "created": "2026-09-01T00:00:00Z",
        "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Cmd": ["python3"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{one}" for one in ids]},
        "history": [{"created_by": "base"}],
    }
    if damaged:
        config["rootfs"]["diff_ids"][0] = f"sha256:{'1' * 64}"
    files = {f"{one}.tar": data for one, data in zip(ids, datas)}
    files["config.json"] = json.dumps(config).encode()
    manifest = [{"Config": "config.json", "RepoTags": ["base:1"], "Layers": [f"{one}.tar" for one in ids]}]
    files["manifest.json"] = json.dumps(manifest).encode()
    path.write_bytes(layer(files))
    return str(path)
