# Roundelay on the CPU, ready to run:   docker build -t roundelay . && docker run --rm -it -v "$PWD:/work" roundelay demo
# Learners share memory: give them more than Docker's 64 MB where networks are large (--shm-size 2g).
FROM python:3.12-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" "torch>=2.11"
COPY pyproject.toml README.md LICENSE /source/
COPY src /source/src
COPY speech /source/speech
RUN pip install --no-cache-dir "/source[demo,hosts]" /source/speech && useradd --create-home --uid 1000 user
USER 1000
WORKDIR /work
ENTRYPOINT ["roundelay"]
