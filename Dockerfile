# Pagoda and everything it needs, for configs/kuberay.yaml: docker build -t REGISTRY/pagoda:0.1.0 .
# torch's wheels bring CUDA 13; the node needs NVIDIA's driver 580 or newer. Without it, for CPUs only:
#   docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu -t pagoda:0.1.0-cpu .
# docs/image.md says what was built of this, where, and how large it is.
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS built
ARG TORCH_INDEX=
ARG EXTRAS=gcp,otlp
COPY . /src
# apart from the system's Python, and without what only installing needs
RUN python3 -m venv /opt/pagoda \
 && PIP_EXTRA_INDEX_URL="${TORCH_INDEX}" /opt/pagoda/bin/python -m pip install --no-cache-dir \
      --no-compile -c /src/constraints.txt "/src[${EXTRAS}]"

FROM ${BASE}
# gcc compiles kernels for CPUs and Triton's launchers at first use, KubeRay's probes call wget
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev wget \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 1001 --gid 0 --create-home pagoda \
 && chmod g=u /home/pagoda
COPY --from=built /opt/pagoda /opt/pagoda
ENV PATH=/opt/pagoda/bin:$PATH HOME=/home/pagoda
USER 1001
WORKDIR /home/pagoda
COPY --chown=1001:0 serve_config.yaml ./
EXPOSE 8000
STOPSIGNAL SIGTERM
CMD ["pagoda", "serve", "--host", "0.0.0.0"]
