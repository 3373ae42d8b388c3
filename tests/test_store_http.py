# SPDX-License-Identifier: Apache-2.0
"""HTTP without a socket (httpx's ASGI transport): status codes, headers, who may ask, the page, OTLP/HTTP,
documentation."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import threading
import time
from pathlib import Path

import httpx
import pytest
from gpustrobe.store.answers import PARAMETERS, Answers
from gpustrobe.store.database import Limits
from gpustrobe.store.engine import MAX_REQUEST, Engine
from gpustrobe.store.errors import REFUSALS, Unavailable
from gpustrobe.store.http import Page, application

from tests.otlp_batches import F, MetricsBuilder, ProfilesBuilder

NOW = int(time.time())
DOCS = Path(__file__).resolve().parent.parent / "docs" / "api.md"
PROTOBUF = {"content-type": "application/x-protobuf"}


def batch(second: int = NOW - 5, rows: int = 3) -> bytes:
    samples = [
        ({"process.pid": "5", "process.executable.name": "python3"}, (F(f"f{n}"), F("main")), 1) for n in range(rows)
    ]
    return ProfilesBuilder({"host.name": "n"}).window(second, samples).bytes()


class Client:
    def __init__(self, engine: Engine, page: Page, host: str = "127.0.0.1") -> None:
        self.engine = engine
        self.app, self.handlers = application(engine, Answers(engine, "test"), host, page)

    def __call__(self, method: str, path: str, **more) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(
                transport=transport, base_url=more.pop("base", "http://127.0.0.1:7070")
            ) as client:
                return await client.request(method, path, **more)

        return asyncio.run(ask())

    def get(self, path: str, **more) -> httpx.Response:
        return self("GET", path, **more)

    def post(self, path: str, body: bytes, **headers: str) -> httpx.Response:
        return self(
            "POST", path, content=body, headers={**PROTOBUF, **{k.replace("_", "-"): v for k, v in headers.items()}}
        )


@pytest.fixture
def page(tmp_path) -> Path:
    dist = tmp_path / "dist"
    (dist / "assets").mkdir(parents=True)
    (dist / "index.html").write_text("<!doctype html><title>gpustrobe</title>" + " " * 2000)
    (dist / "assets" / "app-abc123.js").write_text("export {};" * 300)
    (tmp_path / "secret.txt").write_text("secret")
    return dist


@pytest.fixture
def client(tmp_path, page):
    """The tests ask for the last five minutes, and a whole suite takes longer than that."""
    global NOW
    NOW = int(time.time())
    engine = Engine(tmp_path / "data", reserve=0)
    client = Client(engine, Page(page))
    yield client
    client.handlers.close()
    engine.close()


def test_every_documented_question_answers_and_every_question_is_documented(client):
    client.post("/v1development/profiles", batch())
    client.post(
        "/v1/metrics", MetricsBuilder({"host.name": "n"}).books(NOW, 10, 6, 4).gauge("gpu.power", NOW, 1.0, "W").bytes()
    )
    documented = set(re.findall(r"^## GET /api/v1/(\w+)", DOCS.read_text(), re.MULTILINE))
    assert documented == set(PARAMETERS)
    for name in documented:
        answer = client.get(f"/api/v1/{name}" + ("?name=cpu" if name == "series" else ""))
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/json"
        json.loads(answer.text)


def test_documented_fields_are_there(client):
    """The JSON blocks of docs/api.md, key by key."""
    client.post("/v1development/profiles", batch())
    client.post(
        "/v1/metrics",
        MetricsBuilder({"host.name": "n"})
        .gauge("gpu.utilization", NOW - 5, 1.0, "%", gpu__uuid="GPU-1", gpu__index="0", gpu__name="H100")
        .bytes(),
    )
    launched = ({"gpu.uuid": "GPU-1", "gpu.index": "0"}, (F("kernel", "cuda"), F("step", "python", "", "a.py", 3)), 10)
    gpu = ProfilesBuilder({"host.name": "n"}).window(NOW - 5, [launched], ("gpu_time", "nanoseconds"))
    client.post("/v1development/profiles", gpu.bytes())
    text = DOCS.read_text()
    for name, extra in (("status", ""), ("flamegraph", ""), ("kernels", ""), ("series", "?name=gpu.utilization")):
        section = text.split(f"## GET /api/v1/{name}")[1]
        block = re.search(r"```json\n(.*?)```", section, re.DOTALL)[1].replace("[..]", "[0]")
        expected, found = json.loads(block), client.get(f"/api/v1/{name}{extra}").json()
        compare(expected, found, name)


def compare(expected: object, found: object, where: str) -> None:
    if isinstance(expected, dict):
        assert isinstance(found, dict), where
        for key, value in expected.items():
            if where.endswith((".labels", ".drops")):
                continue
            assert key in found, f"{where}.{key}"
            compare(value, found[key], f"{where}.{key}")
    elif isinstance(expected, list) and expected and isinstance(expected[0], dict):
        assert found, where
        compare(expected[0], found[0], f"{where}[0]")


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/api/v1/nothing", 404, "not_found"),
        ("/api/v1/flamegraph?from=abc", 400, "bad_time"),
        ("/api/v1/flamegraph?match=comm", 400, "bad_match"),
        ("/api/v1/flamegraph?focus=((", 400, "bad_regex"),
        ("/api/v1/series?name=cpu&from=-3d", 413, "too_large"),
        ("/api/v1/flamegraph?from=0", 413, "too_large"),
        ("/nothing", 404, "not_found"),
        ("/api/v1/flamegraph?from=" + "9" * 5000, 400, "bad_time"),
        ("/api/v1/flamegraph?match=" + "comm%3D%22a%22," * 60, 400, "bad_match"),
        ("/api/v1/top?limit=1e9", 400, "bad_limit"),
        ("/api/v1/top?limit=-1", 400, "bad_limit"),
        ("/api/v1/top?limit=%F0%9F%92%A9", 400, "bad_limit"),
    ],
)
def test_errors_are_json_with_code_and_hint(client, path, status, code):
    answer = client.get(path)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["code"] == code
    assert error["message"]
    assert set(error) == {"code", "message", "hint"}
    if status == 413:
        assert error["hint"]


def test_proposed_narrower_question_is_answered(client):
    hint = client.get("/api/v1/series?name=cpu&from=-3d").json()["error"]["hint"]
    step = re.search(r"step_ms=(\d+)", hint)[1]
    assert client.get(f"/api/v1/series?name=cpu&from=-3d&step_ms={step}").status_code == 200


def test_stopping_store_says_so(client):
    client.handlers.stopping = True
    assert client.get("/api/v1/status").status_code == 503
    assert client.get("/healthz").status_code == 503


def test_a_long_query_does_not_hold_up_the_stop(client):
    started = threading.Event()

    def ask() -> None:
        with client.engine.readers.reader(Limits(60)) as reader:
            started.set()
            reader.rows("SELECT count(*) FROM range(10000000) a, range(1000000) b WHERE a.range % 7 = b.range % 3")

    future = client.handlers.pool.submit(ask)
    started.wait()
    time.sleep(0.05)
    before = time.monotonic()
    client.handlers.close()
    assert time.monotonic() - before < 10
    assert isinstance(future.exception(), Unavailable)


def test_gzip_only_when_asked(client):
    client.post("/v1development/profiles", batch(rows=400))
    plain = client.get("/api/v1/flamegraph", headers={"accept-encoding": "identity"})
    packed = client.get("/api/v1/flamegraph", headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < int(plain.headers["content-length"]) / 3
    assert packed.json()["nodes"] == plain.json()["nodes"]


def test_page_with_etag_gzip_and_strict_csp(client):
    first = client.get("/")
    assert first.status_code == 200
    assert first.headers["content-encoding"] == "gzip"
    assert "<title>gpustrobe" in first.text
    csp = first.headers["content-security-policy"]
    assert "default-src 'none'" in csp
    assert "script-src 'self';" in csp
    assert "frame-ancestors 'none'" in csp
    assert first.headers["x-content-type-options"] == "nosniff"
    assert first.headers["cache-control"] == "no-cache"
    again = client.get("/", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    asset = client.get("/assets/app-abc123.js")
    assert "immutable" in asset.headers["cache-control"]
    assert asset.headers["content-type"].startswith("text/javascript")


def test_page_follows_a_new_build(client, page):
    before = client.get("/").headers["etag"]
    time.sleep(0.01)
    (page / "index.html").write_text("<title>new</title>")
    after = client.get("/")
    assert after.headers["etag"] != before
    assert "new" in after.text


@pytest.mark.parametrize(
    "path", ["/../secret.txt", "/%2e%2e/secret.txt", "/assets/../../secret.txt", "/..%2fsecret.txt", "/%00"]
)
def test_nothing_outside_the_page_is_served(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert "secret" not in answer.text


def test_without_a_built_page_a_text_says_how(tmp_path):
    engine = Engine(tmp_path / "data", reserve=0)
    client = Client(engine, Page(tmp_path / "none"))
    answer = client.get("/")
    assert answer.status_code == 200
    assert "make web" in answer.text
    client.handlers.close()
    engine.close()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7070", "127.0.0.1.evil.example", "", "169.254.169.254"])
def test_foreign_host_header_is_refused_on_loopback(client, host):
    assert client.get("/api/v1/status", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost:9999", "127.0.0.1", "[::1]:7070", "LOCALHOST"])
def test_own_names_are_served(client, host):
    assert client.get("/api/v1/status", headers={"host": host}).status_code == 200


def test_any_host_when_not_on_loopback(client):
    other = Client(client.engine, client.handlers.page, host="0.0.0.0")
    assert other.get("/api/v1/status", headers={"host": "store.monitoring.svc:7070"}).status_code == 200
    other.handlers.close()


def test_no_cors_and_no_writes_from_other_origins(client):
    answer = client.get("/api/v1/status", headers={"origin": "http://evil.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert client("OPTIONS", "/v1/metrics", headers={"origin": "http://evil.example"}).status_code in (403, 405)
    assert client.post("/v1development/profiles", batch(), origin="http://evil.example").status_code == 403
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/json"):
        assert client.post("/v1development/profiles", batch(), content_type=kind).status_code == 400
    assert client.engine.counters.rows == 0
    assert client.engine.counters.refused["bad_encoding"] == 4


def test_otlp_http_plain_and_gzip(client):
    assert client.post("/v1development/profiles", batch()).status_code == 200
    packed = gzip.compress(batch(NOW - 6))
    answer = client.post("/v1development/profiles", packed, content_encoding="gzip")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-protobuf"
    assert client.engine.counters.rows == 6


def test_otlp_http_refusals(client):
    assert client.post("/v1development/profiles", b"\xff\xff").status_code == 400
    assert client.post("/v1development/profiles", b"x", content_encoding="gzip").status_code == 400
    assert (
        client.post("/v1development/profiles", gzip.compress(batch())[:-9], content_encoding="gzip").status_code == 400
    )
    assert client.post("/v1development/profiles", b"x", content_encoding="br").status_code == 400
    assert client.post("/v1development/profiles", bytes(MAX_REQUEST + 1)).status_code == 413
    bomb = gzip.compress(bytes(300 << 20), 1)
    assert client.post("/v1development/profiles", bomb, content_encoding="gzip").status_code == 413
    client.engine.reserve = 1 << 60
    full = client.post("/v1development/profiles", batch())
    assert (full.status_code, full.headers["retry-after"]) == (503, "30")
    assert client.engine.counters.refused == {"malformed": 3, "bad_encoding": 1, "oversized": 2, "disk_full": 1}


def test_own_metrics_name_every_refusal(client):
    client.post("/v1development/profiles", batch())
    client.get("/api/v1/top?limit=x")
    text = client.get("/metrics").text
    for reason in REFUSALS:
        assert f'gpustrobe_store_refused_total{{reason="{reason}"}}' in text
    assert "gpustrobe_store_rows_total 3.0" in text
    assert 'gpustrobe_store_failed_queries_total{code="bad_limit",query="top"} 1.0' in text
    assert re.search(r"gpustrobe_store_data_bytes \d", text)
    assert re.search(r"process_resident_memory_bytes \d", text)
