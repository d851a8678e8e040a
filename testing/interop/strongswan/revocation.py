"""A server of revocation information: `revocation.py PKI ADDRESS PORT`. GET gives files of PKI/www, POST an OCSP response by
`openssl ocsp`. Prints a line when it listens, and one for each request."""

import http.server
import os
import socketserver
import subprocess
import sys
import tempfile

PKI, ADDRESS, PORT = sys.argv[1:]
WWW = os.path.join(PKI, "www")


class Handler(http.server.BaseHTTPRequestHandler):
    def give(self, kind, body):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        path = os.path.join(WWW, os.path.basename(self.path))
        if not os.path.isfile(path):
            return self.send_error(404)
        with open(path, "rb") as file:
            return self.give("application/pkix-crl", file.read())

    def do_POST(self):
        request = self.rfile.read(int(self.headers["Content-Length"]))
        with tempfile.TemporaryDirectory() as folder:
            asked, answer = os.path.join(folder, "asked"), os.path.join(folder, "answer")
            with open(asked, "wb") as file:
                file.write(request)
            ca = os.path.join(PKI, "ca-foreign.pem")
            subprocess.run(["openssl", "ocsp", "-index", os.path.join(WWW, "index.txt"), "-CA", ca, "-rsigner", ca,
                            "-rkey", os.path.join(PKI, "ca-foreign.key"), "-ndays", "1", "-reqin", asked, "-respout", answer],
                           check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            with open(answer, "rb") as file:
                self.give("application/ocsp-response", file.read())

    def log_message(self, format, *words):
        print(format % words, flush=True)


class Server(socketserver.ThreadingTCPServer):
    """Not HTTPServer, which queries name servers for its own name."""

    allow_reuse_address = daemon_threads = True


with Server((ADDRESS, int(PORT)), Handler) as server:
    print("listens", flush=True)
    server.serve_forever()
