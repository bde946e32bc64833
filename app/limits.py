"""How large the parts of a request may be: every list, object and count that a body can fill.

A body within them costs milliseconds to parse and to refuse. Those that operators may want to
change are defaults of the options `limits.*`; the others belong to the API.
"""

MAX_BODY_BYTES = 4 << 20
"""Bytes of a body; option `limits.max_body_mib`."""

MAX_BODY_VALUES = 1 << 18
"""Keys and values in a body, inner ones too; option `limits.max_body_values`.

A list of as many token ids takes 3 ms to parse (AMD EPYC).
"""

MAX_CONTAINERS = 1 << 16
"""Lists and objects among them.

As many empty lists take 10 ms to parse, during which the event loop stands; 262,144 took 60.
"""

MAX_ANSWER_ITEMS = 1 << 18
"""Token ids, log-probabilities and repeated prompt tokens in an answer; `limits.max_answer_items`.

As many take about 20 MB as JSON and two seconds to write.
"""

MAX_HELD_BYTES = 256 << 20
"""Bytes of bodies that wait in an ingress to become token ids; option `limits.max_held_mib`."""

MAX_CLIENT_HELD_BYTES = 64 << 20
"""The same for one API key, where keys are needed; option `limits.max_client_held_mib`."""

QUEUE_S = 30.0
"""Seconds that a request may wait for its place in the batch; option `deadlines.queue_s`."""

UPLOAD_S = 30.0
"""Seconds that a body may take to come; option `deadlines.upload_s`."""

FIRST_TOKEN_S = 180.0
"""Seconds until the first output, longer than a request waits for an engine."""

GAP_S = 180.0
"""Seconds between two outputs, longer than an engine takes to come back."""

WHOLE_S = 600.0
"""Seconds of a whole answer; option `deadlines.whole_s`."""

WRITE_S = 30.0
"""Seconds that a client may read nothing of what is sent; option `deadlines.write_s`."""

HEAD_S = 10.0
"""Seconds that the head of a request may take to come."""

MAX_HEADERS = 100
"""Headers of a request."""

MAX_HEADER_BYTES = 8 << 10
"""Bytes of one header."""

MAX_HEAD_BYTES = 32 << 10
"""Bytes of all headers."""

MAX_URL_BYTES = 8 << 10
"""Bytes of a URL."""

SENT_BYTES = 64 << 10
"""Bytes that the system takes of an answer before its client reads; Linux takes twice as many.

It sends so many for each round trip, which is a megabyte a second at 100 ms.
"""

MAX_DEPTH = 32
"""Lists and objects inside each other."""

MAX_FIELDS = 64
"""Fields of a body, and fields of an object inside it that the API does not know."""

MAX_MESSAGES = 2048
"""Messages of a conversation."""

MAX_PARTS = 1024
"""Parts of a message's content."""

MAX_CACHE_BREAKPOINTS = 4
"""Parts of a conversation up to which it is to stay cached."""

MAX_PROMPTS = 128
"""Prompts of a request."""

MAX_EMBEDDED = 2048
"""Texts of a request for vectors."""

MAX_EMBEDDED_NUMBERS = 1 << 21
"""Numbers of all vectors of an answer, which as JSON take about 20 bytes each."""

MAX_CHOICES = 128
"""Choices, and sequences, for each prompt."""

MAX_SEQUENCES = 256
"""Sequences of all prompts of a request."""

MAX_IDS = 1 << 20
"""Token ids of one prompt; the model's context is most often less."""

MAX_SESSION_ID_LEN = 128
"""Characters of the id of a conversation."""

MAX_STOPS = 4
"""Stop strings."""

MAX_STOP_LEN = 256
"""Characters of a stop string."""

MAX_STOP_TOKEN_IDS = 128
"""Token ids to stop at."""

MAX_ALLOWED_TOKEN_IDS = 1024
"""Token ids of which one must be chosen."""

MAX_BIASES = 1024
"""Token ids with a bias."""

MAX_BAD_WORDS = 128
"""Words that are never generated."""

MAX_BAD_WORD_LEN = 256
"""Characters of such a word."""

MAX_BAD_SEQUENCES = 128
"""Token sequences that bad words come to."""

MAX_BAD_TOKENS = 1024
"""Tokens of all these sequences."""

MAX_LOGPROBS = 5
"""Alternatives for each token of a completion."""

MAX_TOP_LOGPROBS = 20
"""Alternatives for each token of a chat's answer, and of any prompt."""

MAX_LOGPROB_TOKEN_IDS = 128
"""Token ids that are listed as alternatives in the place of the most likely ones."""

MAX_DOCUMENTS = 128
"""Documents beside a conversation, which have no effect."""

MAX_METADATA = 16
"""Pairs of a document or of metadata, which have no effect."""

MAX_OBJECT_KEYS = 1024
"""Keys of an object that the client makes up: a schema, the arguments of a call."""

MAX_TOOLS = 128
"""Tools that a chat offers."""

MAX_TOOL_CALLS = 128
"""Calls of one message."""

MAX_GRAMMAR_LEN = 1 << 16
"""Characters of a schema, a regular expression, a list of choices or a grammar.

One of as many takes 10 to 200 ms to check, and travels with each of its sequences.
"""

MAX_GRAMMAR_S = 2.0
"""Seconds after which such a one is refused."""

MAX_GRAMMAR_CHOICES = 1024
"""Texts of which an answer must be one."""

MAX_PATTERN_LEN = 128
"""Tokens of a pattern whose repetitions end a choice; each token is compared with so many."""
