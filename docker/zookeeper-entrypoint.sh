#!/usr/bin/env bash
# Writes the server's configuration and its number, then starts the server. It takes the variables of the official
# image `zookeeper:3.9`, so that compose.yaml is right for both. Two things differ: the configuration is written at
# each start, since it holds nothing that the variables do not say, and it lies in /tmp, since the root may be
# read-only.
#
#   ZOO_MY_ID       number of this server                       (1)
#   ZOO_SERVERS     the ensemble, `server.<n>=<host>:2888:3888;2181 ...`; empty = one server, alone
#   ZOO_CFG_EXTRA   more lines of zoo.cfg, separated by spaces
#   ZK_SERVER_HEAP  heap in MiB                                 (1536: docs/design/zookeeper-facts.md, Z14)
#   ZOO_DATA_DIR, ZOO_DATA_LOG_DIR  folders                     (/data), of the log: that of the data
#   ZOO_CONF_DIR    folder of the configuration                 (/tmp)
#   ZOO_TICK_TIME, ZOO_INIT_LIMIT, ZOO_SYNC_LIMIT, ZOO_MAX_CLIENT_CNXNS, ZOO_AUTOPURGE_PURGEINTERVAL,
#   ZOO_AUTOPURGE_SNAPRETAINCOUNT, ZOO_STANDALONE_ENABLED, ZOO_ADMINSERVER_ENABLED, ZOO_4LW_COMMANDS_WHITELIST
#                   as their names say
set -euo pipefail

data=${ZOO_DATA_DIR:-/data}
config=${ZOO_CONF_DIR:-/tmp}/zoo.cfg

if [[ -n ${ZOO_MY_ID:-} && ! $ZOO_MY_ID =~ ^[0-9]+$ ]]; then
    echo "zookeeper: expected a number in ZOO_MY_ID, found '$ZOO_MY_ID'; give each server one of its own" >&2
    exit 2
fi

{
    echo "dataDir=$data"
    echo "dataLogDir=${ZOO_DATA_LOG_DIR:-$data}"
    echo "tickTime=${ZOO_TICK_TIME:-2000}"
    echo "initLimit=${ZOO_INIT_LIMIT:-5}"
    echo "syncLimit=${ZOO_SYNC_LIMIT:-2}"
    echo "maxClientCnxns=${ZOO_MAX_CLIENT_CNXNS:-1000}"
    echo "autopurge.snapRetainCount=${ZOO_AUTOPURGE_SNAPRETAINCOUNT:-3}"
    echo "autopurge.purgeInterval=${ZOO_AUTOPURGE_PURGEINTERVAL:-1}"
    echo "admin.enableServer=${ZOO_ADMINSERVER_ENABLED:-false}"
    echo "4lw.commands.whitelist=${ZOO_4LW_COMMANDS_WHITELIST:-ruok,srvr,mntr}"
    # Each write is on disk before it is answered. ZOO_CFG_EXTRA comes later and could say otherwise.
    echo "forceSync=yes"
    if [[ -n ${ZOO_SERVERS:-} ]]; then
        echo "standaloneEnabled=${ZOO_STANDALONE_ENABLED:-true}"
        for server in $ZOO_SERVERS; do echo "$server"; done
    else
        echo "clientPort=2181"
    fi
    for line in ${ZOO_CFG_EXTRA:-}; do echo "$line"; done
} >"$config"

# The number is a part of the data: a volume keeps the one that it was made with.
[[ -f $data/myid ]] || echo "${ZOO_MY_ID:-1}" >"$data/myid"

# Without the `exec`, SIGTERM would reach this script and not the server.
exec "${JAVA_HOME:-/opt/java}/bin/java" "-Xmx${ZK_SERVER_HEAP:-1536}m" -XX:+UseSerialGC -XX:+ExitOnOutOfMemoryError \
    -Dlog4j2.level=warn -cp '/opt/zookeeper/*' org.apache.zookeeper.server.quorum.QuorumPeerMain "$config"
