"""A group's home, and what is committed elsewhere: examples, and random lives of a group on two clusters."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_outbox.positions.homes import REFRESHED_AFTER_MS, Decision, Side, decide, follow
from airflow_outbox.positions.marks import Committed, Mark
from airflow_outbox.positions.translation import Translation, Why
from airflow_outbox.values.extents import TopicAndPartition

PLACE: TopicAndPartition = ("orders", 0)
OTHER: TopicAndPartition = ("orders", 1)
A, B = "primary", "west"
BEHIND = 3  # by so many offsets a position on B is less than on A


def translated(source: str, target: str, place: TopicAndPartition, offset: int) -> Translation | None:
    return Translation(offset - BEHIND if source == A else offset + BEHIND - 1, Why.WITHIN)


def side(offset: int | None = None, *marks: Mark, mark: Mark | None = None, has_members: bool = False) -> Side:
    committed = {} if offset is None else {PLACE: Committed(offset, mark)}
    known = [*marks, *([mark] if mark else [])]
    return Side(committed, {PLACE: max(known, key=lambda each: each.at)} if known else {}, has_members)


def decided(a: Side, b: Side, *, now: int = 1000) -> Decision:
    return decide({A: a, B: b}, translated, now=now)


FROM_A = Mark(A, 100, 97, at=1)
FROM_B = Mark(B, 120, 122, at=2)


def test_a_mark_survives_as_text_and_only_with_its_offset() -> None:
    assert Mark.parse(FROM_A.metadata, 97) == FROM_A
    assert Mark.parse(FROM_A.metadata + "\0", 97) == FROM_A
    assert Mark.parse(FROM_A.metadata, 98) is None
    for text in (None, "", "mine", "airflow-outbox/1 primary 1 2", "airflow-outbox/1 primary x 97 1 - -"):
        assert Mark.parse(text, 97) is None


def test_a_group_that_reads_on_one_cluster_has_its_position_on_the_other() -> None:
    assert decided(side(100, has_members=True), side()) == Decision(
        home=A, commits={B: {PLACE: Mark(A, 100, 97, 1000)}}
    )


def test_a_group_that_has_committed_nothing_has_no_home() -> None:
    assert decided(side(), side()) == Decision()


def test_a_position_that_is_there_is_not_committed_again_for_a_day() -> None:
    assert decided(side(100), side(97, mark=FROM_A)) == Decision(home=A)
    later = 2 + REFRESHED_AFTER_MS
    again = decided(side(100), side(97, mark=FROM_A), now=later)
    assert again.commits == {B: {PLACE: Mark(A, 100, 97, later)}}


def test_a_position_goes_on_when_the_other_cluster_has_what_it_lacked() -> None:
    behind = Mark(A, 100, 90, at=1)
    assert decided(side(100), side(90, mark=behind)).commits == {B: {PLACE: Mark(A, 100, 97, 1000)}}


def test_a_position_that_kafka_has_forgotten_is_committed_again() -> None:
    assert decided(side(100), side(None, FROM_A)).commits == {B: {PLACE: Mark(A, 100, 97, 1000)}}


def test_a_group_that_moves_has_its_home_there() -> None:
    moved = decided(side(100), side(120, FROM_A, has_members=True))
    assert moved == Decision(home=B, commits={A: {PLACE: Mark(B, 120, 122, 1000)}})
    back = decided(side(130, FROM_B, has_members=True), side(120, FROM_A))
    assert back == Decision(home=A, commits={B: {PLACE: Mark(A, 130, 127, 1000)}})


def test_a_group_that_moves_at_the_end_of_the_topics_commits_what_it_found() -> None:
    assert decided(side(100), side(97, FROM_A, has_members=True)) == Decision(home=A)


def test_a_position_goes_back_only_with_a_rewind() -> None:
    """B translates to less than what the group has read on A already."""
    moved = decided(side(100), side(98, FROM_A, has_members=True))
    assert moved.commits == {A: {PLACE: Mark(B, 98, 100, 1000)}}
    rewound = decided(side(100), side(50, FROM_A))
    assert rewound.commits == {A: {PLACE: Mark(B, 50, 52, 1000)}}
    here = decided(side(50), side(97, mark=FROM_A))
    assert here.commits == {B: {PLACE: Mark(A, 50, 47, 1000)}}


def test_nothing_is_committed_where_the_group_has_members() -> None:
    assert decided(side(110), side(97, mark=FROM_A, has_members=True)) == Decision(home=A, waiting=(B,))


def test_two_homes_are_left_alone() -> None:
    two = Decision(homes=(A, B))
    assert decided(side(100), side(97)) == two, "nobody knows which was first"
    assert decided(side(110), side(105, FROM_A)) == two, "it has members nowhere"
    assert decided(side(110, has_members=True), side(150, FROM_A, has_members=True)) == two, "it reads on both"
    assert decided(side(110), side(105, FROM_A, has_members=True)) == two, "B has not passed A yet"
    assert decided(side(60), side(150, FROM_A, has_members=True)) == two, "a rewind on A stands"


def test_a_group_that_moved_between_two_looks_has_one_home_once_it_has_passed_the_other() -> None:
    assert decided(side(110), side(107, FROM_A, has_members=True)) == Decision(
        home=B, commits={A: {PLACE: Mark(B, 107, 110, 1000)}}
    )


def test_two_homes_are_not_settled_by_a_position_that_may_be_too_low() -> None:
    """Nobody knows where 107 on B is, so it is no sign that all before it is read on A."""
    sides = {A: side(110, has_members=True), B: side(150, FROM_A)}
    for found in (Translation(0, Why.UNKNOWN), Translation(90, Why.LACKING), Translation(90, Why.AFTER)):
        assert decide(sides, lambda *_, found=found: found, now=1000).homes == (A, B)
    exact = decide(sides, lambda *_: Translation(90, Why.AFTER, again=0), now=1000)
    assert exact.home == A


def test_a_sync_point_of_a_topic_that_was_made_again_counts_no_longer() -> None:
    """B's topic is new, and what the group read on A is at other offsets there, or not there."""
    old = Mark(B, 9990, 10000, at=1, source_id="old", topic_id="a")
    a = Side({PLACE: Committed(12000)}, {PLACE: old}, True, {"orders": "a"})
    b = Side(topic_ids={"orders": "new"})
    found = decide({A: a, B: b}, lambda *_: Translation(3, Why.WITHIN), now=1000)
    assert found.commits == {B: {PLACE: Mark(A, 12000, 3, 1000, "a", "new")}}
    assert Mark.parse(old.metadata, 10000) == old


