"""The step in phases: nodes in shards, and answers for new nodes from one kept inference."""
