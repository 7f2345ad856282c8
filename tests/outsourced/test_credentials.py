"""Tokens that are replaced, a health check without one, and metrics that say nothing sensitive."""

from __future__ import annotations

import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from botorch_dp.outsourced import curator_app
from botorch_dp.outsourced.credentials import Tokens, Watched
from botorch_dp.outsourced.service import Metrics
from tests.outsourced.certificates import replace
from tests.outsourced.serving import TOKEN, make_curator, measure, question, raw, serving

OLD, NEW, WATCHER = (f"{name}-token-of-some-length" for name in ("old", "new", "watcher"))


class TestTokenFile:
    def test_tokens_are_replaced_without_a_restart(self, tmp_path: Path) -> None:
        file = tmp_path / "tokens"
        file.write_text(f"# the first one\n{OLD}\n")
        with serving(make_curator(), token_file=file) as url:

            def codes() -> list[int]:
                return [raw(url, "GET", "/status", token=token)[0] for token in (OLD, NEW)]

            assert codes() == [200, 401]
            file.write_text(f"{OLD}\n{NEW}\n")  # in place, within one tick of the clock perhaps
            assert codes() == [200, 200]
            replace(file, f"{NEW}\n".encode())
            assert codes() == [401, 200]

    @pytest.mark.parametrize(
        "wrong", ["", "short\n", f"{NEW} and more\n", f"metrics {NEW}\n", None]
    )
    def test_a_wrong_replacement_locks_nobody_out(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: str | None
    ) -> None:
        file = tmp_path / "tokens"
        file.write_text(OLD)
        tokens = Tokens(None, file)
        if wrong is None:
            file.unlink()
        else:
            replace(file, wrong.encode())
        with caplog.at_level(logging.DEBUG):
            for _ in range(3):
                assert tokens.sender(f"Bearer {OLD}") == "owner"
                assert tokens.sender(f"Bearer {NEW}") is None
        assert len(caplog.records) == 1
        assert "What was read before still holds" in caplog.text
        assert OLD not in caplog.text
        assert NEW not in caplog.text
        replace(file, NEW.encode())
        assert tokens.sender(f"Bearer {NEW}") == "owner"
        assert tokens.sender(f"Bearer {OLD}") is None

    @pytest.mark.parametrize(
        "content", ["", "short", f"{OLD}\nwith a space in it\n", f"metrics {OLD}"]
    )
    def test_a_wrong_file_is_an_error_at_the_start(self, tmp_path: Path, content: str) -> None:
        file = tmp_path / "tokens"
        file.write_text(content)
        with pytest.raises(ValueError, match="`token_file`") as refused:
            curator_app(make_curator(), token_file=file)
        assert OLD not in str(refused.value)
        with pytest.raises(ValueError, match=r"`token_file` .*none cannot be read"):
            curator_app(make_curator(), token_file=tmp_path / "none")

    def test_files_are_read_only_when_they_change(self, tmp_path: Path) -> None:
        file, reads = tmp_path / "tokens", []
        file.write_text("a")
        long_ago = time.time() - 100
        os.utime(file, (long_ago, long_ago))

        def read() -> str:
            reads.append(1)
            return file.read_text()

        watched = Watched([file], read)
        assert [watched.value() for _ in range(5)] == ["a"] * 5
        assert len(reads) == 1
        replace(file, b"b")
        assert watched.value() == "b"


class TestHealth:
    def test_alive_and_nothing_else(self) -> None:
        with serving(make_curator(), rate=0.1, burst=2) as url:
            for _ in range(10):  # a balancer is not limited, and nobody by what it asks
                status, body, _ = raw(url, "GET", "/health", token="none")
                assert (status, body) == (200, b'{"status":"alive"}')
            assert raw(url, "GET", "/status")[0] == 200

    def test_it_answers_while_rows_are_measured(self) -> None:
        measuring, go_on = threading.Event(), threading.Event()

        def measured(_: object) -> float:
            measuring.set()
            return 0.5 if go_on.wait(60) else 0.0

        slow = make_curator(measured)
        with serving(slow) as url, ThreadPoolExecutor(2) as pool:
            asked = pool.submit(raw, url, "POST", "/query", question(1))
            assert measuring.wait(60)
            assert raw(url, "GET", "/health")[0] == 200
            metrics = raw(url, "GET", "/metrics")[1].decode()
            assert "botorch_dp_rows_being_measured 1\n" in metrics
            assert not asked.done()
            go_on.set()
            assert asked.result()[0] == 200


