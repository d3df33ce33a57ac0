# Build: podman build --format docker -t lvfl . (docker build -t lvfl . alike). How it is run: docs/operate.md.
# TORCH for a GPU: --build-arg TORCH="torch torchvision"
ARG BASE=docker.io/library/python:3.13-slim
FROM ${BASE} AS build
ARG TORCH="--index-url https://download.pytorch.org/whl/cpu torch torchvision"
RUN python3 -m venv /opt/lvfl && /opt/lvfl/bin/pip install --no-cache-dir --no-compile ${TORCH}
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY configs configs
COPY models models
COPY parties parties
COPY scripts scripts
COPY vfl vfl
# Headers, the packages' own tests, clients of other services and pip are of no use in a process that serves.
RUN /opt/lvfl/bin/pip install --no-cache-dir --no-compile ".[serve]" \
    && cd /opt/lvfl/lib/python3*/site-packages \
    && find . -type d \( -name tests -o -path ./torch/include -o -path ./pyarrow/include \) -prune -exec rm -r {} + \
    && find torch/bin -type f ! -name torch_shm_manager -delete \
    && rm -rf pip pip-* torch/test pyarrow/*flight*.so* pyarrow/*s3*.so* tensorboard_data_server*
# The root file system is read-only: what a training and a service import is compiled here, by a training of one round.
# A training makes what it writes its user's own, and here that is root.
RUN cd /tmp && PATH=/opt/lvfl/bin:$PATH \
    && lvfl train quickstart_tables training.rounds=1 --processes --run-dir run && rm -r run \
    && python3 -c "import vfl.parties.serving.score_server, vfl.parties.serving.serving_party, vfl.parties.matching.processes" \
    && chmod -R a+rX /opt/lvfl

FROM ${BASE}
COPY --from=build /opt/lvfl /opt/lvfl
ENV PATH=/opt/lvfl/bin:$PATH HOME=/tmp MPLCONFIGDIR=/tmp OMP_WAIT_POLICY=passive HEALTH=""
WORKDIR /work
USER 10001:10001
# HEALTH: an address of network.metrics or of lvfl serve, such as http://127.0.0.1:8080/healthz; without one it says nothing.
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python3", "-c", "import os, urllib.request as r; u = os.environ['HEALTH']; u and r.urlopen(u, timeout=4)"]
ENTRYPOINT ["lvfl"]
CMD ["--help"]
