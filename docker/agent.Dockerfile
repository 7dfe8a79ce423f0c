# One replica agent. Build it from the top folder of a checkout:
#
#   docker build -t tidelock-agent -f docker/agent.Dockerfile .
#
# Where no registry can be reached, docker/base-image.sh makes a base: --build-arg BASE=tidelock-base:local.
# A package index other than PyPI: --build-arg PIP_INDEX_URL, which is pip's own variable, taken from the environment.
# What it says stays in the first stage; the image does not hold it.
ARG BASE=python:3.11-slim

FROM ${BASE} AS libraries
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
# The agent's environment has no pip of its own: the one beside it works for both. Those that come with Python 3.11
# refuse hashes in constraints, so it is a newer one.
RUN python3 -m venv tools \
 && echo "pip==26.3 --hash=sha256:f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13" >pip.txt && tools/bin/pip install --quiet --require-hashes -r pip.txt \
 && python3 -m venv --without-pip /opt/tidelock

# The names come from pyproject.toml without its extras, versions and hashes from the
# lock file, which is of all extras: as constraints it installs nothing that nobody asked for.
COPY requirements.lock pyproject.toml ./
RUN python3 -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' >base.txt \
 && tools/bin/pip install --quiet --require-hashes -c requirements.lock setuptools \
 && tools/bin/pip --python /opt/tidelock/bin/python install --quiet --require-hashes -c requirements.lock --only-binary :all: -r base.txt \
 && rm -rf /opt/tidelock/lib/python3*/site-packages/pyarrow/include /opt/tidelock/lib/python3*/site-packages/pyarrow/tests

# The agent itself, as it will lie over the libraries.
FROM libraries AS agent
COPY README.md LICENSE ./
COPY csnlog csnlog
COPY replication replication
COPY replica_agent replica_agent
COPY spark spark
COPY tidelock tidelock
RUN tools/bin/pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist . \
 && tools/bin/pip --python /opt/tidelock/bin/python install --quiet --no-deps --no-index --prefix /build/agent dist/*.whl

FROM ${BASE}
# The numbers are fixed, so that the owner of a bind mount can be set from outside. A named volume takes the owner
# of the folder here.
RUN groupadd --gid 10001 tidelock \
 && useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin tidelock \
 && install -d -o tidelock -g tidelock -m 0750 /data
# Two layers: the large one changes with the lock file only.
COPY --from=libraries /opt/tidelock /opt/tidelock
COPY --from=agent /build/agent /opt/tidelock
# Inside a container the loopback address would be of no use; so the agent refuses to start without TIDELOCK_SECRET.
ENV PATH=/opt/tidelock/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TIDELOCK_BIND=0.0.0.0 \
    TIDELOCK_API_PORT=8801 \
    TIDELOCK_DATA_PORT=8901 \
    TIDELOCK_DATA_DIR=/data
USER tidelock
WORKDIR /data
VOLUME /data
EXPOSE 8801 8901
# SIGTERM drains; it reaches the agent, because no shell stands between.
STOPSIGNAL SIGTERM
ENTRYPOINT ["tidelock", "agent"]
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s --retries=3 CMD ["python3", "-I", "-c", "\
import http.client, os, sys\n\
agent = http.client.HTTPConnection('127.0.0.1', int(os.environ['TIDELOCK_API_PORT']), timeout=4)\n\
agent.request('GET', '/readyz')\n\
sys.exit(agent.getresponse().status != 200)"]
