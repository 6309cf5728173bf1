"""Graphs on disk, in parts: for graphs that are larger than the memory."""

from adar_runtime.graph.store.store import GraphStore, Part, is_store, open_store
from adar_runtime.graph.store.write import EdgeBlocks, NodeRows, write_store

__all__ = ["EdgeBlocks", "GraphStore", "NodeRows", "Part", "is_store", "open_store", "write_store"]
