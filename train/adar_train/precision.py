"""Where training uses bfloat16 for its matrix products."""

from collections.abc import Iterable

import torch

from adar_runtime.graph import Graph

BFLOAT16_FROM = 4000  # nodes; below, conversions to bfloat16 take longer than its faster products save


def prefers_bfloat16(graphs: Iterable[Graph], device: torch.device) -> bool:
    """Whether bfloat16 is faster: on CUDA, and for large graphs on a CPU with instructions for it."""
    return device.type == "cuda" or (
        has_bfloat16_instructions() and max(graph.nodes for graph in graphs) >= BFLOAT16_FROM
    )


def has_bfloat16_instructions() -> bool:
    """Whether this CPU has AVX512-BF16 or AMX."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16"))
