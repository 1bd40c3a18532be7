# Managed by Ansible collection gpufabric.rdma; changes here are overwritten.
# Exits with 0 if this node's API server is ready, including etcd: k3s answers only a client that the cluster knows.
import http.client
import ssl
import sys

TLS = "/var/lib/rancher/k3s/server/tls"

try:
    context = ssl.create_default_context(cafile=f"{TLS}/server-ca.crt")
    context.load_cert_chain(f"{TLS}/client-admin.crt", f"{TLS}/client-admin.key")
    asked = http.client.HTTPSConnection("127.0.0.1", 6443, timeout=4, context=context)
    asked.request("GET", "/readyz")
    sys.exit(asked.getresponse().status != 200)
except (OSError, http.client.HTTPException):
    sys.exit(1)
