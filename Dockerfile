# An image with the runtime, the server and the command line: numpy and ONNX Runtime, without PyTorch and without a compiler.
# Dockerfile.gpu is for NVIDIA GPUs.
#   docker build -t adar .
#   docker run --rm -v "$PWD:/work" adar run graph.npz --bundle bundle --output predictions.csv
# The packages come from the lock files in requirements/, with hashes. The base image is named by its tag,
# because no digest of it has been verified for this project. To pin it, write python:3.11-slim@sha256:… in both FROM
# lines, with the digest that `docker buildx imagetools inspect python:3.11-slim` prints.
FROM python:3.11-slim AS build
WORKDIR /src
COPY requirements requirements
RUN pip install --no-cache-dir --no-deps --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY adar_deploy adar_deploy
COPY runtime runtime
COPY serve serve
COPY train train
COPY export export
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:3.11-slim
COPY --from=build /wheels /wheels
COPY requirements /requirements
RUN pip install --no-cache-dir --no-deps --require-hashes -r /requirements/runtime.txt -r /requirements/onnxruntime.txt \
 && pip install --no-cache-dir --no-deps /wheels/*.whl \
 && rm -r /wheels /requirements \
 && adar-deploy --version
RUN useradd --create-home adar
USER adar
WORKDIR /work
ENTRYPOINT ["adar-deploy"]
CMD ["--help"]
