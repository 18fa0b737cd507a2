"""Stands between a client and a PostgreSQL server, and cuts the line at a COMMIT."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Literal

Cut = Literal["before", "after", "never"]


class CuttingProxy:
    """Passes bytes on between socket files.

    Attributes:
        cut: where to cut: before a COMMIT reaches the server, or after the server has answered it, when the client has not heard yet.
        cuts: how often that was done.
        most: how often it is to be done; None for always.
    """

    def __init__(self, server: Path, listening: Path) -> None:
        self._server = str(server)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(listening))
        self._listener.listen()
        self.cut: Cut = "never"
        self.cuts = 0
        self.most: int | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            server.connect(self._server)
            while True:
                ready, _, _ = select.select([client, server], [], [])
                source, target = (client, server) if client in ready else (server, client)
                data = source.recv(1 << 16)
                if not data:
                    return
                if source is client and b"COMMIT\0" in data and self.cut != "never" and (self.most is None or self.cuts < self.most):
                    self.cuts += 1
                    if self.cut == "after":
                        server.sendall(data)
                        server.recv(1 << 16)
                    return
                target.sendall(data)
