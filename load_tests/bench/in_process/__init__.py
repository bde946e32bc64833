"""The engine and its scheduler in process, without Ray and HTTP."""
