# CPU:   docker build -t quire .
# CUDA:  docker build -t quire:cuda --build-arg VARIANT=cuda .
# Extras of pyproject.toml, such as traces: --build-arg EXTRAS=otel
# Without SmolLM2, 98 MB, which is served where no MODEL is given: --build-arg MODEL=bundled
# Run:   docker run -p 8000:8000 -v quire-cache:/cache quire [MODEL] [--flag ...]
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS builder
ARG VARIANT=cpu
ARG CUDA=cu130
ARG TORCH_INDEX=https://download.pytorch.org/whl
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/quire/bin:$PATH
WORKDIR /build
RUN python -m venv /opt/quire

# torch comes from its own index: the package index has the CUDA build only.
COPY constraints.txt pyproject.toml ./
RUN case "$VARIANT" in \
        cpu) index="$TORCH_INDEX/cpu" ;; \
        cuda) index="$TORCH_INDEX/$CUDA" ;; \
        *) echo "VARIANT is $VARIANT, must be cpu or cuda" >&2; exit 1 ;; \
    esac \
    && pip install --no-deps --index-url "$index" -c constraints.txt torch

# The other dependencies, in a layer that survives changes of the code.
ARG EXTRAS=
RUN python -c "import os, tomllib; \
project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
extras = filter(None, os.environ['EXTRAS'].split(',')); \
more = [each for extra in extras for each in project['optional-dependencies'][extra]]; \
print(*project['dependencies'], *more, sep='\n')" > requirements.txt \
    && pip install -c constraints.txt -r requirements.txt

# For the C++ kernels; it stays in this stage.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

COPY LICENSE README.md setup.py ./
COPY src src
RUN pip wheel --no-deps --wheel-dir dist . \
    && pip install --no-deps dist/*.whl

# In the image, so that all starts of all replicas serve the same, with a network or without.
ARG MODEL=smollm2
RUN if [ "$MODEL" != bundled ]; then \
        python -m quire.server.cli.default_model /opt/quire/share/quire; \
    fi


FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="Quire" \
      org.opencontainers.image.description="Continuous-batching inference server for language models" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.2.0"

# Triton compiles what launches its kernels when it first runs: for a GPU it wants a C compiler.
ARG VARIANT=cpu
RUN if [ "$VARIANT" = cuda ]; then \
        apt-get update \
        && apt-get install -y --no-install-recommends gcc libc6-dev \
        && rm -rf /var/lib/apt/lists/*; \
    fi

# Any UID will do, as long as its group is 0: that is how OpenShift runs containers.
RUN useradd --no-log-init --uid 10001 --gid 0 --no-create-home --home-dir /cache quire \
    && mkdir -p /cache/huggingface /cache/xdg /cache/torch /cache/triton /cache/inductor \
    && chown -R 10001:0 /cache \
    && chmod -R g=u /cache
COPY --from=builder /opt/quire /opt/quire

# Everything that is written goes below /cache. USER is for UIDs without a name.
ENV PATH=/opt/quire/bin:$PATH \
    HOME=/cache \
    USER=quire \
    HF_HOME=/cache/huggingface \
    XDG_CACHE_HOME=/cache/xdg \
    TORCH_HOME=/cache/torch \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor \
    TRITON_CACHE_DIR=/cache/triton \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    QUIRE_HOST=0.0.0.0 \
    QUIRE_PORT=8000
VOLUME /cache
WORKDIR /cache
USER 10001:0
EXPOSE 8000
STOPSIGNAL SIGTERM
# Alive from process start on; whether requests are taken is /readyz. Change the port by QUIRE_PORT, and say
# QUIRE_SSL_CERTFILE for TLS, so that this sees it.
# The OCI format has no health checks, and Buildah drops it there: the label has the same command, as a shell writes it.
LABEL quire.healthcheck="python -c \"import os, ssl, urllib.request as r; e = os.environ; s = 's' * ('QUIRE_SSL_CERTFILE' in e); r.urlopen(f'http{s}://127.0.0.1:' + e['QUIRE_PORT'] + '/livez', timeout=4, context=ssl._create_unverified_context())\""
HEALTHCHECK --interval=10s --timeout=5s --start-period=15s --retries=3 \
    CMD ["python", "-c", "import os, ssl, urllib.request as r; e = os.environ; s = 's' * ('QUIRE_SSL_CERTFILE' in e); r.urlopen(f'http{s}://127.0.0.1:' + e['QUIRE_PORT'] + '/livez', timeout=4, context=ssl._create_unverified_context())"]
ENTRYPOINT ["quire", "serve"]
