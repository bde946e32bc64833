# Pagoda and everything it needs, for configs/kuberay.yaml: docker build -t REGISTRY/pagoda:0.1.0 .
# torch's wheels bring CUDA 13; the node needs NVIDIA's driver 580 or newer. For CPUs only:
#   docker build -t pagoda:0.1.0-cpu --build-arg WITHOUT=triton \
#     --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu .
# docs/image.md says what of this was built where, and how large it is.
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE}

# gcc compiles kernels for CPUs and, with Python's headers, Triton's launchers at first use;
# KubeRay's probes call wget
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev wget \
      $(python3 -c 'import pathlib, sysconfig; h = pathlib.Path(sysconfig.get_path("include"), "Python.h"); print("" if h.exists() else "libpython3-dev")') \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 1001 --gid 0 --create-home pagoda \
 && chmod g=u /home/pagoda

# all packages in a layer that is made anew, pushed and pulled only when they change: a project of
# their names and no module. Modules are compiled here, whatever time their files get: who serves
# may not write beside them; what is of another Python cannot be compiled
ARG TORCH_INDEX=
ARG EXTRAS=gcp,otlp
# packages that are not needed after all: on CPUs none of our kernels is in Triton
ARG WITHOUT=
COPY pyproject.toml constraints.txt /tmp/packages/
RUN python3 -m venv /opt/pagoda && cd /tmp/packages && touch README.md \
 && PIP_EXTRA_INDEX_URL="${TORCH_INDEX}" /opt/pagoda/bin/python -m pip install --no-cache-dir \
      --no-compile -c constraints.txt ".[${EXTRAS}]" \
 && /opt/pagoda/bin/python -m pip uninstall --yes pagoda ${WITHOUT} \
 && { /opt/pagoda/bin/python -m compileall -qq --invalidation-mode unchecked-hash /opt/pagoda/lib; \
      rm -r /tmp/packages; }
ENV PATH=/opt/pagoda/bin:$PATH HOME=/home/pagoda
# what NVIDIA's container toolkit hands in with a GPU; Ray counts GPUs with the second
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility

COPY . /tmp/source
RUN cd /tmp/source && python -m pip install --no-cache-dir --no-compile --no-deps . \
 && python -m compileall -qq --invalidation-mode unchecked-hash $(python -c \
      'import sysconfig; print(*(sysconfig.get_path("purelib") + "/" + each for each in ("app", "engine", "kernels", "load_tests")))') \
 && pagoda version \
 && cp serve_config.yaml /home/pagoda/ && rm -r /tmp/source \
 && install -d -o pagoda -g 0 -m 775 /home/pagoda/.cache

LABEL org.opencontainers.image.title=Pagoda \
      org.opencontainers.image.description="Serves large language models on Ray Serve with paged KV memory" \
      org.opencontainers.image.licenses=Apache-2.0
# any user of group 0 may run it
USER 1001
WORKDIR /home/pagoda
EXPOSE 8000
STOPSIGNAL SIGTERM
CMD ["pagoda", "serve", "--host", "0.0.0.0"]
