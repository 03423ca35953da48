"""What the hub's library raises, in words for a person: gated, unknown, offline, a full disk."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from engine.errors import ModelNotFound, ResourceError, TrifoldError


@contextlib.contextmanager
def words_for(name: str) -> Iterator[None]:
    """Turn what the hub's library raises into a cause and a remedy."""
    try:
        yield
    except TrifoldError:
        raise
    except OSError as error:
        raise _disk_trouble(error) or _hub_trouble(name, error) from error
    except Exception as error:  # a library of many errors; none may reach a person as it is
        raise _hub_trouble(name, error) from error


def _disk_trouble(error: OSError) -> ResourceError | None:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ResourceError("The disk is full.", "Free some space and go on: what has arrived is kept.")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ResourceError(f"{error.filename} cannot be written ({error.strerror}).", "Set TRIFOLD_DATA elsewhere.")
    return None


def _hub_trouble(name: str, error: Exception) -> ModelNotFound:
    from huggingface_hub import errors as hub

    if isinstance(error, hub.GatedRepoError):
        return _gated(name)
    if isinstance(error, hub.RepositoryNotFoundError):
        return ModelNotFound(
            f"There is no model {name} on the hub, or it is private.",
            "Check the name. For a private one run `hf auth login` in a terminal first.",
        )
    if isinstance(error, hub.HFValidationError):
        return ModelNotFound(f"{name} is no name of a model on the hub.", "Names look like owner/name.")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return ModelNotFound(f"The hub answered with error {status} for {name}.", "Try again in a while.")
    if isinstance(error, OSError | hub.OfflineModeIsEnabled) or type(error).__module__.startswith("httpx"):
        return ModelNotFound(
            "The hub cannot be reached: this machine seems to be offline.",
            "Connect it and try again; what has arrived is kept. Models that are here work without.",
        )
    return ModelNotFound(f"{name} could not be fetched: {type(error).__name__}.", "Try again in a while.")


def _gated(name: str) -> ModelNotFound:
    from huggingface_hub import constants, get_token

    page = f"{constants.ENDPOINT}/{name}"
    if get_token():
        remedy = f"Open {page} with the account of your key, accept its licence, and try again once it is granted."
    else:
        remedy = (
            f"Open {page}, sign in, and accept its licence. Then run `hf auth login` in a terminal, or set HF_TOKEN "
            "to a key of your account, and try again."
        )
    return ModelNotFound(f"{name} is given out only to people who have accepted its licence.", remedy)
