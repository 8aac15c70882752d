# The Nightingale server. Three variants from one file:
#
#   docker build -t nightingale:cpu .
#   docker build -t nightingale:cuda --build-arg TORCH=cuda .
#   docker build -t nightingale:wren --build-arg TORCH=none .    # only the built-in model, without PyTorch
#
# torch contains the CUDA libraries, so all variants use the same small base image; the host provides the driver.
# ffmpeg is not needed, because PyAV contains its libraries.

# The Python version of constraints.txt. `make image-lock` pins it by digest.
ARG BASE=python:3.11-slim
FROM ${BASE} AS build
ARG TORCH=cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/nightingale
ENV PATH=/opt/nightingale/bin:$PATH
WORKDIR /src
# torch first, in a layer of its own: it is the largest and changes least.
COPY constraints.txt ./
RUN version=$(sed -n 's/^torch==//p' constraints.txt) \
 && case "$TORCH" in \
      none) ;; \
      cpu) pip install "torch==$version" --index-url https://download.pytorch.org/whl/cpu ;; \
      *) pip install "torch==$version" ;; \
    esac
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
COPY docs ./docs
COPY tools/wheel_docs.py ./tools/
RUN extras=server,wyoming && if [ "$TORCH" != none ]; then extras=torch,$extras; fi \
 && pip install -c constraints.txt ".[$extras]"

FROM ${BASE}
LABEL org.opencontainers.image.title="Nightingale" \
      org.opencontainers.image.description="Text to speech on your own machine, with OpenAI's audio API" \
      org.opencontainers.image.licenses="MIT"
COPY --from=build /opt/nightingale /opt/nightingale
RUN useradd --create-home --uid 10001 nightingale && install -d -o nightingale /data
USER nightingale
ENV PATH=/opt/nightingale/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NIGHTINGALE_HOST=0.0.0.0 \
    NIGHTINGALE_HOME=/data \
    HF_HOME=/data/hub
# Voices and downloaded weights.
VOLUME /data
EXPOSE 8880 10200
# /ready and not /health: a server that is still loading must get no traffic.
HEALTHCHECK --interval=15s --timeout=3s --start-period=300s --retries=3 \
  CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:%s/ready' % os.environ.get('NIGHTINGALE_PORT', 8880), timeout=2)"]
# In a container all clients are other machines: set a key (NIGHTINGALE_API_KEY), or pass --insecure.
ENTRYPOINT ["nightingale", "serve"]
