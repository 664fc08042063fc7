"""Requests as bytes that no generated client would write: a map's key twice (case 27), integers wider than their field
(faults R3, U1), and the borders of the other methods' fields."""

import math
import struct

import grpc
import pytest
from harness import CODE, drain, is_repeated, request
from longspan.v1 import admin_pb2, inference_pb2

GENERATE = "/longspan.v1.Inference/Generate"
SAMPLING, LOGIT_BIAS = 7, 9
NAN, INF = math.nan, math.inf
MIN32, MAX32 = -(2**31), 2**31 - 1


def varint(value):
    value &= (1 << 64) - 1
    out = b""
    while value >= 128:
        out, value = out + bytes([value % 128 + 128]), value // 128
    return out + bytes([value])


def nested(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def entry(key=None, value=None, extra=b""):
    """One entry of logit_bias, inside the sampling parameters of a request."""
    data = b"" if key is None else varint(1 << 3) + varint(key)
    data += b"" if value is None else varint(2 << 3 | 5) + struct.pack("<f", value)
    return nested(LOGIT_BIAS, data + extra)


def send(server, *parts):
    """A greedy request of three tokens, with these bytes behind it."""
    data = request([9], 3).SerializeToString() + b"".join(parts)
    return drain(server.channel.unary_stream(GENERATE, response_deserializer=inference_pb2.GenerateResponse.FromString)(
        data, timeout=60))


def biased(server, *entries):
    return send(server, nested(SAMPLING, b"".join(entries)))


def test_Case_027_AKeyGivenTwiceCountsOnceWithItsLastValue(server):
    plain = server.generate([9], 3).ids()
    assert 77 not in plain
    up, down = entry(77, 100.0), entry(77, -100.0)
    assert biased(server, up).ids() == [77] * 3
    assert biased(server, down, up).ids() == [77] * 3
    assert biased(server, up, down).ids() == plain
    assert biased(server, up, entry(78, 1.0), down).ids() == plain
    assert biased(server, up, up).ids() == [77] * 3, "and is not added up"
    assert biased(server, *[entry(77, 60.0), entry(78, 90.0)] * 2).ids() == [78] * 3
    # The same in two pieces of one message, which the wire joins.
    assert send(server, nested(SAMPLING, up), nested(SAMPLING, down)).ids() == plain
    assert send(server, nested(SAMPLING, down), nested(SAMPLING, up)).ids() == [77] * 3


def test_Case_027_DuplicatesHideNothingThatCounts(server):
    assert biased(server, entry(3, NAN), entry(3, 5.0)).code == CODE.OK, "the value that counts is good"
    for bad in (entry(3, NAN), entry(3, 1e38), entry(3, 100.5), entry(3, -INF)):
        answer = biased(server, entry(3, 5.0), bad)
        assert (answer.code, answer.fields()) == (CODE.INVALID_ARGUMENT, ["sampling.logit_bias[3]"])
    for key in (512, -1, 2**31, 2**32 - 1, MIN32):
        answer = biased(server, entry(key, 1.0), entry(key, 1.0))
        assert answer.code == CODE.INVALID_ARGUMENT and answer.fields()[0].startswith("sampling.logit_bias[")
    # The limit is of entries that count: 1,024 keys ten times, and one key too many.
    keys = [entry(i % 512, 1.0) for i in range(512)]
    assert biased(server, *keys * 10).code == CODE.OK
    many = [entry(i, 1.0) for i in range(1025)]
    assert biased(server, *many[:1024]).fields()[0].startswith("sampling.logit_bias["), "ids beyond the vocabulary"
    answer = biased(server, *many)
    assert (answer.code, answer.fields()) == (CODE.INVALID_ARGUMENT, ["sampling.logit_bias"])


def test_Case_027_EntriesWithoutKeyOrValueOrWithMore(server):
    plain = server.generate([9], 3).ids()
    assert biased(server, entry(77)).ids() == plain, "no value is 0"
    assert biased(server, entry(None, 100.0)).ids() == [0] * 3, "no key is 0"
    assert biased(server, entry()).ids() == plain
    assert biased(server, entry(77, 100.0, extra=nested(5, b"new"))).ids() == [77] * 3
    assert biased(server, nested(LOGIT_BIAS, b"\x15\x00")).code == CODE.INVALID_ARGUMENT, "half a float"


def int32_fields(descriptor, path=()):
    """(numbers, name) of every single 32-bit integer below a message."""
    for field in descriptor.fields:
        here = (*path, field)
        if is_repeated(field):
            continue
        if field.message_type:
            yield from int32_fields(field.message_type, here)
        elif field.type == field.TYPE_INT32:
            yield here


@pytest.mark.parametrize("path", list(int32_fields(inference_pb2.GenerateRequest.DESCRIPTOR)),
                         ids=lambda path: ".".join(field.name for field in path))
def test_Fault_U1_WideIntegersAreWhatTheWireMakesOfThem(server, path):
    """int32 on the wire is 64 bits of which the lower 32 count; the answer is that to the number which is left."""
    *outer, last = [field.number for field in path]

    def answer_to(value):
        data = varint(last << 3) + varint(value)
        for number in reversed(outer):
            data = nested(number, data)
        answer = send(server, data)
        return answer.code, answer.fields() if answer.code == CODE.INVALID_ARGUMENT else [], len(answer.ids())

    for wide in (2**31, 2**32 - 1, 2**32, 2**32 + 3, 2**63 - 1, 2**63, 2**64 - 1):
        low = wide & 0xFFFFFFFF
        assert answer_to(wide) == answer_to(low - 2**32 if low >= 2**31 else low), wide
    if path[-1].name == "max_tokens":  # fault R3
        assert answer_to(2**31)[:2] == (CODE.INVALID_ARGUMENT, ["stop.max_tokens"])


def refused_fields(call, message):
    with pytest.raises(grpc.RpcError) as error:
        call(message, timeout=60)
    assert error.value.code() == CODE.INVALID_ARGUMENT, error.value
    assert len(error.value.details()) < 8192 and "limit" in error.value.details()
    return error.value.details().split(":")[0]


def test_Fault_U1_OtherMethodsAtTheirBorders(server):
    stub, m = server.inference, inference_pb2
    for bad in (-1, 512, MIN32, MAX32):
        assert refused_fields(stub.Detokenize, m.DetokenizeRequest(token_ids=[5, bad])) == "token_ids[1]"
    assert stub.Detokenize(m.DetokenizeRequest()).text == ""
    assert len(stub.Detokenize(m.DetokenizeRequest(token_ids=[97] * 100_000)).text) == 100_000
    # More text than a reply holds is refused before it is made.
    with pytest.raises(grpc.RpcError) as refused:
        stub.Detokenize(m.DetokenizeRequest(token_ids=[97] * 4_100_000))
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "token_ids: a text of more than 4000000 bytes" in refused.value.details()
    assert list(stub.Tokenize(m.TokenizeRequest(text="")).token_ids) == []
    assert list(stub.Tokenize(m.TokenizeRequest(text="\x00\U0010ffff")).token_ids) == [0, 0xF4, 0x8F, 0xBF, 0xBF]
    for bad in ("", "x" * 513):
        assert refused_fields(stub.Abort, m.AbortRequest(request_id=bad)) == "request_id"
    assert refused_fields(stub.Abort, m.AbortRequest()) == "request_id"
    assert not stub.Abort(m.AbortRequest(request_id="x" * 128)).found
    for bad in (-1.0, -5e-324, 86400.1, 1e308, NAN, INF, -INF):
        assert refused_fields(server.admin.Drain, admin_pb2.DrainRequest(timeout_seconds=bad)) == "timeout_seconds"
    for bad in ("", "loud", "x" * 17, "info\n"):
        assert refused_fields(server.admin.SetLogLevel, admin_pb2.SetLogLevelRequest(level=bad)) == "level"
