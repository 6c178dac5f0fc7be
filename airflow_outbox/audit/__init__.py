"""The audit: is what was stashed what a consumer of the topics sees?

It compares a table of what was stashed, with the outbox's columns and ids, with the committed records of the topics,
and knows nothing of how they get from one to the other.

*Which record is which row's.* Records carry no ids, and so they are known by what they are. Within a *lane*, a topic
and a key (and the partition, where a row asks for one), a row and a record are the same when their *content* is: value
and headers, in their order, byte by byte. Equal records of one lane can't be told apart: they are counted. From that:

- *missing*: a content arrived less often than it was stashed. *Doubled*: more often. *Foreign*: it was never stashed.
- *reordered*: going through a lane by offset, a row's record comes behind that of a row with a higher id; or it lies in
  another partition than the one before it by id. Only records count of which it is certain whose they are: their
  content was stashed once (the first counts), or arrived as often as it was stashed (each counts in its turn).
- *torn*: of a source transaction, some records are there and some are missing. Records of two transactions may lie in
  one another's way: their ids do, when the transactions ran at once.

*What is no fault.* A row that still waits in the outbox, or is parked, may be absent, and so may one that Kafka may
have removed since (`topics.horizons`). A record that may have been stashed after the rows were read may be there
(`scene`).

*Bounds.* Rows and records are read once, become prints of a few dozen bytes and are sorted on disk (`comparison`).
Memory does not grow with them.
"""
