"""A web server on the loopback interface that answers as it is told, well or badly."""

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MOST_REQUESTS = 400


class Server:
    """Serves ``files``; the n-th request gets the n-th answer of ``plan``, and the right one once the plan ends."""

    def __init__(self, files=None, plan=()):
        self.files, self.plan, self.asked, self.ending = dict(files or {}), list(plan), [], threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.rsplit("/", 1)[-1]
                outer.asked.append((name, self.headers.get("Range")))
                if len(outer.asked) > MOST_REQUESTS or name not in outer.files:
                    return self.send_error(404)
                answer = outer.plan.pop(0) if outer.plan else well
                return answer(self, outer.files[name], first_byte(self.headers.get("Range")), outer)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = False  # closing waits for them
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)

    @property
    def address(self):
        return f"http://127.0.0.1:{self.http.server_address[1]}/data"

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ending.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


def first_byte(asked):
    return int(re.fullmatch(r"bytes=(\d+)-", asked).group(1)) if asked else 0


def send(handler, status, body, **headers):
    handler.send_response(status)
    for key, value in headers.items():
        handler.send_header(key.replace("_", "-"), str(value))
    handler.end_headers()
    handler.wfile.write(body)


def whole_or_rest(handler, content, start, body):
    """Announce the truth, send ``body``."""
    if start >= len(content):
        return handler.send_error(416)
    if not start:
        return send(handler, 200, body, Content_Length=len(content))
    place = f"bytes {start}-{len(content) - 1}/{len(content)}"
    return send(handler, 206, body, Content_Length=len(content) - start, Content_Range=place)


def well(handler, content, start, _):
    whole_or_rest(handler, content, start, content[start:])


def unknown_total(handler, content, start, _):
    place = f"bytes {start}-{len(content) - 1}/*"
    send(handler, 206, content[start:], Content_Length=len(content) - start, Content_Range=place)


def without_length(handler, content, start, _):
    send(handler, 200, content)


def ignoring_range(handler, content, start, _):
    send(handler, 200, content, Content_Length=len(content))


def cut_after(count):
    return lambda handler, content, start, _: whole_or_rest(handler, content, start, content[start : start + count])


def garbage(handler, content, start, _):
    whole_or_rest(handler, content, start, bytes(len(content) - start))


def announcing(total):
    return lambda handler, content, start, _: send(handler, 200, content[:total], Content_Length=total)


def too_much(handler, content, start, _):
    send(handler, 200, content + b"and more")


def from_elsewhere(handler, content, start, _):
    place = f"bytes {start + 1}-{len(content) - 1}/{len(content)}"
    send(handler, 206, content[start + 1 :], Content_Length=len(content) - start - 1, Content_Range=place)


def without_place(handler, content, start, _):
    send(handler, 206, content[start:], Content_Length=len(content) - start)


def status(code):
    return lambda handler, content, start, _: handler.send_error(code)


def redirect(address):
    return lambda handler, content, start, _: send(handler, 302, b"", Location=address, Content_Length=0)


def hang_up(handler, content, start, _):
    handler.close_connection = True


def nonsense(handler, content, start, _):
    handler.wfile.write(b"this is \x1b[31mnot HTTP\r\n\r\n")


def stall(handler, content, start, server):
    whole_or_rest(handler, content, start, content[start : start + 1])
    server.ending.wait(30)
