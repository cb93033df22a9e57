"""Clients' messages for errors that are raised on the way to an answer, by the engine or anything else."""

from starlette.exceptions import HTTPException

from parlay.errors import ConfigError, ContextLengthError, EngineFaultError, ParlayError, RequestError, brief
from parlay.log import logger
from parlay.server.errors import CLIENT_LEFT, ApiError, ClientLeftError


def as_api_error(error: Exception) -> ApiError:
    """Return a client's message for any error; unexpected errors are logged too."""
    match error:
        case ApiError():
            return error
        case ClientLeftError():
            return ApiError(CLIENT_LEFT, "the client disconnected")
        case EngineFaultError():
            return ApiError(500, str(error))
        case ContextLengthError():  # by this code clients know that they should shorten it
            return ApiError(400, str(error), param=error.param, code="context_length_exceeded")
        case RequestError() | ConfigError():
            return ApiError(400, str(error), param=error.param)
        case ParlayError():  # the engine was closed, has died, or has no memory
            return ApiError(503, str(error))
        case TimeoutError():
            return ApiError(504, "the request took longer than the server allows; ask for fewer tokens")
        case HTTPException():
            return ApiError(error.status_code, _http(error), headers=error.headers)
    logger.error("a request failed inside the server", exc_info=error)
    return ApiError(500, f"the server failed on this request ({type(error).__name__}); its log says where")


def _http(error: HTTPException) -> str:
    known = {
        404: "there is nothing here; /openapi.json lists what there is",
        405: "this path is not for this method; the header Allow says for which",
    }
    return known.get(error.status_code, brief(str(error.detail)))
