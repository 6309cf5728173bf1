"""Signatures of bundles with an own key: sign, verify, change a file, verify fails."""

import json
import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("model_signing", reason="needs the extra sign")
pytest.importorskip("OpenSSL", reason="needs the extra sign")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec


def write_keys(folder: Path, name: str, password: bytes | None = None) -> None:
    """NAME.pem and NAME-public.pem."""
    key = ec.generate_private_key(ec.SECP256R1())
    pem, protection = serialization.Encoding.PEM, serialization.NoEncryption()
    if password:
        protection = serialization.BestAvailableEncryption(password)
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, protection)
    (folder / f"{name}.pem").write_bytes(private)
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / f"{name}-public.pem").write_bytes(public)


@pytest.fixture
def signed(adar, bundle_folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(bundle_folder, tmp_path / "bundle")
    write_keys(tmp_path, "mine")
    write_keys(tmp_path, "other")
    code, out, err = adar("sign", "bundle", "--private-key", "mine.pem", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"bundle": "bundle", "signature": "bundle/model.sig"}
    return tmp_path / "bundle"


VERIFY = ("verify", "bundle", "--public-key", "mine-public.pem")


@pytest.mark.usefixtures("signed")
def test_a_signed_bundle_is_verified_and_still_runs(adar) -> None:
    code, out, err = adar(*VERIFY)
    assert (code, err) == (0, "")
    assert "verified" in out
    assert adar("inspect", "bundle")[0] == 0


def change(bundle: Path) -> None:
    with (bundle / "cell.onnx").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")


def resign_manifest(bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest.pop("checksum", None)
    (bundle / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "tamper",
    [
        change,
        resign_manifest,
        lambda bundle: (bundle / "head.onnx").unlink(),
        lambda bundle: (bundle / "extra.py").write_text(""),
        lambda bundle: (bundle / ".gitignore").write_text(""),
        lambda bundle: (bundle / "model.sig").write_text("{}"),
        lambda bundle: (bundle / "model.sig").write_bytes(b"\xff" * 100),
    ],
    ids=["changed", "manifest", "removed", "added", "git", "empty-signature", "damaged-signature"],
)
def test_a_changed_bundle_is_refused(adar, signed: Path, tamper) -> None:
    tamper(signed)
    code, out, err = adar(*VERIFY)
    assert (code, out) == (2, "")
    assert err.startswith("error: bundle is not what the owner of mine-public.pem signed")
    assert len(err.splitlines()) == 1


def test_another_key_and_a_missing_signature_are_refused(adar, signed: Path) -> None:
    code, _, err = adar("verify", "bundle", "--public-key", "other-public.pem")
    assert (code, len(err.splitlines())) == (2, 1)
    (signed / "model.sig").unlink()
    assert "bundle/model.sig not found: the bundle is not signed" in adar(*VERIFY)[2]


def test_engines_are_not_covered(adar, signed: Path) -> None:
    (signed / "engines").mkdir()
    (signed / "engines" / "cell.engine").write_bytes(b"built here")
    code, out, _ = adar(*VERIFY)
    assert code == 0
    assert "engines in the bundle are not covered" in out


@pytest.mark.usefixtures("signed")
def test_a_password_and_another_place_for_the_signature(
    adar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_keys(tmp_path, "locked", b"secret")
    words = ("sign", "bundle", "--private-key", "locked.pem", "--signature", "elsewhere.sig")
    assert adar(*words)[0] == 2
    monkeypatch.setenv("ADAR_SIGN_PASSWORD", "secret")
    assert adar(*words)[0] == 0
    elsewhere = ("--public-key", "locked-public.pem", "--signature", "elsewhere.sig")
    assert adar("verify", "bundle", *elsewhere)[0] == 0


def test_a_large_signature_is_not_read(adar, signed: Path) -> None:
    os.truncate(signed / "model.sig", 2**33)  # sparse: it takes no space on the disk
    code, _, err = adar(*VERIFY)
    assert (code, "but at most 16,777,216 are allowed" in err) == (2, True)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("mine.pem", "is the input graph or another input"),
        ("bundle/manifest.json", "inside the bundle is called model.sig"),
        ("bundle/cell.onnx", "inside the bundle is called model.sig"),
    ],
)
def test_a_signature_replaces_no_input(adar, signed: Path, target: str, message: str) -> None:
    before = (signed.parent / target).read_bytes()
    code, _, err = adar("sign", "bundle", "--private-key", "mine.pem", "--signature", target)
    assert (code, message in err) == (2, True), err
    assert (signed.parent / target).read_bytes() == before


def test_a_large_file_beside_a_signed_bundle_is_not_read(adar, signed: Path) -> None:
    with (signed / "more.bin").open("wb") as file:
        file.truncate(2**43)  # sparse: it takes no space on the disk
    code, _, err = adar(*VERIFY)
    assert (code, "move other files away" in err) == (2, True)


@pytest.mark.usefixtures("signed")
def test_the_signer_has_to_be_named(adar) -> None:
    assert "choose how to sign" in adar("sign", "bundle")[2]
    assert "choose how to sign" in adar("sign", "bundle", "--private-key", "mine.pem", "--sigstore")[2]
    assert "name the signer" in adar("verify", "bundle")[2]
    assert "name the signer" in adar("verify", "bundle", "--identity", "me@example.org")[2]
    assert "name the signer" in adar(*VERIFY, "--identity", "me@example.org", "--issuer", "https://x")[2]


def test_a_signature_that_cannot_be_written_leaves_the_old_one(
    adar, signed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = (signed / "model.sig").read_bytes()

    def full(path: Path, text: str, **_: object) -> int:
        path.write_bytes(text[:100].encode())
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        code, _, err = adar("sign", "bundle", "--private-key", "other.pem")
    assert (code, "No space left on device" in err) == (2, True)
    assert (signed / "model.sig").read_bytes() == old
    assert adar(*VERIFY)[0] == 0


def test_a_file_that_is_almost_only_a_hole_is_not_hashed(adar, signed: Path) -> None:
    with (signed / "extra").open("wb") as file:
        file.truncate(2**30)
    for words in (VERIFY, ("sign", "bundle", "--private-key", "mine.pem")):
        code, _, err = adar(*words)
        assert (code, "of which the disk has only" in err) == (2, True)
