"""A real S3 server on loopback: moto's, one a test process."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from unittest import mock

import pytest

__all__ = ["S3", "s3", "s3_server"]

_FAKE = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass(frozen=True)
class S3:
    """The server.

    Attributes:
        environ: Variables that name it, for processes that are to use it.
        client: A client of boto3.
    """

    environ: Mapping[str, str]
    client: Any
    _numbers: Iterator[int] = field(default_factory=count)

    def bucket(self) -> str:
        """Make a new bucket and return its name."""
        name = f"bucket-{next(self._numbers)}"
        self.client.create_bucket(Bucket=name)
        return name

    def files(self, bucket: str) -> dict[str, bytes]:
        """Everything in a bucket, by key."""
        found = self.client.list_objects_v2(Bucket=bucket).get("Contents", [])
        return {item["Key"]: self.client.get_object(Bucket=bucket, Key=item["Key"])["Body"].read() for item in found}

    def put(self, bucket: str, files: Mapping[str, bytes]) -> None:
        """Put files into a bucket."""
        for key, data in files.items():
            self.client.put_object(Bucket=bucket, Key=key, Body=data)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3]:
    """Start the server once a test process."""
    server = pytest.importorskip("moto.server", reason="moto[server] is a development dependency")
    boto3 = pytest.importorskip("boto3")
    started = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    started.start()
    host, port = started.get_host_and_port()
    environ = {**_FAKE, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}
    with mock.patch.dict(os.environ, environ):
        client = boto3.client("s3")
    try:
        yield S3(environ, client)
    finally:
        client.close()
        started.stop()


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """The server, which this process uses too while the test runs."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "FSSPEC_")):
            monkeypatch.delenv(name)
    for name, value in s3_server.environ.items():
        monkeypatch.setenv(name, value)
    return s3_server
