# An image with the runtime only: numpy, ONNX Runtime and the command line, without PyTorch and without a compiler.
#   docker build -t adar .
#   docker run --rm -v "$PWD:/work" adar run graph.npz --bundle bundle --output predictions.csv
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY adar_deploy adar_deploy
COPY runtime runtime
COPY train train
COPY export export
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
# Use onnxruntime-gpu for CUDA. Install one of the two, never both: they share one folder.
ARG ONNXRUNTIME=onnxruntime
COPY --from=build /wheels /wheels
COPY constraints.txt /wheels/
RUN pip install --no-cache-dir -c /wheels/constraints.txt numpy "$ONNXRUNTIME" rich safetensors typer \
 && pip install --no-cache-dir --no-deps /wheels/*.whl \
 && rm -r /wheels \
 && adar-deploy --version
RUN useradd --create-home adar
USER adar
WORKDIR /work
ENTRYPOINT ["adar-deploy"]
CMD ["--help"]
