"""Who looks at the page."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Audience:
    """What somebody may see.

    Attributes:
        account: see `Terms`: the requests of that account, and what is not theirs without a name;
            None for an operator, who sees all.
    """

    account: bytes | None

    @property
    def is_operator(self) -> bool:
        """Whether all requests and the metrics are theirs to see."""
        return self.account is None

    def may_see(self, account: bytes | None) -> bool:
        """Whether a request is theirs to see; one whose account is not known is of nobody."""
        return self.is_operator or (account is not None and account == self.account)


OPERATOR = Audience(None)
