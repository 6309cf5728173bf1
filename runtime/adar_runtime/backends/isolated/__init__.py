"""Models that are not known to be safe: ONNX Runtime in a child process, with limits of memory and time."""
