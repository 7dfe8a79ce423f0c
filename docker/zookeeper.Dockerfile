# A ZooKeeper server, alone or of an ensemble, out of the jars of the PySpark wheel, for machines on which no registry
# can be reached. docker/zookeeper-image.sh gathers the build context and builds. Where a registry answers, the official
# image `zookeeper:3.9` serves as well: same variables, same ports, same volume, and a user of the same name.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
COPY java /opt/java
COPY lib /opt/zookeeper
COPY zookeeper-entrypoint.sh /opt/zookeeper/entrypoint.sh
RUN groupadd --gid 10001 zookeeper \
 && useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin zookeeper \
 && install -d -o zookeeper -g zookeeper -m 0750 /data
USER zookeeper
WORKDIR /data
VOLUME /data
EXPOSE 2181 2888 3888
ENTRYPOINT ["/opt/zookeeper/entrypoint.sh"]
# `ruok` would not do: a server that serves nobody answers `imok`.
HEALTHCHECK --interval=5s --timeout=5s --start-period=180s --retries=3 CMD ["bash", "-c", \
            "exec 3<>/dev/tcp/127.0.0.1/2181 && echo srvr >&3 && grep -q '^Mode: ' <&3"]
