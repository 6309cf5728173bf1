"""TensorRT: the engines, the session on the device, and the CUDA calls."""