class TestMetrics:
    def test_counts_are_exact_and_prometheus_reads_them(self, tmp_path: Path) -> None:
        file = tmp_path / "tokens"
        file.write_text(f"{TOKEN}\nmetrics {WATCHER}\n")
        curator = make_curator(max_queries=3)
        with serving(curator, token_file=file) as url:
            for number in range(5):
                raw(url, "POST", "/query", question(number, f"q{number}"))
            raw(url, "POST", "/query", question(0, "q0"))
            raw(url, "POST", "/query", question(1, "q0"))
            raw(url, "GET", "/status", token="wrong-token")
            raw(url, "GET", "/status/../secret?q=5")
            raw(url, "GET", "/health")
            status, body, headers = raw(url, "GET", "/metrics", token=WATCHER)
            assert status == 200
            assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
        families = {family.name: family for family in text_string_to_metric_families(body.decode())}
        assert all(family.documentation for family in families.values())
        requests = {
            (s.labels["path"], s.labels["status"]): s.value
            for s in families["botorch_dp_requests"].samples
        }
        assert requests == {
            ("/query", "200"): 4,
            ("/query", "403"): 2,
            ("/query", "409"): 1,
            ("/status", "401"): 1,
            ("other", "404"): 1,
            ("/health", "200"): 1,
        }
        times = families["botorch_dp_request_seconds"]
        assert times.type == "histogram"
        count = {s.labels["path"]: s.value for s in times.samples if s.name.endswith("_count")}
        assert count == {"/query": 7, "/status": 1, "other": 1, "/health": 1}
        buckets = [
            s.value
            for s in times.samples
            if s.name.endswith("_bucket") and s.labels["path"] == "/query"
        ]
        assert buckets == sorted(buckets)
        assert buckets[-1] == 7
        assert families["botorch_dp_requests_in_flight"].samples[0].value == 1
        # No row, no answer, no id, no limit.
        for word in ("secret", "q0", str(measure(1))[:5]):
            assert word not in body.decode()

    def test_who_may_see_them(self, tmp_path: Path) -> None:
        file = tmp_path / "tokens"
        file.write_text(f"{TOKEN}\nmetrics {WATCHER}\n")
        with serving(make_curator(), token_file=file) as url:
            assert raw(url, "GET", "/metrics", token="x" * 20)[0] == 401
            assert raw(url, "GET", "/metrics")[0] == 200
            for method, path in (("GET", "/status"), ("GET", "/dataset"), ("POST", "/query")):
                status, body, _ = raw(url, method, path, question(1), token=WATCHER)
                assert status == 403
                assert b"metrics only" in body

    def test_workers_are_summed_and_a_successor_starts_idle(self) -> None:
        metrics = Metrics(2)
        for worker in (0, 1, 0):
            metrics.begin(worker)
            metrics.count("/query", 200, 0.02)
            metrics.in_flight(1)
        text = str(metrics)
        assert 'requests_total{path="/query",status="200"} 3\n' in text
        assert "requests_in_flight 2\n" in text
        assert metrics.starts() == 3
        assert 'seconds_bucket{path="/query",le="0.01"} 0\n' in text
        assert 'seconds_bucket{path="/query",le="0.025"} 3\n' in text
        metrics.count("/query", 599, 1e9)
        metrics.count("/query", 418, 0.0)
        assert 'status="500"} 1\n' in str(metrics)
        assert 'status="400"} 1\n' in str(metrics)


def test_a_log_that_is_gone_is_one_line_and_not_a_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(make_curator(log=tmp_path / "log.sqlite")) as url:
        (tmp_path / "log.sqlite").unlink()
        with caplog.at_level(logging.INFO):
            assert raw(url, "GET", "/status")[0] == 503
            assert raw(url, "GET", "/health")[0] == 200
        assert [record.getMessage() for record in caplog.records] == [
            "The log cannot be read (PrivacyError)."
        ]
