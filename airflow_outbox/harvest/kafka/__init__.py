"""The engine's ports over Kafka, by confluent-kafka."""
