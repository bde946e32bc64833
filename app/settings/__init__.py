"""Options of the application, and the engine's configuration that follows from them."""
