#!/usr/bin/env python3
"""Sends 100 requests just before the end of a window and 100 just after it, through nginx to three
replicas, and draws how many requests each algorithm allowed. Run in the repository; needs what
`cargo xtask up` needs. Fails if an algorithm allowed more than it may."""

import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

# Short enough to finish within two minutes, but a burst must finish in a sixtieth of a window.
WINDOW, LIMIT = 12, 100
# Best first, with the most requests that each algorithm can allow within any window. The burst is
# the limit. A leaky bucket accepts twice the limit and spreads the requests.
ALGORITHMS = {
    "sliding_window_log": LIMIT,
    "leaky_bucket": LIMIT + 1,
    "sliding_window_counter": 2 * LIMIT - 1,
    "token_bucket": 2 * LIMIT,
    "fixed_window_counter": 2 * LIMIT,
}
THEMES = {
    "light": dict(text="#1f2328", muted="#59636e", grid="#d1d9e0", within="#2da44e", above="#cf222e"),
    "dark": dict(text="#f0f6fc", muted="#9198a1", grid="#3d444d", within="#3fb950", above="#f85149"),
}
WIDTH, HEIGHT, LEFT, STEP, PANEL, TOP, BOTTOM = 900, 270, 40, 175, 160, 80, 200


def attack(host, port):
    """Returns when each allowed response arrived, in seconds from the start of the window."""
    now = time.time()
    # Fixed windows start at multiples of their length by Redis' clock, which is this machine's.
    begin = time.monotonic() + WINDOW - now % WINDOW
    allowed, errors = [], []

    def send(moment):
        try:
            with socket.create_connection((host, port)) as stream:
                time.sleep(max(0, begin + moment - time.monotonic()))
                stream.sendall(b"GET /items HTTP/1.1\r\nHost: tollgate\r\nConnection: close\r\n\r\n")
                # A late request would arrive in the next window.
                assert time.monotonic() - begin < moment + 0.1, "sent too late; is the machine busy?"
                status = stream.recv(12)[-3:]
                at = time.monotonic() - begin
                assert status in (b"200", b"429"), f"unexpected status {status}"
                if status == b"200":
                    allowed.append(at)
        except Exception as error:
            errors.append(error)

    moments = [WINDOW * 59 / 60] * LIMIT + [WINDOW + 0.005] * LIMIT
    threads = [threading.Thread(target=send, args=[moment]) for moment in moments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        sys.exit(f"error: {errors[0]}")
    return sorted(allowed)


def measure(algorithm):
    flags = ["--algorithm", algorithm, "--limit", str(LIMIT), "--window", f"{WINDOW}s"]
    patient = ["--store-timeout", "1s", "--on-store-error", "closed"]
    command = ["cargo", "xtask", "up", "--port", "0", "--", *flags, *patient]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as replicas:
        try:
            balancer = next(line for line in iter(replicas.stdout.readline, "") if line.startswith("balancer "))
            host, port = balancer.split()[1].removeprefix("http://").split(":")
            return attack(host, int(port))
        finally:
            replicas.send_signal(signal.SIGINT)
            replicas.communicate()


def within(allowed, at):
    return sum(at - WINDOW < moment <= at for moment in allowed)


def y(number):
    return BOTTOM - number / (2 * LIMIT) * (BOTTOM - TOP)


def area(left, x, allowed, low, high):
    """The area under the number of allowed requests, between two numbers."""
    path, last = f"M{left} {y(low):.1f}", None
    for at in sorted({moment + delay for moment in allowed for delay in (0, WINDOW)}):
        height = f"{y(min(max(within(allowed, at), low), high)):.1f}"
        if at <= WINDOW * 9 / 4 and height != last:
            path += f"H{x(at):.1f}V{height}"
            last = height
    return path + f"H{left + PANEL}V{y(low):.1f}Z"


def draw(results, text, muted, grid, within, above):
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, '
        "-apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\" "
        f'font-size="12" fill="{text}" role="img">',
        f"<title>Requests allowed within {WINDOW} s by each algorithm, limit {LIMIT}</title>",
        f'<text x="0" y="16" font-size="15" font-weight="600">{2 * LIMIT} requests around the end of a '
        f"window, limit {LIMIT}</text>",
        f'<text x="0" y="36" fill="{muted}">Requests allowed in the last {WINDOW} s. Half of the requests '
        "arrive just before the boundary, half just after it.</text>",
    ]

    def label(x, y, color, words, anchor="end"):
        svg.append(f'<text x="{x}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{words}</text>')

    for number in (0, LIMIT, 2 * LIMIT):
        line = f'{muted}" stroke-dasharray="4 3' if number == LIMIT else grid
        svg.append(f'<path d="M{LEFT} {y(number):.1f}H{WIDTH}" stroke="{line}"/>')
        label(LEFT - 8, y(number) + 4, muted, number)
    label(LEFT - 8, y(LIMIT) - 9, muted, "limit")
    for index, (algorithm, (allowed, highest)) in enumerate(results.items()):
        left = LEFT + index * STEP

        def x(at):
            # A panel shows 0.25 windows before the boundary, and 1.25 windows after it.
            return left + (at / WINDOW - 0.75) * PANEL / 1.5

        svg.append(f'<text x="{left}" y="{TOP - 12}" font-weight="600">{algorithm.replace("_", " ")}</text>')
        svg.append(f'<path d="M{x(WINDOW):.1f} {TOP}V{BOTTOM}" stroke="{grid}"/>')
        for low, high, color in ((0, LIMIT, within), (LIMIT, 2 * LIMIT, above)):
            path = area(left, x, allowed, low, high)
            svg.append(f'<path d="{path}" fill="{color}" fill-opacity="0.75"/>')
        label(f"{x(WINDOW):.1f}", BOTTOM + 18, muted, "boundary", "middle")
        label(f"{x(2 * WINDOW):.1f}", BOTTOM + 18, muted, f"+{WINDOW} s", "middle")
        for words, number, below in (("this attack", highest, 44), ("worst case", ALGORITHMS[algorithm], 64)):
            # A steady refill during the attack adds one or two requests, as a user would expect.
            color = above if number > LIMIT * 1.05 else within
            span = f'<tspan font-weight="600" fill="{color}">{number}</tspan>'
            label(left, BOTTOM + below, muted, f"{words}: {span}", "start")
    return "\n".join([*svg, "</svg>", ""])


results = {}
for algorithm, worst in ALGORITHMS.items():
    allowed = measure(algorithm)
    highest = max((within(allowed, at) for at in allowed), default=0)
    print(f"{algorithm:<24} allowed {highest:>3} within {WINDOW} s")
    # A leaky bucket's responses may arrive a little closer together than they were sent.
    if highest > worst + 1:
        sys.exit(f"error: {algorithm} allowed {highest} requests, expected at most {worst}")
    results[algorithm] = (allowed, highest)
for theme, colors in THEMES.items():
    (Path(__file__).parent / f"boundary-{theme}.svg").write_text(draw(results, **colors))
