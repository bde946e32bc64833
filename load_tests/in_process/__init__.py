"""Commands that measure the engine in process, without Ray and HTTP, most of them beside a peer."""
