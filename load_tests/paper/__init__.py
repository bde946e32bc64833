"""The paper's evaluation, repeated: in virtual time, or with the engine on this machine."""
