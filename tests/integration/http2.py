"""HTTP/2 by hand, for what no gRPC library does: reset at full speed, windows of a few bytes, malformed metadata.

Frames are written as given; a thread answers SETTINGS and PING and counts what comes. Header blocks are written
without compression and never read: what the server did is asserted on its metrics.
"""

import collections
import socket
import struct
import threading

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
CANCEL = 8
SETTINGS_INITIAL_WINDOW_SIZE = 4
WHOLE_CONNECTION_WINDOW = 1 << 30


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def integer(value, prefix_bits):
    limit = (1 << prefix_bits) - 1
    if value < limit:
        return bytes([value])
    out, value = [limit], value - limit
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes([*out, value])


def header_block(headers):
    """Literal fields without indexing, names and values as they are."""
    out = b""
    for name, value in headers:
        out += b"\x00" + integer(len(name), 7) + name + integer(len(value), 7) + value
    return out


class Connection:
    """One connection. stream_window: bytes of each stream that the server may send before it is granted more."""

    def __init__(self, address, stream_window=65535):
        host, port = address.rsplit(":", 1)
        self.authority = address.encode()
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.lock = threading.Lock()
        self.next_stream = 1
        self.data_bytes = collections.Counter()  # by stream
        self.ended, self.reset = set(), set()
        self.goaway = self.closed = False
        settings = struct.pack(">HI", SETTINGS_INITIAL_WINDOW_SIZE, stream_window)
        self.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, settings))
        self.grant(0, WHOLE_CONNECTION_WINDOW)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def send(self, data):
        with self.lock:
            self.socket.sendall(data)

    def grant(self, stream, size):
        self.send(frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", size)))

    def call_frames(self, path, message, extra=(), reset=False):
        """(stream, bytes) of one call; with reset the client takes it back at once."""
        stream, self.next_stream = self.next_stream, self.next_stream + 2
        block = header_block([(b":method", b"POST"), (b":scheme", b"http"), (b":path", path),
                              (b":authority", self.authority), (b"te", b"trailers"),
                              (b"content-type", b"application/grpc"), *extra])
        out = frame(HEADERS, END_HEADERS, stream, block)
        if message is not None:
            out += frame(DATA, END_STREAM, stream, b"\x00" + struct.pack(">I", len(message)) + message)
        if reset:
            out += frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL))
        return stream, out

    def call(self, path, message, extra=()):
        stream, data = self.call_frames(path, message, extra)
        self.send(data)
        return stream

    def close(self):
        self.socket.close()

    def _exactly(self, size):
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError
            data += part
        return data

    def _read(self):
        try:
            while True:
                head = self._exactly(9)
                size = int.from_bytes(head[:3], "big")
                kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF
                payload = self._exactly(size)
                if kind == SETTINGS and not flags & ACK:
                    self.send(frame(SETTINGS, ACK, 0))
                elif kind == PING and not flags & ACK:
                    self.send(frame(PING, ACK, 0, payload))
                elif kind == DATA:
                    self.data_bytes[stream] += size
                elif kind == RST_STREAM:
                    self.reset.add(stream)
                elif kind == GOAWAY:
                    self.goaway = True
                if kind in (DATA, HEADERS) and flags & END_STREAM:
                    self.ended.add(stream)
        except OSError:
            self.closed = True
