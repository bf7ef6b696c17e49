"""Access to a bucket: its place, the credentials, and clients of Oracle's SDK."""

from __future__ import annotations

import configparser
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from locus_store.backends.oci.options import OCIOptions
from locus_store.errors import (
    ConnectionFailedError,
    InvalidArgumentError,
    MissingExtraError,
    make_install_command,
)
from locus_store.types.arguments import make_absolute


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPlace:
    """A bucket."""

    namespace: str
    bucket: str

    def __str__(self) -> str:
        return f"oci://{self.namespace}/{self.bucket}"


def require(place: BucketPlace, access: OCIOptions) -> None:
    """Refuse options that are not valid, before anything is opened.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: Oracle's SDK is not installed.
    """
    if access["client"] is None and find_spec("oci") is None:
        raise MissingExtraError(
            f"OCI Object Storage needs Oracle's SDK: {make_install_command('oci')}"
        )
    for name, value in (("bucket_name", place.bucket), ("namespace", place.namespace)):
        if not isinstance(value, str) or not value.strip() or "/" in value:
            raise InvalidArgumentError(f"{name}={value!r} must be a name without a slash")
    if access["client"] is not None and not hasattr(access["client"], "base_client"):
        raise InvalidArgumentError("client must be an oci.object_storage.ObjectStorageClient")


def make_factory(access: OCIOptions) -> Callable[[], Any]:
    """Return a function that creates clients; the credentials are read once.

    The clients have neither retries nor a circuit breaker: one open circuit would refuse the calls
    of other clients of the process.

    Raises:
        InvalidArgumentError: The profile or its key cannot be used.
        ConnectionFailedError: The service gives this host no credentials.
    """
    import oci  # noqa: PLC0415  (of an extra, and slow to import)

    try:
        config, signer = _read_credentials(access)
    except oci.exceptions.ServiceError as exc:
        raise ConnectionFailedError(
            f"the credentials for OCI were refused (auth_type={access['auth_type']!r}): HTTP "
            f"{exc.status}; is this host in a dynamic group with a policy?"
        ) from exc
    except (oci.exceptions.ClientError, configparser.Error, OSError, ValueError) as exc:
        raise InvalidArgumentError(
            f"the credentials for OCI cannot be used (auth_type={access['auth_type']!r}, profile "
            f"{access['profile_name']!r} of {access['config_file']}): {exc}"
        ) from exc
    options: dict[str, Any] = {
        "retry_strategy": oci.retry.NoneRetryStrategy(),
        "circuit_breaker_strategy": oci.circuit_breaker.NoCircuitBreakerStrategy(),
        "timeout": (access["connect_timeout_seconds"], access["timeout_seconds"]),
        "enable_strict_url_encoding": True,
    }
    if signer is not None:
        options["signer"] = signer
    if access["endpoint"] is not None:
        options["service_endpoint"] = access["endpoint"]
    return lambda: oci.object_storage.ObjectStorageClient(config, **options)


def _read_credentials(access: OCIOptions) -> tuple[dict[str, Any], Any]:
    """Return the SDK's configuration, and its signer."""
    import oci  # noqa: PLC0415  (of an extra, and slow to import)

    signers, region = oci.auth.signers, access["region"]
    own = {"region": region} if region else {}
    if access["auth_type"] == "instance_principal":
        return own, signers.InstancePrincipalsSecurityTokenSigner()
    if access["auth_type"] == "resource_principal":
        return own, signers.get_resource_principals_signer()
    file = make_absolute("config_file", access["config_file"])
    config: dict[str, Any] = {**oci.config.from_file(file, access["profile_name"]), **own}
    if access["auth_type"] == "security_token":
        return config, _make_token_signer(config)
    return config, oci.signer.Signer.from_config({"key_file": None, **config})


def _make_token_signer(config: dict[str, Any]) -> Any:
    """Return the signer of a session token, as ``oci session authenticate`` writes it."""
    import oci  # noqa: PLC0415  (of an extra, and slow to import)

    file = config.get("security_token_file")
    if not file:
        raise ValueError("the profile has no security_token_file; run `oci session authenticate`")
    if not config.get("key_file"):
        raise ValueError("the profile has no key_file; run `oci session authenticate`")
    token = Path(make_absolute("security_token_file", file)).read_text("utf-8").strip()
    if not token or len(token.split()) > 1:
        raise ValueError(f"{file} contains no token; run `oci session authenticate`")
    key = oci.signer.load_private_key_from_file(config.get("key_file"), config.get("pass_phrase"))
    return oci.auth.signers.SecurityTokenSigner(token, key)
