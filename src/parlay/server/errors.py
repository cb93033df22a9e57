"""Errors as clients see them: in OpenAI's and Anthropic's format, with the status that says whose fault it is."""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from parlay.errors import ConfigError, ContextLengthError, EngineFaultError, ParlayError, RequestError, brief
from parlay.log import logger

CLIENT_LEFT = 499  # nginx's status; only logs and metrics see it
CONTEXT_LENGTH = "context_length_exceeded"  # the code by which clients know that they should shorten a conversation
_RETRY = "1"  # seconds

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded", 503: "engine_not_ready", 504: "timeout"}


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        kind: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Describe it.

        Args:
            status: the HTTP status.
            message: one sentence with the remedy.
            param: the field that is wrong.
            code: a word for programs; None takes the status's usual one.
            headers: further ones of the answer.
            kind: the `type` that clients see; None takes the status's.
            details: further fields for programs.
        """
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code or _CODES.get(status)
        self.headers, self.details = dict(headers or {}), details
        usual = "server_error" if status >= 500 else "invalid_request_error"
        self.kind = kind or _TYPES.get(status, usual)
        if status in (429, 503):
            self.headers.setdefault("Retry-After", _RETRY)

    @property
    def body(self) -> dict[str, Any]:
        """The body that the client gets."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return {"type": "error", "error": error if self.details is None else {**error, "details": self.details}}

    def response(self) -> Response:
        """Return the answer."""
        return json_response(self.body, self.status, self.headers)


class ClientLeftError(Exception):
    """The client has disconnected."""


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer in JSON."""
    return Response(msgspec.json.encode(content), status, dict(headers or {}), "application/json")


def as_api_error(error: Exception) -> ApiError:
    """Return a client's message for any error; unexpected errors are logged too."""
    match error:
        case ApiError():
            return error
        case ClientLeftError():
            return ApiError(CLIENT_LEFT, "the client disconnected")
        case EngineFaultError():
            return ApiError(500, str(error))
        case ContextLengthError():
            return ApiError(400, str(error), param=error.param, code=CONTEXT_LENGTH)
        case RequestError() | ConfigError():
            return ApiError(400, str(error), param=error.param)
        case ParlayError():  # the engine was closed, has died, or has no memory
            return ApiError(503, str(error))
        case TimeoutError():
            return ApiError(504, "the request timed out; ask for fewer tokens")
        case HTTPException():
            return ApiError(error.status_code, _http(error), headers=error.headers)
    logger.error("a request failed inside the server", exc_info=error)
    return ApiError(500, f"internal server error ({type(error).__name__}); see the server's log")


def _http(error: HTTPException) -> str:
    known = {
        404: "no such endpoint; see /openapi.json",
        405: "method not allowed; see the Allow header",
    }
    return known.get(error.status_code, brief(str(error.detail)))
