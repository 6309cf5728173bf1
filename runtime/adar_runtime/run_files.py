"""Names of the files in the folder of a training run.

The names are in this package because reports read run folders without PyTorch.
"""

WEIGHTS = "model.safetensors"
CONFIG = "config.json"  # data, kind of model, settings; a folder with this file is a finished run
METRICS = "metrics.json"
HISTORY = "history.json"  # loss of every epoch
GRAPH = "graph.pt"  # the first of the graphs that the model was trained on
LEARNING_CURVE = "learning.png"
TENSORBOARD = "tensorboard"  # a folder
CHECKPOINT = "checkpoint.safetensors"  # of an unfinished run
