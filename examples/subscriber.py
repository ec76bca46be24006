#!/usr/bin/env python3
"""Submits a session and prints its texts, each once and in order, whatever dies in between.

    subscriber.py PROFILE [ARGUMENT ...]

Needs dbus-fast (pip install dbus-fast). Transport: the session bus, or what DBUS_SESSION_BUS_ADDRESS names, since a
bus starts the service and tells when it is back. The private socket (unix:path=...) answers as a bus does.
"""
import asyncio, sys, uuid
from dbus_fast import AuthError, Message, MessageType, Variant
from dbus_fast.aio import MessageBus

NAME, PATH, BUS = "org.airouter.Sessions1", "/org/airouter/Sessions1", "org.freedesktop.DBus"
OWNERS = f"type='signal',sender='{BUS}',member='NameOwnerChanged',arg0='{NAME}'"
AWAY = ("ServiceUnknown", "NameHasNoOwner", "NoReply", "Disconnected", "Stopping")  # it comes back

async def call(bus, member, signature, *body, to=NAME, path=PATH):
    message = Message(to, path, to, member, signature=signature, body=list(body))
    reply = await bus.call(message) if bus.connected else None
    if reply is None or (reply.error_name or "").endswith(AWAY):
        raise ConnectionError("the service is away")
    if reply.error_name: sys.exit(reply.body[0])  # a refusal says what was wrong and what to do
    return reply

async def listen(bus, run_id, submission, place):
    """Prints what comes after the place, and moves it, until the connection is gone."""
    signals, owner = asyncio.Queue(), None
    gone = asyncio.gather(bus.wait_for_disconnect(), return_exceptions=True)
    gone.add_done_callback(lambda _: signals.put_nowait(None))
    bus.add_message_handler(lambda m: signals.put_nowait(m) if m.message_type is MessageType.SIGNAL else None)
    await call(bus, "AddMatch", "s", OWNERS, to=BUS, path="/org/freedesktop/DBus")
    while bus.connected:
        try:
            if owner is None:  # the same submission again is the same session, never a second run
                owner = (await call(bus, "Submit", "a{sv}", submission)).sender
                await call(bus, "Subscribe", "ssa{sv}", run_id, place[0], {})
            if not (signal := await signals.get()): return
            back = signal.member == "NameOwnerChanged" and signal.body[2] not in ("", owner)
            if back or signal.member == "Lagged": owner = None  # subscribe again, from where we stopped
            if signal.member == "Activity" and place[0] in ("start", signal.body[1]):
                place[0] = signal.body[1]
                for after, _time, kind, details in signal.body[3]:
                    if "shortened" in details:  # too long for a signal; a page has all of it
                        details = (await call(bus, "Events", "ssu", run_id, place[0], 1)).body[2][0][3]
                    if kind == "response-completed": print(details["text"].value, flush=True)
                    if kind == "ended": sys.exit()
                    place[0] = after  # shown: never asked for again
        except ConnectionError: owner = await signals.get() and None  # something changed: look again

async def main(profile, *arguments):
    run_id, place, s = str(uuid.uuid4()), ["start"], lambda text: Variant("s", text)
    submission = {"version": s("airouter.sessions.v1"), "binding": Variant("a{sv}", {"run_id": s(run_id)}),
                  "profile": s(profile), "arguments": Variant("as", list(arguments))}
    while True:
        try: await listen(await MessageBus().connect(), run_id, submission, place)
        except (OSError, EOFError, AuthError): pass
        await asyncio.sleep(0.5)  # nobody tells when a bus is there again

asyncio.run(main(*sys.argv[1:]))
