"""The engine beside other systems: the same requests, one system after the other."""
