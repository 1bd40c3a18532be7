# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A gRPC server on a unix socket that is published atomically and never removed from another owner."""

from __future__ import annotations

import errno
import os
from typing import Optional, Protocol
from urllib.parse import quote

import grpc

from . import sockets


class Servicer(Protocol):
    """What can be served: it adds its services to a server."""

    def attach(self, server: grpc.aio.Server) -> None: ...


class Listener:
    """One gRPC server on one published socket."""

    def __init__(self, directory: str, name: str):
        self.path = f"{directory}/{name}"
        self._directory = directory
        self._name = name
        self._server: Optional[grpc.aio.Server] = None
        self._identity: Optional[sockets.Identity] = None
        self._silence = sockets.Silence()

    @property
    def published(self) -> bool:
        """Whether the socket at our path is ours; the kubelet removes all sockets when it starts."""
        return self._identity is not None and sockets.identity(self.path) == self._identity

    @property
    def foreign(self) -> bool:
        """Whether another process serves our path."""
        return not self.published and sockets.answers(self.path)

    async def start(self, service: Servicer, generation: int) -> None:
        """Serve, then publish: a visible socket responds. OSError when the directory does not allow it."""
        if len(os.fsencode(self.path)) > sockets.MAX_PATH:
            raise OSError(errno.ENAMETOOLONG, f"socket paths hold {sockets.MAX_PATH} bytes", self.path)
        # grpc only says "failed to bind", whatever the reason; find the reason first.
        if not os.access(self._directory, os.W_OK | os.X_OK):
            os.stat(f"{self._directory}/.")
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), self._directory)
        bound = sockets.hidden(self._directory, self._name, generation)
        server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        service.attach(server)
        try:
            try:
                server.add_insecure_port(f"unix:{quote(bound)}")
            except RuntimeError as error:
                raise OSError(errno.EIO, f"cannot bind: {error}", bound) from None
            await server.start()
            identity = sockets.publish(bound, self.path, self._identity, self._silence)
        except BaseException:
            await server.stop(0)
            raise
        before, self._server, self._identity = self._server, server, identity
        if before:
            await before.stop(0)

    async def stop(self, grace: float) -> None:
        """Unpublish and stop. A foreign socket at our path stays."""
        sockets.withdraw(self.path, self._identity)
        server, self._server, self._identity = self._server, None, None
        if server:
            await server.stop(grace)
