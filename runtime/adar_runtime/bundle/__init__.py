"""A bundle on disk: manifest, checks of the ONNX files, memory estimate, and `Bundle` itself."""
