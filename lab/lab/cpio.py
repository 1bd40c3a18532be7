"""An initramfs in the kernel's newc format: no cpio program needed, and the same input gives the same bytes."""

import stat


class Archive:
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.folders: set[str] = set()
        self.inode = 0

    def _entry(self, name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        self.inode += 1
        path = name.encode() + b"\0"
        fields = (self.inode, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + path
        self.parts += [head, b"\0" * (-len(head) % 4), data, b"\0" * (-len(data) % 4)]

    def folder(self, path: str) -> None:
        for depth in range(1, path.count("/") + 2):
            parent = "/".join(path.split("/")[:depth])
            if parent and parent not in self.folders:
                self.folders.add(parent)
                self._entry(parent, stat.S_IFDIR | 0o755)

    def file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        if "/" in path:
            self.folder(path.rpartition("/")[0])
        self._entry(path, stat.S_IFREG | mode, data)

    def console(self) -> None:
        self.folder("dev")
        self._entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))

    def bytes(self) -> bytes:
        self._entry("TRAILER!!!", 0)
        whole = b"".join(self.parts)
        return whole + b"\0" * (-len(whole) % 512)
