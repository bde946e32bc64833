"""What all endpoints of an ingress share."""

import time

from app.generation.request.prompt_encoder import PromptEncoder
from app.http.bodies.held_bytes import HeldBytes
from app.http.bodies.request_body import BodyReader
from app.http.bodies.trim import Trimmer
from app.http.flow.key_limiter import KeyLimiter
from app.protocol.api_settings import ApiSettings
from app.text.offload import Offload
from app.text.tokenizer import Tokenizer
from engine.runtime.protocol import EngineClient


class Services:
    """The model's settings and texts, the way to the engine, and the ingress's limits.

    Attributes:
        client: reaches the engine; whoever made it owns its life.
        tokenizer: of the model.
        settings: of the HTTP layer.
        offload: for work that grows with a request.
        encoder: makes token ids of prompts.
        reader: reads bodies.
        trimmer: hears of large bodies and answers that are over.
        key_limiter: counts what the requests of each API key take.
        held: counts the bytes of bodies that are no token ids yet.
    """

    def __init__(self, client: EngineClient, tokenizer: Tokenizer, settings: ApiSettings) -> None:
        self.client = client
        self.tokenizer = tokenizer
        self.settings = settings
        self.offload = Offload()
        self.encoder = PromptEncoder(tokenizer, settings, self.offload)
        self.reader = BodyReader(settings, self.offload)
        self.trimmer = Trimmer()
        self.key_limiter = KeyLimiter(settings, time.monotonic)
        self.held = HeldBytes(settings.max_held_bytes, settings.max_client_held_bytes, self.trimmer)
