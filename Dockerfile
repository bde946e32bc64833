# Pagoda and everything it needs, for configs/kuberay.yaml: docker build -t REGISTRY/pagoda:0.1.0 .
# torch's wheels bring CUDA 13; the node needs NVIDIA's driver 580 or newer.
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE}
# gcc compiles kernels for CPUs and Triton's launchers at first use, KubeRay's probes call wget
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev wget \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 1001 --gid 0 --create-home pagoda
COPY . /src
RUN pip install --no-cache-dir -c /src/constraints.txt '/src[gcp]' && rm -rf /src
USER 1001
WORKDIR /home/pagoda
