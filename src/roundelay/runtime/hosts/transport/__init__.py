"""Links between hosts: bytes, encryption, handshake, messages, heartbeats."""
