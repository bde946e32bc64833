"""Errors of a request body, other than a value out of range."""

from engine.errors import InvalidRequest, RequestError


class MalformedBody(InvalidRequest):
    """The body is not a JSON object, or has too many fields or levels."""

    code = "invalid_json"


class MissingParameter(InvalidRequest):
    """A field that must be given is missing."""

    code = "missing_required_parameter"


class UnknownParameter(InvalidRequest):
    """The API has no such field."""

    code = "unknown_parameter"


class UnsupportedParameter(InvalidRequest):
    """The field is known, but what it asks for is not offered."""

    code = "unsupported_parameter"


class ModelNotFound(RequestError):
    """The request names a model that is not served here."""

    code = "model_not_found"


class PrefixNotFound(RequestError):
    """The request names a prefix that its caller has not pinned."""

    code = "prefix_not_found"


class DeadlineExceeded(RequestError):
    """The answer did not come in the time that the server, or the request, allows."""

    code = "deadline_exceeded"
