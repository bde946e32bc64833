"""Models that are published in other forms, converted once into folders of the cache."""