def test_a_position_from_a_cluster_that_is_away_is_not_overwritten_by_an_older_one() -> None:
    """The group moved from A to C while A was away. Then A is back, and C is away."""
    a, b = side(100, has_members=True), side(5000, mark=Mark("C", 5100, 5000, 9))
    assert decide({A: a, B: b}, translated, now=1000, away={"C"}).commits == {}
    assert decide({A: a, B: b}, translated, now=1000).commits[B], "C is no cluster of the outbox any more"
    moved = side(200, Mark("C", 5100, 190, 9), has_members=True)
    assert decide({A: moved, B: b}, translated, now=1000, away={"C"}).commits[B], "A has what C had"


def test_partitions_have_one_home_together() -> None:
    elsewhere = Side({PLACE: Committed(97, FROM_A), OTHER: Committed(60)}, {PLACE: FROM_A, OTHER: Mark(A, 50, 47, 1)})
    assert decided(Side({PLACE: Committed(110), OTHER: Committed(50)}), elsewhere).homes == (A, B)


def test_an_operator_decides_between_two_homes() -> None:
    sides = {A: side(100), B: side(300)}
    assert follow(sides, A, translated, now=5).commits == {B: {PLACE: Mark(A, 100, 97, 5)}}
    assert follow(sides, B, translated, now=5).commits == {A: {PLACE: Mark(B, 300, 302, 5)}}


def test_what_nobody_can_translate_is_left() -> None:
    assert decide({A: side(100), B: side()}, lambda *_: None, now=1) == Decision(home=A)


def test_a_clock_that_was_set_back_does_not_make_old_marks_new() -> None:
    marked = decided(side(110), side(97, mark=replace(FROM_A, at=5000)), now=1000)
    assert marked.commits[B][PLACE].at == 5001


