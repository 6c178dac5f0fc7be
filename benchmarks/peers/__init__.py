"""Who publishes an outbox's records: this project, its peers, and the servers and the judge that all of them share.

A *contender* is one way to publish; a *turn* is one run of it, over a database and a topic of its own on servers that
all turns share. What a turn has done is judged by what consumers that read committed see (`sightings`), never by what
the contender says. One file a contender; `rows` are what they publish, `verdicts` is what comes of it.
"""
