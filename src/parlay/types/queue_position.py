"""A request's place in the queue."""

from parlay.errors import RequestError, shown


def check_queue_position(priority: object, tenant: object, timeout: object) -> None:
    """Refuse a place in the queue that would break the queue's order.

    Raises:
        RequestError: one of them has the wrong type, or no meaning.
    """
    if not isinstance(priority, int):
        raise RequestError(f"priority must be an integer, not {shown(priority)}; lower runs first")
    if not isinstance(tenant, str):
        raise RequestError(f"tenant must be text, not {shown(tenant)}; leave it empty where all share a cache")
    try:
        tenant.encode()
    except UnicodeEncodeError:
        raise RequestError(f"tenant must be valid Unicode text, not {shown(tenant)}") from None
    if timeout is not None and not (isinstance(timeout, int | float) and timeout == timeout):
        raise RequestError(f"timeout must be a number of seconds, not {shown(timeout)}; leave it out for no limit")
