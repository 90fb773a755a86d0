"""What drivers raise becomes one of two errors, without anything secret."""

import errno

import pytest

from precast.cache.remote_errors import clean, is_absent, is_refused, remote_error, shown_url
from precast.errors import CorruptError, RemoteError, RemoteRefusedError

URL = "s3://bucket/prefix"


def named(name: str, *bases: type[BaseException], **attributes: object) -> BaseException:
    """An error of a class that is only known by its name, as those of drivers are."""
    error: BaseException = type(name, bases or (Exception,), {})("it says so")
    for attribute, value in attributes.items():
        setattr(error, attribute, value)
    return error


def answered(code: str, status: int) -> BaseException:
    response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return named("ClientError", response=response)


class Response:
    """An answer of an HTTP library."""

    def __init__(self, status_code: int) -> None:
        self.status_code = status_code


REFUSED = {
    "permission": PermissionError(errno.EACCES, "Permission denied"),
    "read-only disk": OSError(errno.EROFS, "Read-only file system"),
    "full disk": OSError(errno.ENOSPC, "No space left on device"),
    "no credentials": named("NoCredentialsError"),
    "no bucket": answered("NoSuchBucket", 404),
    "forbidden": answered("AccessDenied", 403),
    "no repository": named("RepositoryNotFoundError", OSError),
    "hub says 401": named("HfHubHTTPError", OSError, response=Response(401)),
    "gcsfs says forbidden": OSError("Forbidden: b/bucket/o"),
    "gcsfs says 401": named("HttpError", code=401),
    "no driver": ModuleNotFoundError("No module named 's3fs'"),
}
UNREACHABLE = {
    "refused connection": ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
    "no endpoint": named("EndpointConnectionError"),
    "timeout": TimeoutError("there was no answer within 60 s"),
    "timeout without words": named("FSTimeoutError"),
    "broken server": answered("InternalError", 500),
    "stale share": OSError(errno.ESTALE, "Stale file handle"),
    "anything": ValueError("unexpected"),
}


@pytest.mark.parametrize("error", REFUSED.values(), ids=REFUSED.keys())
def test_a_no_is_a_refusal(error: BaseException) -> None:
    assert is_refused(error)
    made = remote_error(error, URL, "reading v1/x")
    assert isinstance(made, RemoteRefusedError)
    assert (made.code, int(made.exit_code)) == ("remote.refused", 12)


@pytest.mark.parametrize("error", UNREACHABLE.values(), ids=UNREACHABLE.keys())
def test_anything_else_is_out_of_reach(error: BaseException) -> None:
    assert not is_refused(error)
    made = remote_error(error, URL, "reading v1/x")
    assert isinstance(made, RemoteError)
    assert (made.code, int(made.exit_code)) == ("remote.unreachable", 12)
    assert made.why.startswith("reading v1/x: ")
    assert made.why != "reading v1/x: "
    assert URL in made.what
    assert "--offline" in made.hint


def test_a_cause_counts() -> None:
    error = FileNotFoundError("The specified bucket does not exist")
    error.__cause__ = answered("NoSuchBucket", 404)
    assert (is_refused(error), is_absent(error)) == (True, False)


def test_an_error_that_causes_itself_ends() -> None:
    error = ValueError("round")
    error.__cause__ = error
    assert not is_refused(error)


_HUB_404 = named("RemoteEntryNotFoundError", type("EntryNotFoundError", (Exception,), {}))


@pytest.mark.parametrize("error", [FileNotFoundError("x"), NotADirectoryError("x"), _HUB_404])
def test_absence_is_told_from_refusal(error: BaseException) -> None:
    assert is_absent(error)


@pytest.mark.parametrize("error", [PermissionError(), ConnectionError(), OSError(errno.EIO, "x")])
def test_a_failure_is_no_absence(error: BaseException) -> None:
    assert not is_absent(error)


def test_an_error_of_ours_stays() -> None:
    error = CorruptError("damaged")
    assert remote_error(error, URL, "reading") is error


def test_a_missing_driver_says_what_to_install() -> None:
    made = remote_error(ModuleNotFoundError("No module named 's3fs'"), URL, "reading")
    assert (made.hint, made.why) == ("Run `pip install 'precast[s3]'`", "its driver is missing: No module named 's3fs'")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/prefix/", "s3://bucket/prefix"),
        ("s3://user:secret@bucket/prefix", "s3://..."),
        ("s3://AKIA:se/cret@bucket/prefix", "s3://..."),
        ("s3://secret@bucket", "s3://..."),
        ("gs://bucket/prefix?sig=secret#secret", "gs://bucket/prefix"),
        ("hf://user:secret@org/name", "hf://..."),
        ("hf://datasets/org/name@main/x", "hf://datasets/org/name@main/x"),
        ("hf://gpt2@main", "hf://gpt2@main"),
        ("s3://arn:aws:s3:::bucket/x", "s3://arn:aws:s3:::bucket/x"),
        ("file:///home/a@b:c/x", "file:///home/a@b:c/x"),
        ("bucket", "bucket"),
    ],
)
def test_an_address_is_shown_without_secrets(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        (
            'Could not connect to "http://127.0.0.1:9000/bucket/x"',
            'Could not connect to "http://127.0.0.1:9000/bucket/x"',
        ),
        ("no http://user:secret@host/x here", "no http://host/x here"),
        ("no http://user:se/cret@host/x here", "no http://host/x here"),
        ("GET https://host/x?X-Amz-Signature=secret&y=1 failed", "GET https://host/x failed"),
        ("token hf_secretsecretsecret is bad", "token  is bad"),
        ("key AKIASECRETSECRET12 is bad", "key  is bad"),
        ("header Bearer secret is bad", "header  is bad"),
        ("two\n  lines", "two lines"),
    ],
)
def test_what_a_driver_says_is_cleaned(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned
    assert "secret" not in clean(text).lower()


def test_what_a_driver_says_has_an_end() -> None:
    assert len(clean("word " * 1000)) == 300
