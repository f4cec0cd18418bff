"""Ed25519 keys: sign a certificate, and check who signed it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dpmerge.errors import SignatureError


def new_keys(path: Path) -> Path:
    """Write a private key to `path` (readable by its owner alone) and the public one beside it; return the latter."""
    serialization, ed25519, _ = _cryptography()
    public_path = path.with_name(path.name + ".pub")
    for target in (path, public_path):
        if os.path.lexists(target):
            raise SignatureError(f"{target}: exists already; a key is never overwritten")
    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    # The public key first: a failure must not leave a private key without it.
    for target, content, mode in ((public_path, public, 0o644), (path, private, 0o600)):
        try:
            with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(content)
        except OSError as fault:
            raise SignatureError(f"{target}: cannot be written: {fault.strerror}") from None
    return public_path


class Signer:
    def __init__(self, path: Path) -> None:
        serialization, ed25519, exceptions = _cryptography()
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except (OSError, ValueError, TypeError, exceptions.UnsupportedAlgorithm, exceptions.InternalError) as fault:
            raise SignatureError(f"{path}: no private key can be read here: {fault}") from None
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise SignatureError(f"{path}: not an Ed25519 key")
        self._key = key

    @property
    def public(self) -> str:
        return str(self._key.public_key().public_bytes_raw().hex())

    def sign(self, content: bytes) -> str:
        return str(self._key.sign(content).hex())


def trusted_key(path: Path) -> str:
    """The public key in a file, in hexadecimal digits."""
    serialization, ed25519, exceptions = _cryptography()
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (OSError, ValueError, exceptions.UnsupportedAlgorithm, exceptions.InternalError) as fault:
        raise SignatureError(f"{path}: no public key can be read here: {fault}") from None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise SignatureError(f"{path}: not an Ed25519 key")
    return str(key.public_bytes_raw().hex())


def signed_by(public: str, signature: str, content: bytes) -> bool:
    """Whether the holder of this public key signed the content."""
    _, ed25519, exceptions = _cryptography()
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(bytes.fromhex(signature), content)
    except (exceptions.InvalidSignature, ValueError):
        return False
    return True


def _cryptography() -> tuple[Any, Any, Any]:
    """Only here: it is slow to load."""
    from cryptography import exceptions
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    return serialization, ed25519, exceptions
