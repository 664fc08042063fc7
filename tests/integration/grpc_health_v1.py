"""grpc.health.v1 without its package: two calls and two tiny messages, written by hand."""

UNKNOWN, SERVING, NOT_SERVING = 0, 1, 2


class HealthCheckRequest:
    def __init__(self, service=""):
        self.service = service

    def serialize(self):
        name = self.service.encode()
        return (b"\x0a" + bytes([len(name)]) + name) if name else b""


def _status(data):
    return data[1] if data else UNKNOWN


def Health(channel, message, timeout):
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=HealthCheckRequest.serialize,
        response_deserializer=_status,
    )
    return check(message, timeout=timeout)


def Watch(channel, message):
    """An iterator over the statuses of a service, the current one first."""
    watch = channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        request_serializer=HealthCheckRequest.serialize,
        response_deserializer=_status,
    )
    return watch(message)
