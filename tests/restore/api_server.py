"""A double of an API server: /readyz over TLS, for clients with a certificate of the cluster's CA only."""

import http.server
import ssl
import sys

TLS = "/var/lib/rancher/k3s/server/tls"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = b"ok"
        self.send_response(200 if self.path == "/readyz" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words):
        pass


def main():
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=f"{TLS}/server-ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(f"{TLS}/serving.crt", f"{TLS}/serving.key")
    server = http.server.ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
