"""Questions to a server of recordings."""

import http.client
import json
from dataclasses import dataclass

from roundelay_speech.transcription.serving.endpoint import ENDPOINT


@dataclass(frozen=True)
class Server:
    """A server on a free port."""

    port: int

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Send a request; return status, headers and body of the reply."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body or None, {k.replace("_", "-"): v for k, v in headers.items()})
            reply = connection.getresponse()
            return reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read()
        finally:
            connection.close()

    def post(self, file: bytes | None, **fields: str) -> tuple[int, dict[str, str], bytes]:
        """Send a recording as a form, with other fields as given; return status, headers and body of the reply."""
        boundary = "----a-boundary"
        parts = [f'Content-Disposition: form-data; name="{k}"\r\n\r\n{v}'.encode() for k, v in fields.items()]
        if file is not None:
            head = (
                b'Content-Disposition: form-data; name="file"; filename="talk.wav"\r\nContent-Type: audio/wav\r\n\r\n'
            )
            parts.append(head + file)
        body = b"".join(b"--" + boundary.encode() + b"\r\n" + part + b"\r\n" for part in parts)
        body += f"--{boundary}--\r\n".encode()
        return self.ask("POST", ENDPOINT, body, Content_Type=f'multipart/form-data; boundary="{boundary}"')


def message(reply: tuple[int, dict[str, str], bytes]) -> tuple[int, str]:
    """Return status and text of an error reply, after checking that it has the shape that clients know."""
    error = json.loads(reply[2])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return reply[0], error["message"]
