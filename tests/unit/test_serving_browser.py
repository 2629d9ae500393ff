"""The page in a real browser, with a file in the place of a microphone: recorded, sent, recognised, shown."""

import json
import shutil
import subprocess
import threading
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

import pytest
import soundfile

from roundelay.transcription.serving.endpoint import Endpoint, Service
from roundelay.transcription.serving.http import Limits, Request, Response
from roundelay.transcription.transcribing import Options
from support.recogniser import ToneRecogniser, tones
from support.served import served

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
RATE = 16000
VISITOR = """
<script>
const seen = { errors: [] };
window.addEventListener("error", (event) => seen.errors.push(String(event.message)));
document.addEventListener("securitypolicyviolation", (event) => seen.errors.push("policy: " + event.blockedURI));
const until = async (done) => { while (!done()) await new Promise((again) => setTimeout(again, 50)); };
(async () => {
  document.getElementById("record").click();
  await until(() => document.getElementById("status").textContent.startsWith("Recording"));
  seen.pressed = document.getElementById("record").getAttribute("aria-pressed");
  await new Promise((again) => setTimeout(again, 6000));
  document.getElementById("record").click();
  await until(() => /words? in|No words|Not |No micro/.test(document.getElementById("status").textContent));
  seen.status = document.getElementById("status").textContent;
  seen.text = document.getElementById("text").textContent;
  seen.unsure = document.querySelectorAll("#text .unsure").length;
  seen.rows = [...document.querySelectorAll("#words tbody tr")].map((row) => [...row.cells].map((c) => c.textContent));
  await fetch("/seen", { method: "POST", body: JSON.stringify(seen) });
})();
</script>
"""
"""Clicks as a visitor does, and says what is seen."""


@pytest.mark.skipif(BROWSER is None, reason="no chromium is installed")
def test_a_visitor_records_and_reads(tmp_path: Path) -> None:
    assert BROWSER is not None
    words = ["LOW", "TOP", "HIGH"]
    soundfile.write(tmp_path / "microphone.wav", tones(words, RATE, 0.6), RATE, subtype="PCM_16")
    endpoint = Endpoint(Service(ToneRecogniser(RATE), "tones", Options()))
    seen: list[dict[str, object]] = []
    done = threading.Event()

    async def answer(request: Request) -> Response:
        if request.path == "/seen":
            seen.append(json.loads(request.body))
            done.set()
            return Response(HTTPStatus.OK, "text/plain", b"")
        reply = await endpoint.answer(request)
        return replace(reply, body=reply.body + VISITOR.encode()) if request.path == "/" else reply

    with served(answer, Limits()) as port:
        command = [
            BROWSER,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
        ]
        command += ["--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream", "--no-first-run"]
        command += [f"--use-file-for-fake-audio-capture={tmp_path / 'microphone.wav'}", f"http://localhost:{port}/"]
        with open(tmp_path / "said", "wb") as said:
            browser = subprocess.Popen(command, stdout=said, stderr=said)
            try:
                assert done.wait(100), (tmp_path / "said").read_text(errors="replace")[-2000:]
            finally:
                browser.terminate()
                browser.wait(30)
    (found,) = seen
    assert found["errors"] == []
    assert found["pressed"] == "true"
    text = str(found["text"]).split()
    # The file is played again and again, from a place of its own: some part of it is heard.
    assert len(text) >= 2
    assert set(text) <= set(words)
    assert found["unsure"] == len(text)
    rows = found["rows"]
    assert isinstance(rows, list)
    assert [row[0] for row in rows] == text
    assert all(row[3] == "50 %" for row in rows)
    assert str(found["status"]).startswith(f"{len(text)} words in ")
