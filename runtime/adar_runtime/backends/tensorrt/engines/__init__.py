"""TensorRT engines of a bundle: built from its ONNX models, stored beside them, checked before each use.

Engines are a cache. Deleting the folder `engines` costs only the time to build them again. Building needs no
PyTorch, because an engine is best built on the machine that runs it.
"""

FOLDER = "engines"
