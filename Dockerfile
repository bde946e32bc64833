# Pagoda and everything it needs, for configs/kuberay.yaml: docker build -t REGISTRY/pagoda:0.1.0 .
# torch's wheels bring CUDA 13; the node needs NVIDIA's driver 580 or newer. For CPUs only:
#   docker build -t pagoda:0.1.0-cpu --build-arg WITHOUT=triton \
#     --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu .
# docs/image.md says what of this was built where, and how large it is.
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS built
ARG TORCH_INDEX=
ARG EXTRAS=gcp,otlp
# packages that are not needed after all: on CPUs none of our kernels is in Triton
ARG WITHOUT=
COPY . /src
# modules are compiled here, whatever time their files get: who serves may not write beside them;
# what is of another Python cannot be compiled
RUN python3 -m venv /opt/pagoda \
 && PIP_EXTRA_INDEX_URL="${TORCH_INDEX}" /opt/pagoda/bin/python -m pip install --no-cache-dir \
      --no-compile -c /src/constraints.txt "/src[${EXTRAS}]" \
 && if [ -n "${WITHOUT}" ]; then /opt/pagoda/bin/python -m pip uninstall --yes ${WITHOUT}; fi \
 && { /opt/pagoda/bin/python -m compileall -qq --invalidation-mode unchecked-hash /opt/pagoda/lib; \
      /opt/pagoda/bin/pagoda version; }

FROM ${BASE}
# gcc compiles kernels for CPUs and Triton's launchers at first use, KubeRay's probes call wget
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev wget \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 1001 --gid 0 --create-home pagoda \
 && chmod g=u /home/pagoda
COPY --from=built /opt/pagoda /opt/pagoda
ENV PATH=/opt/pagoda/bin:$PATH HOME=/home/pagoda
# any user of group 0 may run it
USER 1001
WORKDIR /home/pagoda
COPY serve_config.yaml ./
EXPOSE 8000
STOPSIGNAL SIGTERM
CMD ["pagoda", "serve", "--host", "0.0.0.0"]
