# One image, two entry points: the manager (`kvcm serve`, the default) and the operator (`python -m kvcm_operator`).
FROM python:3.11-slim
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
COPY pyproject.toml constraints.txt README.md ./
COPY kvcm kvcm
COPY operator operator
RUN pip install --no-cache-dir --constraint constraints.txt ".[operator,redis]" && rm -rf /src/*
# A number, so that a cluster which demands a user other than root can see that this is one.
RUN useradd --uid 65532 --user-group --no-create-home --shell /usr/sbin/nologin kvcm
USER 65532:65532
WORKDIR /
EXPOSE 6381 6382 6491 6492
CMD ["kvcm", "serve"]
