"""The kinds of errors that Kafka's client reports for records that were sent.

The client explains by a code, its own or a broker's, why it has not delivered a record. The code's kind says what to do
about it. The table has all codes that the client knows. A code that is missing there, because a later release has added
it, is `UNCLEAR`: that kind narrows, and at first it needs nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from confluent_kafka import KafkaError as BrokerError


class ErrorKind(Enum):
    """The subject of an error.

    - `RECORD`: the records that were sent. It narrows: some of them, or their topic, can't be published.
    - `UNCLEAR`: these records, or Kafka itself. It narrows, too, but the record that is found is tried again.
    - `TRANSIENT`: Kafka at this moment. The same records are sent again.
    - `PRODUCER`: the producer, its login or the cluster. No record can be sent.
    """

    RECORD = "record"
    UNCLEAR = "unclear"
    TRANSIENT = "transient"
    PRODUCER = "producer"

    @property
    def narrows(self) -> bool:
        """Whether leaving records out may help."""
        return self in (ErrorKind.RECORD, ErrorKind.UNCLEAR)


NAMES: Mapping[ErrorKind, tuple[str, ...]] = {
    ErrorKind.RECORD: (
        "INVALID_MSG",
        "INVALID_MSG_SIZE",
        "INVALID_RECORD",
        "INVALID_TIMESTAMP",
        "MSG_SIZE_TOO_LARGE",
        "POLICY_VIOLATION",
        "RECORD_LIST_TOO_LARGE",
        "TOPIC_AUTHORIZATION_FAILED",
        "TOPIC_EXCEPTION",
        "UNKNOWN_TOPIC_OR_PART",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        "_INVALID_DIFFERENT_RECORD",  # of the same batch
        "_KEY_SERIALIZATION",
        "_UNKNOWN_PARTITION",
        "_UNKNOWN_TOPIC",
        "_VALUE_SERIALIZATION",
    ),
    ErrorKind.TRANSIENT: (
        "BROKER_NOT_AVAILABLE",
        "CONCURRENT_TRANSACTIONS",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "ELIGIBLE_LEADERS_NOT_AVAILABLE",
        "FENCED_LEADER_EPOCH",
        "KAFKA_STORAGE_ERROR",  # a disk of the leader: another broker takes over
        "LEADER_NOT_AVAILABLE",
        "LISTENER_NOT_FOUND",
        "LOG_DIR_NOT_FOUND",
        "NETWORK_EXCEPTION",
        "NOT_CONTROLLER",
        "NOT_COORDINATOR",
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "NOT_LEADER_FOR_PARTITION",
        "OFFSET_NOT_AVAILABLE",
        "PREFERRED_LEADER_NOT_AVAILABLE",
        "REASSIGNMENT_IN_PROGRESS",
        "REBOOTSTRAP_REQUIRED",
        "REPLICA_NOT_AVAILABLE",
        "REQUEST_TIMED_OUT",
        "STALE_BROKER_EPOCH",
        "STALE_CTRL_EPOCH",
        "THROTTLING_QUOTA_EXCEEDED",
        "TRANSACTION_ABORTABLE",  # the broker asks for another transaction with the same records
        "UNKNOWN_LEADER_EPOCH",
        "_ALL_BROKERS_DOWN",
        "_DESTROY_BROKER",
        "_FAIL",
        "_INTR",
        "_ISR_INSUFF",
        "_MSG_TIMED_OUT",  # a partition that stays away is found by the topic's look-up
        "_NODE_UPDATE",
        "_OUTDATED",
        "_QUEUE_FULL",
        "_RESOLVE",
        "_RETRY",
        "_TIMED_OUT",
        "_TIMED_OUT_QUEUE",
        "_TRANSPORT",
        "_UNKNOWN_BROKER",
        "_WAIT_CACHE",
        "_WAIT_COORD",
    ),
    ErrorKind.PRODUCER: (
        "CLUSTER_AUTHORIZATION_FAILED",
        "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
        "DELEGATION_TOKEN_AUTH_DISABLED",
        "DELEGATION_TOKEN_EXPIRED",
        "DELEGATION_TOKEN_NOT_FOUND",
        "DELEGATION_TOKEN_OWNER_MISMATCH",
        "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
        "DUPLICATE_SEQUENCE_NUMBER",
        "ILLEGAL_SASL_STATE",
        "INVALID_PRINCIPAL_TYPE",
        "INVALID_PRODUCER_EPOCH",
        "INVALID_PRODUCER_ID_MAPPING",
        "INVALID_REQUIRED_ACKS",
        "INVALID_TRANSACTION_TIMEOUT",
        "INVALID_TXN_STATE",
        "OUT_OF_ORDER_SEQUENCE_NUMBER",  # a producer of a new epoch begins another sequence
        "PRINCIPAL_DESERIALIZATION_FAILURE",
        "PRODUCER_FENCED",
        "SASL_AUTHENTICATION_FAILED",
        "SECURITY_DISABLED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "TRANSACTION_COORDINATOR_FENCED",
        "UNACCEPTABLE_CREDENTIAL",
        "UNKNOWN_PRODUCER_ID",
        "UNSUPPORTED_SASL_MECHANISM",
        "_AUTHENTICATION",
        "_CONFLICT",
        "_CRIT_SYS_RESOURCE",
        "_DESTROY",
        "_FATAL",
        "_FENCED",
        "_FS",
        "_GAPLESS_GUARANTEE",
        "_INCONSISTENT",
        "_IN_PROGRESS",
        "_NOT_CONFIGURED",
        "_NOT_IMPLEMENTED",
        "_PREV_IN_PROGRESS",
        "_PURGE_INFLIGHT",  # of a producer that is given up
        "_PURGE_QUEUE",
        "_SSL",
        "_STATE",  # an earlier record has ended the transaction
    ),
    ErrorKind.UNCLEAR: (
        "INCONSISTENT_TOPIC_ID",
        "INVALID_CONFIG",  # also of the topic
        "INVALID_REQUEST",
        "OPERATION_NOT_ATTEMPTED",  # because of another partition of the same transaction
        "RESOURCE_NOT_FOUND",
        "UNKNOWN",  # whatever goes wrong in a broker: a bug that one record triggers, or all of it
        "UNKNOWN_TOPIC_ID",
        "UNSUPPORTED_COMPRESSION_TYPE",  # in this topic, or everywhere
        "UNSUPPORTED_VERSION",
        "_APPLICATION",
        "_BAD_COMPRESSION",
        "_BAD_MSG",
        "_INVALID_ARG",
        "_INVALID_TYPE",
        "_NOENT",
        "_NOOP",
        "_PARTIAL",
        "_READ_ONLY",
        "_UNDERFLOW",
        "_UNSUPPORTED_FEATURE",  # as headers on a very old broker
        # Nobody answers these to a producer: they are about groups, consumers, share groups, administration, or the
        # brokers among themselves.
        "DUPLICATE_RESOURCE",
        "DUPLICATE_VOTER",
        "ELECTION_NOT_NEEDED",
        "FEATURE_UPDATE_FAILED",
        "FENCED_INSTANCE_ID",
        "FENCED_MEMBER_EPOCH",
        "FENCED_STATE_EPOCH",
        "FETCH_SESSION_ID_NOT_FOUND",
        "GROUP_AUTHORIZATION_FAILED",
        "GROUP_ID_NOT_FOUND",
        "GROUP_MAX_SIZE_REACHED",
        "GROUP_SUBSCRIBED_TO_TOPIC",
        "ILLEGAL_GENERATION",
        "INCONSISTENT_GROUP_PROTOCOL",
        "INCONSISTENT_VOTER_SET",
        "INVALID_COMMIT_OFFSET_SIZE",
        "INVALID_FETCH_SESSION_EPOCH",
        "INVALID_GROUP_ID",
        "INVALID_PARTITIONS",
        "INVALID_RECORD_STATE",
        "INVALID_REGISTRATION",
        "INVALID_REGULAR_EXPRESSION",
        "INVALID_REPLICATION_FACTOR",
        "INVALID_REPLICA_ASSIGNMENT",
        "INVALID_SESSION_TIMEOUT",
        "INVALID_SHARE_SESSION_EPOCH",
        "INVALID_UPDATE_VERSION",
        "INVALID_VOTER_KEY",
        "MEMBER_ID_REQUIRED",
        "MISMATCHED_ENDPOINT_TYPE",
        "NON_EMPTY_GROUP",
        "NO_REASSIGNMENT_IN_PROGRESS",
        "OFFSET_METADATA_TOO_LARGE",
        "OFFSET_OUT_OF_RANGE",
        "REBALANCE_IN_PROGRESS",
        "SHARE_SESSION_LIMIT_REACHED",
        "SHARE_SESSION_NOT_FOUND",
        "STALE_MEMBER_EPOCH",
        "STREAMS_INVALID_TOPOLOGY",
        "STREAMS_INVALID_TOPOLOGY_EPOCH",
        "STREAMS_TOPOLOGY_FENCED",
        "TELEMETRY_TOO_LARGE",
        "TOPIC_ALREADY_EXISTS",
        "TOPIC_DELETION_DISABLED",
        "UNKNOWN_CONTROLLER_ID",
        "UNKNOWN_MEMBER_ID",
        "UNKNOWN_SUBSCRIPTION_ID",
        "UNRELEASED_INSTANCE_ID",
        "UNSTABLE_OFFSET_COMMIT",
        "UNSUPPORTED_ASSIGNOR",
        "UNSUPPORTED_ENDPOINT_TYPE",
        "VOTER_NOT_FOUND",
        "_ASSIGNMENT_LOST",
        "_ASSIGN_PARTITIONS",
        "_AUTO_OFFSET_RESET",
        "_EXISTING_SUBSCRIPTION",
        "_KEY_DESERIALIZATION",
        "_LOG_TRUNCATION",
        "_MAX_POLL_EXCEEDED",
        "_NO_OFFSET",
        "_PARTITION_EOF",
        "_REVOKE_PARTITIONS",
        "_UNKNOWN_GROUP",
        "_UNKNOWN_PROTOCOL",
        "_VALUE_DESERIALIZATION",
    ),
}
"""The names of the codes by kind. An older client lacks some."""

KINDS: Mapping[int, ErrorKind] = {
    getattr(BrokerError, name): kind for kind, names in NAMES.items() for name in names if hasattr(BrokerError, name)
}
"""The kind of each code."""


def kind_of(error: BrokerError) -> ErrorKind:
    """Return the kind of an error that the client reports for a record."""
    return KINDS.get(error.code(), ErrorKind.UNCLEAR)
