"""A tiny S3 look-alike that takes no notice of ``If-None-Match``, run as a script: the negative control of the store probe."""

from __future__ import annotations

import hashlib
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

OBJECTS: dict[str, bytes] = {}


class Forgetful(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def key(self) -> str:
        return unquote(urlsplit(self.path).path)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_PUT(self) -> None:
        OBJECTS[self.key()] = data = self.body()
        self.answer(200, ETag=f'"{hashlib.md5(data).hexdigest()}"')

    def do_GET(self) -> None:
        if "list-type=2" in self.path:
            found = "".join(
                f"<Contents><Key>{key.split('/', 2)[2]}</Key><Size>{len(data)}</Size>"
                "<LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
                for key, data in sorted(OBJECTS.items())
                if key.count("/") > 1
            )
            self.answer(200, f"<ListBucketResult>{found}</ListBucketResult>".encode())
        elif self.key() not in OBJECTS:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            data = OBJECTS[self.key()]
            self.answer(200, data, ETag=f'"{hashlib.md5(data).hexdigest()}"', Last_Modified="Thu, 01 Jan 2026 00:00:00 GMT")

    do_HEAD = do_GET

    def do_DELETE(self) -> None:
        OBJECTS.pop(self.key(), None)
        self.answer(204)

    def do_POST(self) -> None:
        """Deletes several objects."""
        keys = [element.text for element in ElementTree.fromstring(self.body()).iter() if element.tag.endswith("Key")]
        for key in keys:
            OBJECTS.pop(f"{self.key().rstrip('/')}/{key}", None)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self.answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Forgetful).serve_forever()
