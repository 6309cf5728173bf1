"""TensorRT engines of a bundle: built from its ONNX files, kept beside them, checked before they are used.

They are a cache, never the truth: deleting the folder `engines` costs nothing but the time to build them
again. All of it works without PyTorch, since an engine is best built on the machine that is to run it.
"""

FOLDER = "engines"
