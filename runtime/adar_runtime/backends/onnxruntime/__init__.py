"""ONNX Runtime on the CPU and on CUDA."""
