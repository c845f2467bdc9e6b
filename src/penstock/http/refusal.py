"""Requests that never reach the application: the status, the error object of the wire contract, and the reason.

Everything here ends with the connection closed, since after it nobody knows where the next request would begin.
"""

from __future__ import annotations

import msgspec


class Refusal(Exception):
    """The server answers this itself and closes. ``reason`` goes to the client: no input is echoed in it."""

    def __init__(self, status: int, code: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.code = code
        self.reason = reason


def bad_request(reason: str) -> Refusal:
    return Refusal(400, "bad-request", reason)


def too_full() -> Refusal:
    return Refusal(503, "unavailable", "too many large requests are being read; try again later")


def too_slow(what: str) -> Refusal:
    """``what`` of a request did not come in time."""
    return Refusal(408, "request-timeout", f"the {what} of the request took too long to arrive")


def no_turn() -> Refusal:
    """Of a whole request of somebody who has proved nothing."""
    return Refusal(503, "unavailable", "too many connections are open; try again later")


def error_object(code: str, reason: str) -> bytes:
    """The JSON error object of the contract."""
    return msgspec.json.encode({"error": code, "reason": reason, "message": reason})
