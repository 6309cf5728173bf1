"""Signatures of bundles, with the package model-signing: an own elliptic-curve key, or Sigstore.

A signature covers every file of the bundle except the engines, which are built on each machine, and the
signature itself. A file that was added, changed or removed makes the verification fail.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

SIGNATURE = "model.sig"  # the default name in a bundle, which is also the one of model-signing
ENGINES = "engines"


def default_signature(bundle: Path) -> Path:
    """Where the signature of a bundle is by default: inside the bundle."""
    return bundle / SIGNATURE


def sign_with_key(bundle: Path, signature: Path, private_key: Path, password: str | None) -> None:
    """Sign a bundle with an elliptic-curve private key (PEM)."""
    from model_signing import signing

    _check_sizes(bundle)
    with _errors(f"{bundle} was not signed"):
        secret: Any = None if password is None else password.encode()  # declared as str, used as bytes
        config = signing.Config().use_elliptic_key_signer(private_key=private_key, password=secret)
        _sign(config, bundle, signature)


def sign_with_sigstore(bundle: Path, signature: Path) -> None:
    """Sign a bundle with Sigstore: with the identity of a CI job, or one that is confirmed in a browser."""
    from model_signing import signing

    _check_sizes(bundle)
    with _errors(f"{bundle} was not signed"):
        config = signing.Config().use_sigstore_signer(use_ambient_credentials=True)
        _sign(config, bundle, signature)


def _sign(config: Any, bundle: Path, signature: Path) -> None:
    """Write a signature. model-signing writes into an older one, which a full disk would then destroy."""
    from adar_runtime.files import write_file

    with TemporaryDirectory() as folder:
        new = Path(folder) / SIGNATURE
        config.set_hashing_config(_hashing()).sign(bundle, new)
        write_file(signature, new.read_bytes())


def verify_with_key(bundle: Path, signature: Path, public_key: Path) -> None:
    """Check that the owner of this key signed the bundle as it is now."""
    from model_signing import verifying

    _check_size(signature)
    _check_sizes(bundle)
    with _errors(f"{bundle} is not what the owner of {public_key} signed"):
        config = verifying.Config().use_elliptic_key_verifier(public_key=public_key)
        config.set_hashing_config(_hashing()).verify(bundle, signature)


def verify_with_sigstore(bundle: Path, signature: Path, identity: str, issuer: str) -> None:
    """Check that this identity, confirmed by this issuer, signed the bundle as it is now."""
    from model_signing import verifying

    _check_size(signature)
    _check_sizes(bundle)
    with _errors(f"{bundle} is not what {identity} signed"):
        config = verifying.Config().use_sigstore_verifier(identity=identity, oidc_issuer=issuer)
        config.set_hashing_config(_hashing()).verify(bundle, signature)


def _check_size(signature: Path) -> None:
    """Refuse a large file: model-signing reads all of it, and a signature has some thousand bytes."""
    from adar_runtime.bundle.pack import MAX_OTHER_BYTES
    from adar_runtime.errors import BundleError

    size = signature.stat().st_size
    if size > MAX_OTHER_BYTES:
        raise BundleError(f"{signature} has {size:,} bytes, but at most {MAX_OTHER_BYTES:,} are allowed")


def _check_sizes(bundle: Path) -> None:
    """Refuse a folder larger than any bundle: model-signing reads all files, also unsigned ones."""
    from adar_runtime.bundle.pack import MAX_BYTES
    from adar_runtime.errors import BundleError
    from adar_runtime.files import check_holes

    size, files = 0, list[Path]()
    for path in bundle.rglob("*"):
        if path.is_file() and not path.is_relative_to(bundle / ENGINES):
            files.append(path)
            size += path.stat().st_size
        if size > MAX_BYTES:
            raise BundleError(
                f"the files in {bundle} have more than {MAX_BYTES:,} bytes: move other files away"
            )
    try:
        check_holes(files)
    except ValueError as error:
        raise BundleError(f"{bundle}: {error}: move other files away") from error


def _hashing() -> Any:
    from model_signing import hashing

    # By default model-signing also ignores the files of git, which a signature of a bundle should cover.
    return hashing.Config().set_ignored_paths(paths=[ENGINES, SIGNATURE], ignore_git_paths=False)


@contextmanager
def _errors(what: str) -> Iterator[None]:
    """Every exception of the package as one line: it raises many types, also for damaged files."""
    from adar_runtime.errors import BundleError, reason

    try:
        yield
    except Exception as error:
        raise BundleError(f"{what}: {reason(error)}") from error
