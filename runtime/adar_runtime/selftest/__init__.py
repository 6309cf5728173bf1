"""The self-test: every backend of this machine against ONNX Runtime on the CPU."""
