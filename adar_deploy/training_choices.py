"""The choices of the options of `adar-deploy train`."""

from enum import StrEnum


class Preset(StrEnum):
    quick = "quick"
    transductive = "transductive"
    zero_shot = "zero-shot"


class Task(StrEnum):
    node = "node"
    edge = "edge"
    graph = "graph"


class Alignment(StrEnum):
    cosine_margin = "cosine-margin"
    mean_inner_product = "mean-inner-product"


class ClassWeights(StrEnum):
    none = "none"
    balanced = "balanced"


class Calibration(StrEnum):
    quick = "quick"
    full = "full"
    none = "none"


class Ablation(StrEnum):
    step_info = "step-info"
    relation = "relation"
    total_time = "total-time"
    step_loss = "step-loss"
    full_loss = "full-loss"
