"""The pages' contents, on a real API server."""

from __future__ import annotations

import html
import re

import httpx
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.json import Json
from support.api_server import ApiServer
from support.harvesting import wait_until

from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.postgres.cluster_rows import add_clusters
from airflow_outbox.postgres.names import OutboxName


def page_of(visitor: httpx.Client, outbox: str, state: str) -> str:
    """The page of an outbox in this state. On a busy machine a page says UNKNOWN until its database has answered."""
    texts = [""]

    def is_shown() -> bool:
        texts.append(visitor.get("one", params={"outbox": outbox}).raise_for_status().text)
        return state in texts[-1]

    wait_until(is_shown, doing=f"{outbox}: {state}")
    return texts[-1]


def test_all_outboxes_are_found(visitors: dict[str, httpx.Client]) -> None:
    texts: list[str] = []

    def has_all() -> bool:
        texts.append(visitors["viewer"].get("./").raise_for_status().text)
        return "NO LEADER" in texts[-1] and "shop_a.outbox" in texts[-1]

    wait_until(has_all, doing=lambda: texts[-1])
    text = texts[-1]
    found = set(re.findall(r'data-key="([^"]+)"', text))
    assert found >= {
        "postgres_default:clustered",
        "postgres_default:configured",
        "postgres_default:harvested",
        "postgres_default:sharded",
        "postgres_default:shop_a.outbox",
        "postgres_default:tenant_a",
        "postgres_default:watched",
        "silent:harvested",
        "unknown_connection:lost",
    }
    assert len(found) <= 10  # and the demo's, where tests with a browser have run before
    assert "isn't defined" in html.unescape(text)  # the connections that nobody made
    assert "Outboxes are missing here" in text  # of a pattern there


def test_nobody_is_asked_to_log_in(visitors: dict[str, httpx.Client]) -> None:
    assert 'href="/a/base/auth/login' in visitors["nobody"].get("./").text


def test_one_outbox_says_how_it_is_doing(visitors: dict[str, httpx.Client], outboxes: str) -> None:
    with psycopg.connect(outboxes, autocommit=True) as connection:
        connection.execute(
            "UPDATE watched_shard"
            " SET member = 'a <b>member</b>', heartbeat_at = clock_timestamp(), silence = 600, rate = 77"
        )
        connection.execute("DELETE FROM watched")
        connection.execute("INSERT INTO watched (kafka_topic, kafka_key) SELECT 't', 'k' FROM generate_series(1, 12)")
    text = page_of(visitors["viewer"], "postgres_default:watched", "HEALTHY")
    assert re.search(r'data-label="Leader">a &lt;b&gt;member&lt;/b&gt;<', text)
    assert 'aria-label="Clusters"' not in text  # there is one
    assert "<dd>12</dd>" in text
    assert 'href="/a/base/dags/watching"' in text


def test_members_that_lead_and_stand_by_are_shown(visitors: dict[str, httpx.Client], outboxes: str) -> None:
    with psycopg.connect(outboxes, autocommit=True) as connection:
        connection.execute("UPDATE watched_shard SET member = 'a:1'")

        def standings() -> list[tuple[str, str]]:
            connection.execute("DELETE FROM watched_member")
            connection.execute(
                "INSERT INTO watched_member (member, release, started_at)"
                " SELECT member, '1.0', now() FROM unnest(ARRAY['a:1', 'b <i>2</i>']) AS member ORDER BY member"
            )
            text = visitors["viewer"].get("one", params={"outbox": "postgres_default:watched"}).text
            return re.findall(r'data-key="member (.+?)".*?data-label="Standing">(.+?)<', text, re.DOTALL)

        wait_until(lambda: sorted(standings()) == [("a:1", "leads"), ("b &lt;i&gt;2&lt;/i&gt;", "stands by")])


def test_each_of_several_clusters_is_shown(visitors: dict[str, httpx.Client], outboxes: str) -> None:
    with psycopg.connect(outboxes, autocommit=True) as connection:
        add_clusters(connection, OutboxName.parse("configured"), ["west"])
        connection.execute(
            "UPDATE configured_shard SET member = 'a:1', heartbeat_at = clock_timestamp(), silence = 600,"
            " last_error = 'cluster west: there is <no> ledger. Make it', last_error_at = clock_timestamp()"
        )
    text = page_of(visitors["viewer"], "postgres_default:configured", "HELD")
    assert 'data-key="cluster primary"' in text
    assert re.search(r'data-key="cluster west"><th scope="row">west</th>\s*<td>backup</td>', text)
    assert "there is &lt;no&gt; ledger" in text


def test_positions_of_consumer_groups_are_shown(visitors: dict[str, httpx.Client], outboxes: str) -> None:
    report = {"groups": {"left_alone": 1, "following": 300}, "failures": 4, "said": ["positions of app: left <alone>"]}
    group = {"group": "<app>", "state": "left_alone", "home": None, "behind": {}, "synced_at": None, "why": "two homes"}
    follows = {**group, "group": "shop", "state": "following", "home": "primary", "behind": {"west": 1234}}
    with psycopg.connect(outboxes, autocommit=True) as connection:
        connection.execute("UPDATE watched_shard SET member = 'a:1', heartbeat_at = clock_timestamp(), silence = 600")
        connection.execute(
            "INSERT INTO watched_positions (member, told_at, report, groups)"
            " VALUES ('b:2', clock_timestamp() + interval '1 h', %s, %s)",
            (Json(report), Json([group, follows])),
        )
    text = " ".join(page_of(visitors["viewer"], "postgres_default:watched", "left &lt;alone&gt;").split())
    assert "301 groups, as b:2 saw them" in text
    assert "4 failures since it was started" in text
    assert "&lt;app&gt;" in text
    assert "west: 1,234" in text
    assert "and 299 more" in text


