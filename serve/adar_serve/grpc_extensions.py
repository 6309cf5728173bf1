"""Messages of Triton's repository and statistics calls, which the stubs of the protocol do not have."""

from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

DURATIONS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
FIELDS: dict[str, tuple[str, ...]] = {
    "RepositoryIndexRequest": ("repository_name: string", "ready: bool"),
    "ModelIndex": ("name: string", "version: string", "state: string", "reason: string"),
    "RepositoryIndexResponse": ("models: ModelIndex*",),
    "RepositoryModelLoadRequest": ("repository_name: string", "model_name: string"),
    "RepositoryModelLoadResponse": (),
    "RepositoryModelUnloadRequest": ("repository_name: string", "model_name: string"),
    "RepositoryModelUnloadResponse": (),
    "ModelStatisticsRequest": ("name: string", "version: string"),
    "StatisticDuration": ("count: uint64", "ns: uint64"),
    "InferStatistics": tuple(f"{name}: StatisticDuration" for name in DURATIONS),
    "InferBatchStatistics": (
        "batch_size: uint64",
        *(f"{name}: StatisticDuration" for name in DURATIONS if name.startswith("compute")),
    ),
    "ModelStatistics": (
        "name: string",
        "version: string",
        "last_inference: uint64",
        "inference_count: uint64",
        "execution_count: uint64",
        "inference_stats: InferStatistics",
        "batch_stats: InferBatchStatistics*",
    ),
    "ModelStatisticsResponse": ("model_stats: ModelStatistics*",),
}
"""Each message with its fields in the order of their numbers, from 1; * is repeated.

Triton's messages have more fields after these; readers skip them.
"""


def _messages() -> dict[str, Any]:
    file = FileDescriptorProto(name="adar_extensions.proto", package="inference", syntax="proto3")
    for message, fields in FIELDS.items():
        described = file.message_type.add(name=message)
        for number, field in enumerate(fields, start=1):
            name, kind = field.split(": ")
            single = kind.removesuffix("*")
            label = "LABEL_OPTIONAL" if single == kind else "LABEL_REPEATED"
            added = described.field.add(name=name, number=number, label=label)
            if single in FIELDS:
                added.type, added.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".inference.{single}"
            else:
                added.type = getattr(FieldDescriptorProto, f"TYPE_{single.upper()}")
    pool = DescriptorPool()  # not the default one: NVIDIA's client may be in the same process
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"inference.{name}")) for name in FIELDS}


MESSAGES = _messages()
"""The classes of the messages, by name."""
