"""gRPC errors as one exception type that carries what the server attached: wrong fields, when to retry."""

from __future__ import annotations

import dataclasses

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

_DETAILS_KEY = "grpc-status-details-bin"


@dataclasses.dataclass(frozen=True, slots=True)
class FieldViolation:
    """One wrong field of a request: its path ("sampling.top_p") and what is wrong."""

    field: str
    description: str


class LongspanError(Exception):
    """A call that the server, or gRPC on the way, refused or ended."""

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        field_violations: tuple[FieldViolation, ...] = (),
        retry_delay: float | None = None,
    ):
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        self.field_violations = field_violations  # of INVALID_ARGUMENT
        self.retry_delay = retry_delay  # seconds to wait before a retry; None: not said


def error_of(error: grpc.RpcError) -> LongspanError:
    """Details that do not decode are left out: the code and the message stand without them."""
    violations: list[FieldViolation] = []
    retry_delay = None
    for detail in _details(error):
        bad_request = error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        try:
            if detail.Unpack(bad_request):
                violations += [FieldViolation(v.field, v.description) for v in bad_request.field_violations]
            elif detail.Unpack(retry):
                retry_delay = retry.retry_delay.seconds + retry.retry_delay.nanos * 1e-9
        except DecodeError:
            continue
    return LongspanError(error.code(), error.details() or "", tuple(violations), retry_delay)


def _details(error: grpc.RpcError):
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY:
            try:
                return status_pb2.Status.FromString(value).details
            except DecodeError:
                break
    return ()
