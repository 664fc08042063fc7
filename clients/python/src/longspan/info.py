"""What the server says about its model, itself and its load, as plain values."""

from __future__ import annotations

import dataclasses
import enum

from longspan.v1 import inference_pb2 as pb


@dataclasses.dataclass(frozen=True, slots=True)
class ModelInfo:
    name: str
    architecture: str
    vocab_size: int
    context_length: int
    num_layers: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    kv_dtype: str
    kv_bytes_per_token: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    chat_template: str
    tokenizer_kind: str

    @classmethod
    def of(cls, message: pb.GetModelInfoResponse) -> ModelInfo:
        values = {field.name: getattr(message, field.name) for field in dataclasses.fields(cls)}
        values["eos_token_ids"] = tuple(message.eos_token_ids)
        if not message.HasField("bos_token_id"):
            values["bos_token_id"] = None
        return cls(**values)


class ServerState(enum.Enum):
    UNKNOWN = pb.SERVER_STATE_UNSPECIFIED
    LOADING = pb.SERVER_STATE_LOADING
    SERVING = pb.SERVER_STATE_SERVING
    DRAINING = pb.SERVER_STATE_DRAINING
    FAILED = pb.SERVER_STATE_FAILED

    @classmethod
    def _missing_(cls, value):
        return cls.UNKNOWN  # a state that a newer server knows


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    name: str
    description: str
    memory_total_bytes: int
    memory_used_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class ServerInfo:
    version: str
    commit: str
    devices: tuple[Device, ...]
    flags: dict[str, str]
    uptime_seconds: float
    state: ServerState

    @classmethod
    def of(cls, message: pb.GetServerInfoResponse) -> ServerInfo:
        devices = tuple(
            Device(device.name, device.description, device.memory_total_bytes, device.memory_used_bytes)
            for device in message.devices
        )
        return cls(
            message.version,
            message.commit,
            devices,
            dict(message.flags),
            message.uptime_seconds,
            ServerState(message.state),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    running_requests: int
    waiting_requests: int
    waiting_tokens: int
    total_blocks: int
    used_blocks: int
    evictable_blocks: int
    tokens_per_second: float
    estimated_queue_delay_seconds: float | None  # None before the server has measurements

    @classmethod
    def of(cls, message: pb.GetLoadResponse) -> Load:
        values = {field.name: getattr(message, field.name) for field in dataclasses.fields(cls)}
        if not message.HasField("estimated_queue_delay_seconds"):
            values["estimated_queue_delay_seconds"] = None
        return cls(**values)
