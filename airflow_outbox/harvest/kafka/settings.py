"""Settings that every Kafka client here shares."""

from __future__ import annotations

from airflow_outbox.harvest.settings_base import KafkaSettings

CLIENT_SETTINGS: KafkaSettings = {
    "client.id": "airflow-outbox",
    # A broker that is back is found within a second; librdkafka's own limit is 10 s.
    "reconnect.backoff.max.ms": 1000,
    # A client that asks for topics while a broker begins to answer again may lose the question (librdkafka 2.16), and
    # then repeats it only at this interval; librdkafka's own is five minutes.
    "topic.metadata.refresh.interval.ms": 5_000,
    "log.connection.close": False,
    "socket.keepalive.enable": True,
    # A transaction is a series of small requests: none must wait for TCP to acknowledge the one before.
    "socket.nagle.disable": True,
}
