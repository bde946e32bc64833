"""How often, how soon and for how long an ingress tries to place one request on an engine."""

import random

from engine.config import ResumeConfig
from engine.errors import EngineError, EngineUnavailable, RequestCrashes
from engine.types import FinishReason

# seconds before the second try; twice as many before each further one
FIRST_DELAY_S = 0.1
MAX_DELAY_S = 2.0
# gangs that may die with a request in the batch before it is on probation: for so many tokens more
# than it had, since the step that they died of computed one or two of them; then to its end
CRASHES_TO_PROBATION, PROBATION_TOKENS = 2, 16
TO_THE_END = 2**31 - 1
# losses while it waited that count as one: they say nothing of it, but must have an end
WAITS_PER_RESUME = 16


class Retries:
    """Counts what has happened to one request, and says what follows from it.

        no replica takes it           ->  it is tried again after a delay, for `resume_timeout_s`
        its engine is lost            ->  it is placed again, at most `max_resumes` times
        its gang died, and it was in the batch:
            the first time            ->  as above
            the second time           ->  as above, but on probation: first nothing runs beside it
            once more after that      ->  as above, with nothing beside it to its end
            while nothing was beside  ->  it is given up, since nothing else can have been the cause

    So what shared a batch with a request that ends gangs is delayed and never given up.

    Attributes:
        num_lost: engines that were lost after they had accepted it, those before which it waited
            included.
    """

    def __init__(self, config: ResumeConfig, request_id: int, now_s: float) -> None:
        """Begin the time of the first try.

        Args:
            request_id: for messages.
            now_s: seconds on the clock of the other methods.
        """
        self.num_lost = 0
        self._config = config
        self._request_id = request_id
        self._num_crashes = 0
        self._num_waits = 0
        self._next_delay_s = FIRST_DELAY_S
        self._deadline_s = now_s + config.resume_timeout_s

    @property
    def solo_tokens(self) -> int:
        """See `Progress.solo_tokens`."""
        if self._num_crashes < CRASHES_TO_PROBATION:
            return 0
        return PROBATION_TOKENS if self._num_crashes == CRASHES_TO_PROBATION else TO_THE_END

    def engine_lost(
        self, now_s: float, cause: EngineError, reason: FinishReason | None = None
    ) -> None:
        """Accept by returning that it is placed again.

        Args:
            reason: LOST, CRASHED or CRASHED_SOLO where the engine has said where the request was.

        Raises:
            RequestCrashes: if it has died of this request.
            EngineError: if engines were lost too often.
        """
        self.num_lost += 1
        self._num_waits += reason is FinishReason.LOST
        self._num_crashes += reason in (FinishReason.CRASHED, FinishReason.CRASHED_SOLO)
        if reason is FinishReason.CRASHED_SOLO:
            raise RequestCrashes(
                f"request {self._request_id} was in the batch of {self._num_crashes} engines when "
                "they died, in the end with nothing beside it; it is not tried again"
            ) from cause
        num_counted = self.num_lost - self._num_waits
        if num_counted + self._num_waits / WAITS_PER_RESUME > self._config.max_resumes:
            raise EngineError(
                f"request {self._request_id} has lost its engine {self.num_lost} times: {cause}"
            ) from cause
        self._next_delay_s = FIRST_DELAY_S
        self._deadline_s = now_s + self._config.resume_timeout_s

    def delay_s(self, now_s: float, cause: EngineError) -> float:
        """Seconds until the next try, since no replica took it.

        Raises:
            EngineUnavailable: if the time is over, and a replica said that it will be ready.
            EngineError: if the time is over.
        """
        left_s = self._deadline_s - now_s
        if left_s <= 0:
            message = (
                f"no engine replica has taken request {self._request_id} for "
                f"{self._config.resume_timeout_s:g} s: {cause}"
            )
            if isinstance(cause, EngineUnavailable):
                raise EngineUnavailable(message, retry_after_s=cause.retry_after_s) from cause
            raise EngineError(message) from cause
        delay_s = self._next_delay_s
        self._next_delay_s = min(2 * delay_s, MAX_DELAY_S)
        if isinstance(cause, EngineUnavailable):
            delay_s = max(delay_s, min(cause.retry_after_s, MAX_DELAY_S))
        # requests that were lost together do not come back together
        return min(delay_s * random.uniform(0.5, 1.0), left_s)
