"""What is shown to people holds no secret: at any depth, in texts, under all usual names."""

from __future__ import annotations

import io
import json
import logging
import time

import pytest

from penstock.log.log import configure_logging, get_logger
from penstock.log.masking import DEPTH_MAX, is_secret_name, mask, mask_text
from penstock.settings import Settings, SettingsError, load_settings
from tests.logs import restored_logging

S = "hunter2secret"
NAMES = [
    "password", "db_password", "PASSWD", "passphrase", "pwd", "secret", "client_secret", "clientSecret", "aws_secret",
    "token_secret", "api_key", "apiKey", "X-API-Key", "access_key", "AccessKeyId", "private_key", "signing-key",
    "encryption_keys", "authorization", "Proxy-Authorization", "cookie", "Set-Cookie", "credentials", "access_token",
    "accessToken", "refresh_token", "id_token", "auth_token", "api_tokens", "session_token", "csrf-token", "jwt",
    "bearer", "dsn", "postgres_dsn", "conninfo", "session_id", "auth",
]  # fmt: skip
HARMLESS = [
    "token", "tokens", "token_id", "invalid_tokens", "job", "worker", "key", "business_key", "idempotency_key",
    "author", "keys", "monkey", "passed", "bypass", "tokenize", "attempt", "path", "session", "secondary",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_usual_names_of_secrets_are_known(name):
    assert is_secret_name(name)


@pytest.mark.parametrize("name", HARMLESS)
def test_other_names_are_shown(name):
    assert not is_secret_name(name)
    assert mask(name, "shown") == "shown"


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://u:{S}@db/x",
        f"postgresql://u:a@{S}@db/x",
        f"see https://user:{S}@host:1/path?x=1",
        f"GET https://host/x?token={S}&a=b",
        f"GET /x?access_token={S}",
        f"host=db password={S} user=u",
        f"host=db sslpassword = '{S} {S}'",
        f'{{"password": "{S}", "a": 1}}',
        f"{{'client_secret': '{S}'}}",
        f"Authorization: Bearer {S}",
        f"sent 'Basic {S}=='",
        f"api_key={S};",
        f"X-API-Key: {S}",
        f"pst_0123456789ab_{S}",
        f"__Host-penstock=pss_{S:a<43}",
        f"sasl_plain_password='{S}'",
        f"{'long' * 30}_password={S}",
        f'cut off: {{"password": "{S}',
        f"cut off: password='{S}\\\n{S}",
        f"db_pa\u017fsword={S}",
    ],
)
def test_texts_are_shown_without_the_secrets_in_them(text):
    assert S not in mask_text(text)
    assert S not in str(mask("reason", ValueError(text)))
    assert S not in str(mask("reason", text.encode()))


def test_texts_without_secrets_stay_as_they_are():
    for text in (
        "http://127.0.0.1:8080/v1/jobs?x=1",
        "a: b = c",
        "token=1f-1-0",
        "the password is wrong",
        "key: 5",
        "",
    ):
        assert mask_text(text) == text


# Those that cost most by their length, or would if a repetition in an expression gave back what it took.
DEAR = [
    "a-", "password", "secret-", "://a:", "'", "a=", "a", "password='", "'password'", "Bearer ", "pst_", "://", " ",
    "\\", 'password="\\',
]  # fmt: skip


def cpu_s(text: str) -> float:
    """The least of three times: what else the machine does only adds."""
    times = []
    for _ in range(3):
        began = time.process_time()
        mask_text(text)
        times.append(time.process_time() - began)
    return min(times)


@pytest.mark.parametrize("repeated", DEAR)
def test_a_long_text_costs_what_its_length_does(repeated):
    short = repeated * (40_000 // len(repeated))
    usual = "job 12 of worker a: done in 30 ms\n" * (40_000 // 34)
    once = cpu_s(short)
    assert cpu_s(short * 4) < 10 * once  # 4 where the length counts, 16 where its square does
    assert once < 12 * cpu_s(usual)  # 3 to 5 as it is; 26 when names were looked for by their beginning


@pytest.mark.parametrize("form", ["json", "human"])
def test_log_lines_mask_at_any_depth(form):
    out = io.StringIO()
    deep: object = {"password": S}
    for _ in range(DEPTH_MAX * 2):
        deep = [{"inner": deep}]
    with restored_logging():
        configure_logging("debug", form, out)
        get_logger("x").info(
            "request",
            headers={"Authorization": f"Bearer {S}", "accept": "json"},
            body={"list": [{"deeper": {"apiKey": S, "url": f"https://u:{S}@h/"}}], "kept": "shown"},
            pair=("a", {"secret": [S]}),
            raw=f'{{"token_secret":"{S}"}}'.encode(),
            deep=deep,
            has_password=True,
        )
        logging.getLogger("aiokafka").warning("config %s", {"sasl_plain_password": S})
    text = out.getvalue()
    assert S not in text
    assert "shown" in text
    if form == "json":
        line = json.loads(text.splitlines()[0])
        assert line["headers"] == {"Authorization": "***", "accept": "json"}
        assert line["has_password"] is True


def test_settings_show_no_secret_in_urls_or_errors():
    shown = Settings(oidc_jwks=f"https://u:{S}@issuer/keys?api_key={S}").redacted()
    assert S not in str(shown)
    assert "issuer" in str(shown)
    environ = {"WE_KAFKA_SEED_BROKERS": f"sasl://u:{S}@broker:9092", "WE_REST_PORT": f"http://u:{S}@h"}
    with pytest.raises(SettingsError) as raised:
        load_settings(environ=environ)
    assert len(raised.value.problems) == 2
    assert S not in str(raised.value)
