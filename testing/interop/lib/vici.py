"""Listings over a vici socket, of strongSwan and of Weir: `list(socket, "list-sas", "list-sa")`."""

import socket
import struct

REQUEST, RESPONSE, UNKNOWN, REGISTER, _, CONFIRM, _, EVENT = range(8)
SECTION_START, SECTION_END, KEY_VALUE, LIST_START, LIST_ITEM, LIST_END = range(1, 7)


def decode(message):
    """A message as nested dictionaries; values as text."""
    at = 0

    def take(width):
        nonlocal at
        length = int.from_bytes(message[at:at + width], "big")
        at += width + length
        return message[at - length:at].decode(errors="replace")

    stack, items = [{}], None
    while at < len(message):
        kind = message[at]
        at += 1
        if kind == SECTION_START:
            stack.append(stack[-1].setdefault(take(1), {}))
        elif kind == SECTION_END:
            stack.pop()
        elif kind == KEY_VALUE:
            key = take(1)
            stack[-1][key] = take(2)
        elif kind == LIST_START:
            items = stack[-1].setdefault(take(1), [])
        elif kind == LIST_ITEM:
            items.append(take(2))
    return stack[0]


def encode(message):
    """Nested dictionaries, lists and texts as a message."""
    parts = b""
    for key, value in message.items():
        name = bytes([len(key)]) + key.encode()
        if isinstance(value, dict):
            parts += bytes([SECTION_START]) + name + encode(value) + bytes([SECTION_END])
        elif isinstance(value, list):
            items = (bytes([LIST_ITEM]) + struct.pack(">H", len(item)) + item.encode() for item in value)
            parts += bytes([LIST_START]) + name + b"".join(items) + bytes([LIST_END])
        else:
            parts += bytes([KEY_VALUE]) + name + struct.pack(">H", len(value)) + value.encode()
    return parts


def listing(path, command, event, patience_s=10, message=None):
    """Every `event` that comes while `command` runs with `message`, and the reply."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(patience_s)
        connection.connect(path)
        stream = connection.makefile("rb")

        def send(kind, name, body=b""):
            packet = bytes([kind, len(name)]) + name.encode() + body
            connection.sendall(struct.pack(">I", len(packet)) + packet)

        def receive():
            head = stream.read(4)
            if len(head) < 4:
                raise ConnectionError("the daemon closed its control socket")
            packet = stream.read(struct.unpack(">I", head)[0])
            if packet[0] == EVENT:
                return EVENT, packet[2 + packet[1]:]
            return packet[0], packet[1:]

        send(REGISTER, event)
        if receive()[0] != CONFIRM:
            raise ConnectionError(f"the daemon has no event {event}")
        send(REQUEST, command, encode(message or {}))
        events = []
        while True:
            kind, message = receive()
            if kind == EVENT:
                events.append(decode(message))
            elif kind == RESPONSE:
                return events, decode(message)
            else:
                raise ConnectionError(f"the daemon has no command {command}")
