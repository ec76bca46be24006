"""A program after the second half of docs/jsonl.md. It does the words of whatever text it is told, in order."""

import json
import os
import sys
import time

asked = 0
quiet = False


def say(**line):
    print(json.dumps(line), flush=True)


def note(text):
    with open("heard", "a") as heard:
        heard.write(text + "\n")


def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)


def act(text):
    global asked, quiet
    for word in text.split():
        if word == "ask":
            asked += 1
            choices = [{"id": "allow", "label": "Yes"}, {"id": "deny", "label": "No"}]
            say(type="question", id=f"p{asked}", about="permission", text="May I?", tool="rm", choices=choices)
        elif word == "ask-text":
            asked += 1
            say(type="question", id=f"p{asked}", text="What is your name?")
        elif word == "withdraw":
            say(type="question-withdrawn", id=f"p{asked}")
        elif word == "done":
            say(type="verdict", result="success")
        elif word == "quiet":
            quiet = True
        elif word == "refuse":
            say(type="undeliverable", **{"request-id": "refused", "why": "not now"})
        elif word == "deaf":
            os.close(0)
            note("deaf")
        elif word == "wait":
            wait_for("go")
        elif word == "stubborn":
            wait_for("never")
        elif word == "exit":
            sys.exit(0)


note("start")
while line := os.read(0, 1):
    while not line.endswith(b"\n"):
        line += os.read(0, 1)
    told = json.loads(line)
    kind, text = told.pop("type"), told.get("text", "")
    note(f"{kind} {told.get('request-id', told.get('question', ''))} {told.get('choice', '')} {text}".strip())
    if kind in ("steer", "follow-up") and not quiet and text != "refuse":
        say(type="seen", **{"request-id": told["request-id"]})
    if kind == "answer":
        say(type="result", text=told.get("choice") or told.get("text") or "expired")
    if kind == "interrupt":
        note("interrupted")
        say(type="verdict", result="failure", message="was interrupted")
    act(text)
note("end of file")
