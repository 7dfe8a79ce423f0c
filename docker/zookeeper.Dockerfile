# One ZooKeeper server, alone, out of the jars of the PySpark wheel, for machines on which no registry can be reached.
# docker/zookeeper-image.sh gathers the build context and builds. Where a registry answers, the official image
# `zookeeper:3.9` serves as well: same port, same volume; and three of it make an ensemble, which this image cannot.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
COPY java /opt/java
COPY lib /opt/zookeeper
COPY zoo.cfg /opt/zookeeper/zoo.cfg
RUN groupadd --gid 10001 zookeeper \
 && useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin zookeeper \
 && install -d -o zookeeper -g zookeeper -m 0750 /data
# Java reads this variable itself, so that the heap can be set from outside. The heap holds all znodes
# and the last 500 requests: see docs/design/zookeeper-facts.md, Z14.
ENV JDK_JAVA_OPTIONS="-Xmx1536m"
USER zookeeper
WORKDIR /data
VOLUME /data
EXPOSE 2181
ENTRYPOINT ["/opt/java/bin/java", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError", "-Dlog4j2.level=warn", \
            "-cp", "/opt/zookeeper/*", "org.apache.zookeeper.server.quorum.QuorumPeerMain", "/opt/zookeeper/zoo.cfg"]
# `ruok` would not do: a server that serves nobody answers `imok`.
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s --retries=3 CMD ["bash", "-c", \
            "exec 3<>/dev/tcp/127.0.0.1/2181 && echo srvr >&3 && grep -q '^Mode: ' <&3"]
