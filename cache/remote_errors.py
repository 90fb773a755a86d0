"""What fails at a remote, as errors of ours: sorted into unreachable and refused, and cleaned of anything secret.

Drivers raise errors of botocore, aiohttp, huggingface-hub or the operating system. They are told apart by the names of
their classes and by status codes, so that none of these packages is imported for it.
"""

import errno
import re
from collections.abc import Iterator

from precast.errors import PrecastError, RemoteError, RemoteRefusedError

__all__ = ["clean", "holds_credentials", "is_absent", "is_refused", "remote_error", "shown_url"]

_MAX_WORDS = 300
_REFUSING_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSING_STATUS = (401, 402, 403, 405)
_REFUSING_CODES = frozenset({"NoSuchBucket", "InvalidBucketName", "AllAccessDisabled", "MethodNotAllowed"})
_REFUSING_CLASSES = frozenset(
    {
        "BucketNotFoundError", "CredentialRetrievalError", "DefaultCredentialsError", "GatedRepoError",
        "HFValidationError", "ImportError", "InvalidConfigError", "LocalTokenNotFoundError", "NoCredentialsError",
        "NoRegionError", "ParamValidationError", "PartialCredentialsError", "PermissionError", "ProfileNotFound",
        "RepositoryNotFoundError", "RevisionNotFoundError", "SSOTokenLoadError", "TokenRetrievalError",
        "UnauthorizedSSOTokenError",
    }
)  # fmt: skip

_USER_INFO = re.compile(r"(?<=://)[^\s/@'\"]*:[^\s@'\"]*@|(?<=://)[^\s/@'\"]+@")
_QUERY = re.compile(r"\?[^\s'\"<>)]+")
_TOKEN = re.compile(r"\b(hf_[A-Za-z0-9]{8,}|ya29\.[\w.-]{8,}|A[KS]IA[A-Z0-9]{12,}|Bearer\s+\S+)")

_HINTS = {
    "s3": "Check AWS_ENDPOINT_URL, the credentials in AWS_* and the network, or pass --offline",
    "gs": "Check GOOGLE_APPLICATION_CREDENTIALS and the network, or pass --offline",
    "hf": "Check HF_TOKEN, the repository's name and the network, or pass --offline",
    "file": "Mount or create the folder and let this user use it, or pass --offline",
}
_EXTRAS = {"s3": "s3", "gs": "gs"}


def shown_url(url: str) -> str:
    """Return an address as it may be shown: without user, password, query and fragment."""
    protocol, separator, rest = url.partition("://")
    if not separator:
        return clean(url)
    place = re.split(r"[?#]", rest, maxsplit=1)[0].rstrip("/")
    return f"{protocol}://..." if holds_credentials(url) else f"{protocol}://{place}"


def holds_credentials(url: str) -> bool:
    """Tell whether an address holds something that could be a credential."""
    protocol, _, rest = url.partition("://")
    first = rest.partition("/")[0]
    if protocol == "file":
        return False
    # An access point of S3 has colons in its name; a repository of Hugging Face has its revision behind an at sign.
    named = first.startswith("arn:") or (protocol == "hf" and ":" not in first)
    return not named and ("@" in first or ":" in first or ("@" in rest and protocol != "hf"))


def clean(text: str) -> str:
    """Fold what a driver says to one line, without users, passwords, signed queries and tokens."""
    line = " ".join(text.split())
    for pattern in (_USER_INFO, _QUERY, _TOKEN):
        line = pattern.sub("", line)
    return line if len(line) <= _MAX_WORDS else f"{line[: _MAX_WORDS - 3]}..."


def is_refused(error: BaseException) -> bool:
    """Tell whether a remote said no, so that asking again cannot help."""
    return any(_refuses(one) for one in _chain(error))


def is_absent(error: BaseException) -> bool:
    """Tell whether a file is not there, in a place that is there."""
    absent = isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError) or any(
        kind.__name__ == "EntryNotFoundError" for kind in type(error).__mro__
    )
    return absent and not is_refused(error)


def remote_error(error: BaseException, url: str, doing: str) -> PrecastError:
    """Say for people what happened at a remote.

    Args:
        error: What was raised; one of ours stays as it is.
        url: The remote's address.
        doing: What was being done, such as `reading v1/entries`.
    """
    if isinstance(error, PrecastError):
        return error
    protocol = url.partition("://")[0]
    shown = shown_url(url)
    if isinstance(error, ImportError):
        extra = _EXTRAS.get(protocol)
        hint = f"Run `pip install 'precast[{extra}]'`" if extra else "Install the package that it names"
        why = f"its driver is missing: {clean(str(error))}"
        return RemoteRefusedError(f"The remote {shown} cannot be used", why, hint)
    why = f"{doing}: {_told(error)}"
    hint = _HINTS.get(protocol, "Check the network, or pass --offline")
    if is_refused(error):
        return RemoteRefusedError(f"The remote {shown} refuses", why, hint)
    return RemoteError(f"The remote {shown} cannot be reached", why, hint)


def _told(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return clean(error.strerror)
    return clean(str(error)) or type(error).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    for _ in range(8):  # a bound, should an error be its own cause
        if one is None:
            return
        yield one
        one = one.__cause__


def _refuses(error: BaseException) -> bool:
    if any(kind.__name__ in _REFUSING_CLASSES for kind in type(error).__mro__):
        return True
    if isinstance(error, OSError) and error.errno in _REFUSING_ERRNOS:
        return True
    # gcsfs has no class for it.
    return _code(error) in _REFUSING_CODES or _status(error) in _REFUSING_STATUS or str(error).startswith("Forbidden")


def _code(error: BaseException) -> object:
    """Return the code in an answer of S3."""
    response = getattr(error, "response", None)
    inner = response.get("Error") if isinstance(response, dict) else None
    return inner.get("Code") if isinstance(inner, dict) else None


def _status(error: BaseException) -> object:
    """Return the HTTP status that an error carries, wherever its library puts it."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        metadata = response.get("ResponseMetadata")
        return metadata.get("HTTPStatusCode") if isinstance(metadata, dict) else None
    for holder, name in ((response, "status_code"), (error, "status"), (error, "code")):
        value = getattr(holder, name, None)
        if isinstance(value, int):
            return value
    return None