@dataclass
class Life:
    """A group on two clusters that have the same records at other offsets. Translation knows only every third one."""

    gaps: dict[str, list[int]]
    offset: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys((A, B)))
    metadata: dict[str, str] = field(default_factory=lambda: dict.fromkeys((A, B), ""))
    members: dict[str, bool] = field(default_factory=lambda: dict.fromkeys((A, B), False))
    memory: dict[str, Mark] = field(default_factory=dict)
    kept: dict[str, Mark] = field(default_factory=dict)
    has_read: int = 0
    now: int = 0
    topic_ids: dict[str, str] = field(default_factory=lambda: dict.fromkeys((A, B), "first"))

    def __post_init__(self) -> None:
        self.first = {}
        for cluster, gaps in self.gaps.items():
            offsets = [0]
            for gap in gaps:
                offsets.append(offsets[-1] + 1 + gap)
            self.first[cluster] = offsets

    def translated(self, source: str, target: str, _: TopicAndPartition, offset: int) -> Translation:
        return Translation(self.first[target][self.read_before(source, offset) // 3 * 3], Why.WITHIN)

    def make_again(self, cluster: str) -> None:
        """Make the topic again, without gaps. Kafka deletes its offsets."""
        self.first[cluster] = [*range(len(self.first[cluster]))]
        self.topic_ids[cluster] += "+"
        self.offset[cluster], self.members[cluster] = None, False

    def read_before(self, cluster: str, offset: int | None) -> int:
        """How many records come before an offset."""
        return 0 if offset is None else sum(each < offset for each in self.first[cluster][:-1])

    def read(self, cluster: str, count: int) -> None:
        at = self.read_before(cluster, self.offset[cluster])
        assert at <= self.has_read, "records are skipped"
        end = min(at + count, len(self.first[cluster]) - 1)
        self.has_read = max(self.has_read, end)
        self.members[cluster] = True
        self.put(cluster, self.first[cluster][end], "")

    def put(self, cluster: str, offset: int, metadata: str) -> None:
        self.offset[cluster], self.metadata[cluster] = offset, metadata

    def look(self, *, dies: bool = False) -> Decision:
        self.now += 1
        sides = {}
        for cluster, offset in self.offset.items():
            mark = None if offset is None else Mark.parse(self.metadata[cluster], offset)
            known = [each for each in (mark, self.memory.get(cluster)) if each is not None]
            newest = max(known, key=lambda each: each.at, default=None)
            sides[cluster] = Side(
                {} if offset is None else {PLACE: Committed(offset, mark)},
                {} if newest is None else {PLACE: newest},
                self.members[cluster],
                {"orders": self.topic_ids[cluster]},
            )
        decision = decide(sides, self.translated, now=self.now)
        for cluster, commits in decision.commits.items():
            assert not self.members[cluster]
            self.put(cluster, commits[PLACE].offset, commits[PLACE].metadata)
            if not dies:
                self.memory[cluster] = self.kept[cluster] = commits[PLACE]
        if dies:
            self.memory = {**self.kept}
        return decision


LIVES = st.builds(
    lambda a, b: Life({A: a, B: b}),
    *[st.lists(st.integers(0, 3), min_size=40, max_size=40)] * 2,
)
CLUSTERS = st.sampled_from([A, B])
DEEDS = st.one_of(
    st.tuples(st.just("read"), CLUSTERS, st.integers(0, 9)),
    st.tuples(st.just("leave"), CLUSTERS, st.just(0)),
    st.tuples(st.just("rewind"), CLUSTERS, st.integers(0, 20)),
    st.tuples(st.just("look"), CLUSTERS, st.integers(0, 1)),
    st.tuples(st.just("make again"), CLUSTERS, st.just(0)),
)


@settings(max_examples=300)
@given(LIVES, st.lists(DEEDS, max_size=40))
def test_whatever_a_group_does_it_skips_nothing_and_a_rewind_stands(
    life: Life, deeds: list[tuple[str, str, int]]
) -> None:
    for deed, cluster, number in deeds:
        match deed:
            case "read":
                life.read(cluster, number)
            case "leave":
                life.members[cluster] = False
            case "rewind" if not life.members[cluster] and (offset := life.offset[cluster]) is not None:
                life.put(cluster, max(0, offset - number), "")
            case "make again":
                life.make_again(cluster)
            case "look":
                before, metadata = {**life.offset}, {**life.metadata}
                decision = life.look(dies=bool(number))
                if decision.homes:
                    assert (life.offset, life.metadata) == (before, metadata)
                for each in decision.commits:
                    assert each != decision.home


@settings(max_examples=200)
@given(LIVES, st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8))
def test_a_group_that_moves_reads_little_again(life: Life, visits: list[tuple[int, int]]) -> None:
    """It moves after a look at what it has committed; what is committed last before a look is read again."""
    cluster = A
    for first, second in visits:
        for count in (first, second):
            assert life.has_read - life.read_before(cluster, life.offset[cluster]) <= 2
            life.read(cluster, count)
            assert life.look().home is not None
        life.members[cluster] = False
        cluster = B if cluster == A else A


@settings(max_examples=30)
@given(LIVES, CLUSTERS, st.integers(1, 20), st.integers(0, 5))
def test_a_group_skips_nothing_after_a_topic_is_made_again(life: Life, made_again: str, first: int, then: int) -> None:
    life.read(A, first)
    life.look()
    life.make_again(made_again)
    cluster = B if made_again == A else A
    life.members[A], life.members[cluster] = False, True
    life.read(cluster, then)
    life.look()
    life.read(made_again, 1)
