"""What the SDK adds to the nouns of `penstock.wire`, which it takes and gives as they are."""

from __future__ import annotations

from penstock.client.errors import error_for
from penstock.wire import model
from penstock.wire.model import Instance


class StartResult(model.StartResult, frozen=True):
    """What became of one item of a batch start: the instance, or the error code and reason."""

    def unwrap(self) -> Instance:
        """Return the instance, or raise its error.

        Raises:
            ClientError: the item was refused; the class says why.
        """
        if self.instance is None:
            raise error_for(self.error, self.reason or "the engine gave no reason")
        return self.instance