def test_an_outbox_without_a_leader_names_the_dag_that_should_lead(visitors: dict[str, httpx.Client]) -> None:
    text = page_of(visitors["viewer"], "postgres_default:harvested", "NO LEADER")
    assert "No Dag harvests it" not in text
    assert '<a href="/a/base/dags/harvesting" data-out>harvesting</a> harvests it' in text


def test_an_outbox_that_only_a_pattern_means_names_its_dag(visitors: dict[str, httpx.Client]) -> None:
    for outbox in ("postgres_default:tenant_a", "postgres_default:shop_a.outbox"):
        text = page_of(visitors["viewer"], outbox, "NO LEADER")
        assert '<a href="/a/base/dags/matching" data-out>matching</a> harvests it' in text
    missing = visitors["viewer"].get("one", params={"outbox": "postgres_default:tenant_z"}).raise_for_status()
    assert "UNKNOWN" in missing.text
    assert visitors["viewer"].get("one", params={"outbox": "postgres_default:tenant_zz"}).status_code == 404


def test_what_a_pattern_means_is_unknown_while_its_database_is_away(
    visitors: dict[str, httpx.Client], postgres: EmbeddedPostgres, outboxes: str
) -> None:
    """It does not vanish from the list."""
    database = conninfo_to_dict(outboxes)["dbname"]
    texts: list[str] = []

    def shows(state: str) -> bool:
        texts.append(visitors["viewer"].get("./").raise_for_status().text)
        row = re.search(r'data-key="postgres_default:tenant_a".*?</tr>', texts[-1], re.DOTALL)
        return row is not None and state in row[0]

    wait_until(lambda: shows("NO LEADER"), doing=lambda: texts[-1])
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {database} ALLOW_CONNECTIONS false".encode())
        try:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [database])
            wait_until(lambda: shows("UNKNOWN"), doing=lambda: texts[-1])
            assert shows("UNKNOWN"), "the page had known that it is away, and has forgotten the outbox"
        finally:
            connection.execute(f"ALTER DATABASE {database} ALLOW_CONNECTIONS true".encode())
    wait_until(lambda: shows("NO LEADER"), doing=lambda: texts[-1])


def test_a_dags_tab_has_what_its_pattern_means(visitors: dict[str, httpx.Client]) -> None:
    texts: list[str] = []

    def has_both() -> bool:
        texts.append(visitors["viewer"].get("dag", params={"dag_id": "matching"}).raise_for_status().text)
        return {"postgres_default:tenant_a", "postgres_default:shop_a.outbox"} == set(
            re.findall(r'data-key="([^"]+)"', texts[-1])
        )

    wait_until(has_both, doing=lambda: texts[-1])


def test_an_outbox_whose_connection_is_missing_says_what_to_do(visitors: dict[str, httpx.Client]) -> None:
    answer = visitors["viewer"].get("one", params={"outbox": "unknown_connection:lost"}).raise_for_status()
    assert "UNKNOWN" in answer.text
    assert "What to do:" in answer.text
    assert "ask?what=" not in visitors["admin"].get("one", params={"outbox": "unknown_connection:lost"}).text


def test_an_unknown_outbox_is_explained(visitors: dict[str, httpx.Client]) -> None:
    answer = visitors["viewer"].get("one", params={"outbox": "postgres_default:other"})
    assert answer.status_code == 404
    assert "[outbox] outboxes" in answer.text
    assert visitors["viewer"].get("one").status_code == 422


@pytest.mark.parametrize(
    ("dag_id", "text"),
    [
        ("without", "This Dag uses no outbox."),
        ("harvesting", "one?outbox=postgres_default%3Aharvested"),
        ("watching", "one?outbox=postgres_default%3Awatched"),
        ("writing", "<code>later</code>"),
        ("no_such_dag", "This Dag uses no outbox."),
    ],
)
def test_a_dags_tab_has_its_outboxes(dag_id: str, text: str, visitors: dict[str, httpx.Client]) -> None:
    assert text in visitors["viewer"].get("dag", params={"dag_id": dag_id}).raise_for_status().text


def test_a_tasks_tab_has_its_outbox(visitors: dict[str, httpx.Client]) -> None:
    tabs = visitors["viewer"]
    task = {"dag_id": "writing", "task_id": "stash", "run_id": "r", "map_index": "{MAP_INDEX}"}
    assert "postgres_default%3Aharvested" in tabs.get("task", params=task).raise_for_status().text
    assert "uses no outbox" in tabs.get("task", params={**task, "task_id": "other"}).text


def test_the_navigation_and_the_tabs_lead_to_the_page(visitors: dict[str, httpx.Client], server: ApiServer) -> None:
    answer = visitors["admin"].get(f"{server.url}/api/v2/plugins").raise_for_status().json()
    [plugin] = [each for each in answer["plugins"] if each["name"] == "outbox"]
    views = {view["destination"]: view["href"] for view in plugin["external_views"]}
    assert views.keys() == {"nav", "dag", "task_instance"}
    assert all(href.startswith("/a/base/outbox/") for href in views.values())
    origin = server.url.removesuffix("/a/base")
    icon = visitors["admin"].get(f"{origin}{plugin['external_views'][0]['icon']}")
    assert icon.headers["content-type"].startswith("image/svg+xml")
