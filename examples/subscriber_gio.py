#!/usr/bin/env python3
"""Submits a session and prints its texts, each once and in order, whatever dies in between.

    subscriber_gio.py PROFILE [ARGUMENT ...]

Needs GLib (Debian: python3-gi). Transport: the session bus, or the one that DBUS_SESSION_BUS_ADDRESS names: that the
service is there, now or again, is a callback of GLib's. The private socket (unix:path=...) answers as a bus does.
"""
import sys, uuid
from gi.repository import Gio, GLib

NAME, PATH = "org.airouter.Sessions1", "/org/airouter/Sessions1"
AWAY = ("ServiceUnknown", "NameHasNoOwner", "NoReply", "Disconnected", "Stopping")
CLIENT = Gio.DBusConnectionFlags.AUTHENTICATION_CLIENT | Gio.DBusConnectionFlags.MESSAGE_BUS_CONNECTION

class Subscriber:
    def __init__(self, profile, *arguments):
        self.run_id, self.cursor, s = str(uuid.uuid4()), "start", lambda text: GLib.Variant("s", text)
        self.submission = {"version": s("airouter.sessions.v1"), "profile": s(profile),
                           "binding": GLib.Variant("a{sv}", {"run_id": s(self.run_id)}),
                           "arguments": GLib.Variant("as", arguments)}

    def connect(self):
        again = lambda *_: GLib.timeout_add(500, self.connect) and None  # nobody tells when there is a bus again
        try:
            address = Gio.dbus_address_get_for_bus_sync(Gio.BusType.SESSION)
            self.bus = Gio.DBusConnection.new_for_address_sync(address, CLIENT, None, None)
        except GLib.Error: return again()
        self.bus.set_exit_on_close(False)
        self.bus.connect("closed", again)
        self.bus.signal_subscribe(NAME, NAME, "Activity", PATH, self.run_id, 0, self.on_activity)
        self.bus.signal_subscribe(NAME, NAME, "Lagged", PATH, self.run_id, 0, self.attach)
        Gio.bus_watch_name_on_connection(self.bus, NAME, Gio.BusNameWatcherFlags.AUTO_START, self.attach, None)

    def call(self, method, signature, *arguments):
        try:
            arguments = GLib.Variant(signature, arguments)
            return self.bus.call_sync(NAME, PATH, NAME, method, arguments, None, 0, -1, None).unpack()
        except GLib.Error as error:  # away: attach() is called when it is back; else it says what is wrong
            if not (Gio.DBusError.get_remote_error(error) or "Disconnected").endswith(AWAY): sys.exit(error.message)

    def attach(self, *_):
        # The same submission again is the same session, never a second run; the cursor is where we stopped.
        if self.call("Submit", "(a{sv})", self.submission):
            self.call("Subscribe", "(ssa{sv})", self.run_id, self.cursor, {})

    def on_activity(self, _bus, _sender, _path, _interface, _signal, parameters):
        _run_id, before, _next, events = parameters.unpack()
        self.cursor = before if self.cursor == "start" else self.cursor
        for after, _time, kind, details in events if before == self.cursor else ():
            if "shortened" in details:  # too long for a signal; a page has all of it
                if not (page := self.call("Events", "(ssu)", self.run_id, self.cursor, 1)): return
                details = page[2][0][3]
            if kind == "response-completed": print(details["text"], flush=True)
            if kind == "ended": sys.exit()
            self.cursor = after  # shown: never asked for again

Subscriber(*sys.argv[1:]).connect()
GLib.MainLoop().run()
