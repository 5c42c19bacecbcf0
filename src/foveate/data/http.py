"""Read from http(s) addresses within limits: slow servers, endless bodies and other schemes are errors."""

from __future__ import annotations

import http.client
import io
import socket
import time
import urllib.parse
import urllib.request
from typing import IO, Any

from foveate.data.limits import BYTES_PER_SECOND, SHARD_BYTES, WAIT_SECONDS


def open_url(url: str) -> IO[bytes]:
    """The body of a reply.

    Raises:
        OSError, http.client.HTTPException: if the server cannot be reached or is too slow, here or when reading.
        DataError: if the body is too long, when reading.
    """
    opener = urllib.request.build_opener(_Handler, _SecureHandler, _SameScheme)
    return opener.open(url, timeout=WAIT_SECONDS.value)


class _SameScheme(urllib.request.HTTPRedirectHandler):
    """Follow redirects from http to https, and to the same scheme; Python's own also go to ftp."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        before, after = (urllib.parse.urlsplit(url).scheme for url in (req.full_url, newurl))
        if after not in (before, "https"):
            raise OSError(
                f"it redirects from {before} to {after or 'no scheme'} ({newurl[:200]}), which is not followed"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Watched(io.RawIOBase):
    """What a server sends, headers included. A timeout alone lets a byte per minute pass."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self.raw = raw
        self.waited, self.received, self.total = 0.0, 0, 0
        self.seconds, self.slowest = WAIT_SECONDS.value, BYTES_PER_SECOND.value

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        began = time.monotonic()
        count = self.raw.readinto(buffer)
        self.waited += time.monotonic() - began
        self.received += count or 0
        self.total += count or 0
        if self.waited >= self.seconds:
            if self.received < self.slowest * self.waited:
                raise OSError(
                    f"the server sent {self.received} bytes in {self.waited:.0f} s. Use a faster one, or raise "
                    f"{WAIT_SECONDS.variable}={self.seconds} or lower {BYTES_PER_SECOND.variable}={self.slowest}"
                )
            self.waited, self.received = 0.0, 0
        SHARD_BYTES.check(self.total, f"The server has sent {self.total} bytes for one shard")
        return count

    def close(self) -> None:
        self.raw.close()
        super().close()


class _Reply(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_Watched(self.fp.detach()))


class _Connection(http.client.HTTPConnection):
    response_class = _Reply


class _SecureConnection(http.client.HTTPSConnection):
    response_class = _Reply


class _Handler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Connection, req)


class _SecureHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_SecureConnection, req, context=self._context)  # type: ignore[attr-defined]
