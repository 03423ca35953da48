"""``--listen``: no password, no listening; a password lets people in, guessing is slowed down, names stay checked."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from app.web import auth
from app.web.auth import ENTRANCE, SHORTEST, Guard, LanAuth, LoginTokens
from engine.errors import OptionError
from tests.app.web.test_guard import ALLOWED, SCRIPT, SECRET, other, page

PASSWORD = "correct horse battery"
FAR = "http://192.168.1.9:7860"


def _guarded(known: LanAuth) -> Guard:
    from starlette.applications import Starlette
    from starlette.routing import Route

    routes = [
        Route("/", page),
        Route("/healthz", other),
        Route("/files/{name:path}", other),
        Route("/ask", other, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes), 7860, LoginTokens(SECRET), ALLOWED, known)


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
def far(clock: list[float]) -> TestClient:
    """A client of another machine."""
    known = LanAuth(PASSWORD, lambda: clock[0])
    return TestClient(_guarded(known), base_url=FAR, client=("192.168.1.7", 50000), follow_redirects=False)


@pytest.mark.parametrize(("password", "says"), [("", "needs a password"), ("short", "can be guessed")])
def test_listening_demands_a_password(monkeypatch: pytest.MonkeyPatch, password: str, says: str) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(OptionError, match=says) as caught:
        auth.demand_password({auth.VARIABLE: password})
    assert str(SHORTEST) in caught.value.remedy
    assert auth.demand_password({auth.VARIABLE: PASSWORD}) == PASSWORD


def test_it_says_what_it_means() -> None:
    assert "not encrypted" in auth.MEANING
    assert "password" in auth.MEANING


def test_a_stranger_is_told_in_the_browsers_language(far: TestClient) -> None:
    """The page of the password was English for everybody."""
    german = {"accept-language": "de-AT,de;q=0.9,en;q=0.8"}
    entrance = far.get("/", headers=german)
    assert "<html lang=de>" in entrance.text
    assert "Das Passwort lässt Sie herein." in entrance.text
    assert "<label>Passwort <input" in entrance.text
    assert "Das ist nicht das Passwort." in far.post(ENTRANCE, data={"password": "no"}, headers=german).text
    assert "Its password lets you in." in far.get("/", headers={"accept-language": "fr, en;q=0.5, de;q=0.1"}).text
    sentences = (auth.INVITATION, auth.LOCKED, auth.ELSEWHERE, auth.WRONG, auth.TOO_OFTEN)
    assert all(auth.in_language(sentence, "de") != sentence for sentence in sentences)


def test_the_password_opens_and_nothing_else_does(far: TestClient) -> None:
    answer = far.get("/")
    assert answer.status_code == 401
    assert f"action={ENTRANCE}" in answer.text
    assert "form-action 'self'" in answer.headers["content-security-policy"]
    assert far.get("/files/a").status_code == 401
    assert far.post("/ask").status_code == 401
    assert far.post(ENTRANCE, data={"password": "wrong"}).status_code == 401
    answer = far.post(ENTRANCE, data={"password": PASSWORD}, headers={"origin": FAR})
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert PASSWORD not in str(answer.headers)
    assert SCRIPT in far.get("/").text
    assert far.post("/ask", headers={"origin": FAR}).status_code == 200


def test_guessing_is_slowed_down(far: TestClient, clock: list[float]) -> None:
    statuses = [far.post(ENTRANCE, data={"password": str(at)}).status_code for at in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    assert far.post(ENTRANCE, data={"password": PASSWORD}).status_code == 429, "the right one, too, must wait"
    clock[0] += 61
    assert far.post(ENTRANCE, data={"password": PASSWORD}).status_code == 200


def test_who_guesses_keeps_nobody_else_out(clock: list[float]) -> None:
    guard = _guarded(LanAuth(PASSWORD, lambda: clock[0]))
    guests = ("192.168.1.7", "192.168.1.8", "127.0.0.1", "fe80::1", "::ffff:192.168.1.9")
    far = [TestClient(guard, base_url=FAR, client=(guest, 50000)) for guest in guests]
    for at in range(12):
        far[0].post(ENTRANCE, data={"password": str(at)})
    assert far[0].post(ENTRANCE, data={"password": PASSWORD}).status_code == 429
    assert [one.post(ENTRANCE, data={"password": PASSWORD}).status_code for one in far[1:]] == [200] * 4


def test_another_address_of_the_same_network_guesses_no_more(clock: list[float]) -> None:
    known = LanAuth(PASSWORD, lambda: clock[0])
    said = [known.refuses(b"password=x", f"2001:db8::{at:x}") for at in range(12)]
    assert said[-1] == auth.TOO_OFTEN
    for at in range(5000):
        known.refuses(b"password=x", f"10.0.{at // 250}.{at % 250}")
    assert len(known._wrong) <= 1000


def test_another_password_lets_nobody_in_who_knew_the_old_one(far: TestClient) -> None:
    far.post(ENTRANCE, data={"password": PASSWORD})
    assert far.get("/").status_code == 200
    cookie = "; ".join(f"{name}={value}" for name, value in far.cookies.items())
    for known, status in ((LanAuth("another horse battery"), 401), (LanAuth(PASSWORD), 200)):
        again = TestClient(_guarded(known), base_url=FAR, client=("192.168.1.7", 50000))
        assert again.get("/", headers={"cookie": cookie}).status_code == status
    from tests.app.web.test_guard import guarded

    alone = TestClient(guarded(LoginTokens(SECRET)), base_url="http://127.0.0.1:7860", client=("127.0.0.1", 1))
    assert alone.get("/", headers={"cookie": cookie}).status_code == 401, "nor without --listen"


def test_many_addresses_guess_no_faster(clock: list[float]) -> None:
    """With one try each, 1,290 addresses were not limited."""
    known = LanAuth(PASSWORD, lambda: clock[0])
    said = [known.refuses(b"password=x", f"10.1.{at // 250}.{at % 250}") for at in range(1290)]
    assert said.count(auth.WRONG) == auth._MOST_WRONG_TOGETHER
    right = f"password={PASSWORD.replace(' ', '+')}".encode()
    assert known.refuses(right, "10.9.9.9") == auth.TOO_OFTEN
    clock[0] += 61
    assert known.refuses(right, "10.9.9.9") == ""


@pytest.mark.parametrize(
    "body", [b"", b"password", b"password=" + b"a" * 100_000, b"\xff\xfe", b"password=&password=x"]
)
def test_any_form_is_answered(far: TestClient, body: bytes) -> None:
    assert far.post(ENTRANCE, content=body).status_code == 401


@pytest.mark.parametrize(
    "host", ["evil.example:7860", "192.168.1.9", "192.168.1.9:80", "192.168.1.9.evil.example:7860", "", ":7860"]
)
def test_a_rebound_name_is_refused_all_the_same(far: TestClient, host: str) -> None:
    assert far.get("/healthz", headers={"host": host}).status_code == 400


def test_another_site_cannot_write_all_the_same(far: TestClient) -> None:
    far.post(ENTRANCE, data={"password": PASSWORD})
    for origin in ("http://evil.example", "null", "http://192.168.1.10:7860", "https://192.168.1.9:7860"):
        assert far.post("/ask", headers={"origin": origin}).status_code == 403
        assert far.post(ENTRANCE, data={"password": PASSWORD}, headers={"origin": origin}).status_code == 403


def test_without_it_there_is_no_entrance() -> None:
    from tests.app.web.test_guard import guarded

    alone = TestClient(guarded(LoginTokens(SECRET)), base_url="http://127.0.0.1:7860", client=("127.0.0.1", 1))
    assert alone.post(ENTRANCE, data={"password": PASSWORD}).status_code == 404
    assert f"action={ENTRANCE}" not in alone.get("/").text
