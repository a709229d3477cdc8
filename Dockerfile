# Images of Atrium, for a CPU (the default) or for NVIDIA GPUs with vLLM.
#
#   docker build --tag atrium .
#   docker build --tag atrium:cuda --target cuda .
#   docker run --rm --volume "$PWD/runs:/atrium/runs" atrium train algorithm=atr
#   docker run --rm --gpus all --volume "$PWD/runs:/atrium/runs" atrium:cuda doctor
#
# --build-arg TORCH_INDEX=URL takes torch from an index of CPU wheels, which makes the CPU image smaller by 4 GB.
FROM python:3.12-slim AS base
RUN apt-get update \
    && apt-get install --yes --no-install-recommends make git \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /atrium
COPY . .
ENV PATH=/atrium/.venv/bin:$PATH
ENTRYPOINT ["atrium"]
CMD ["--help"]

FROM base AS cuda
# Triton compiles kernels when vLLM starts.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
RUN make install EXTRAS=gpu

FROM base AS cpu
ARG TORCH_INDEX
RUN make install
