"""The one call of Kubernetes' API that a coordinator makes: `PATCH .../statefulsets/NAME/scale`, by TLS and a pod's token, if a role allows it."""

import http.server
import json
import re
import secrets
import ssl
import subprocess
import threading

CALL = re.compile(r"/apis/(?P<group>[^/]+)/v1/namespaces/(?P<namespace>[^/]+)/(?P<what>[^/]+)/(?P<name>[^/]+)/(?P<part>[^/]+)$")


class ApiServer:
    def __init__(self, world, address, port=6443):
        self.world, self.address, self.port = world, address, port
        self.account = f"{world.folder}/account"
        self.heard = []
        self.token = secrets.token_hex(24)
        self.certify()
        server = http.server.ThreadingHTTPServer((address, port), self.handler())
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(f"{self.account}.crt", f"{self.account}.key")
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def certify(self):
        """An authority, what it has signed for this address, and the files that a pod has of it."""
        at = self.account

        def openssl(line):
            subprocess.run(["openssl", *line.split()], check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

        subprocess.run(["mkdir", "-p", at], check=True)
        key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
        openssl(f"req -x509 {key} -keyout {at}-ca.key -out {at}/ca.crt -subj /CN=authority -days 2")
        openssl(f"req {key} -keyout {at}.key -out {at}.csr -subj /CN=kubernetes")
        with open(f"{at}.ext", "w") as file:
            file.write(f"subjectAltName=IP:{self.address}\n")
        openssl(f"x509 -req -in {at}.csr -CA {at}/ca.crt -CAkey {at}-ca.key -CAcreateserial -out {at}.crt -days 2 -extfile {at}.ext")
        with open(f"{at}/token", "w") as file:
            file.write(self.token)

    def environment(self):
        return {"KUBERNETES_SERVICE_HOST": self.address, "KUBERNETES_SERVICE_PORT": str(self.port)}

    def is_allowed(self, verb, call):
        """By the roles that the account of the coordinator's pods is bound to."""
        objects = self.world.objects
        coordinator = objects[("StatefulSet", "mbal-coordinator")]["spec"]["template"]["spec"]["serviceAccountName"]
        for (kind, _), binding in objects.items():
            if kind != "RoleBinding" or coordinator not in [one["name"] for one in binding["subjects"]]:
                continue
            for rule in objects[("Role", binding["roleRef"]["name"])]["rules"]:
                asked = (call["group"], f"{call['what']}/{call['part']}", call["name"], verb)
                if all(word in rule[field] for word, field in zip(asked, ("apiGroups", "resources", "resourceNames", "verbs"), strict=True)):
                    return True
        return False

    def handler(self):
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_PATCH(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = self.scaled(body)
                api.heard.append((self.path, body, status))
                answer = json.dumps({"message": f"{status}"}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def scaled(self, body):
                if self.headers["Authorization"] != f"Bearer {api.token}":
                    return 401
                call = CALL.match(self.path)
                if not call or not api.is_allowed("patch", call):
                    return 403
                spec = api.world.object("StatefulSet", call["name"])["spec"]
                spec["replicas"] = body["spec"]["replicas"]
                api.world.say(f"{call['name']} is to have {spec['replicas']} pods")
                threading.Thread(target=api.world.scale, args=(call["name"],), daemon=True).start()
                return 200

            def log_message(self, *_):
                pass

        return Handler
