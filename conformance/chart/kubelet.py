"""Runs pods of rendered manifests as processes: what a node of Kubernetes and its controllers do with them, as far as a cache notices.

Each pod has a network namespace with an address of its own, which it does not get twice, and a read-only root with the program, its libraries and
the volumes that the manifest names: no shell. Names are looked up in a file of hosts that is written as pods come and go.
"""

import base64
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request

NET = "10.244"
# Endpoints and their readers hear of a pod that stops so much later.
ENDPOINTS_LAG = 1.0
# What the image sets (scripts/image).
OF_IMAGE = {"PATH": "/usr/bin", "MBAL_LISTEN": "*", "MBAL_MEMORY_LIMIT": "auto"}
# What Kubernetes mounts where a token is wanted.
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
LIBRARIES = ["/lib", "/lib64", "/usr/lib"]


def shell(*words):
    subprocess.run(words, check=True)


class World:
    """A bridge, the objects that were applied, and the pods."""

    def __init__(self, folder, program, log):
        self.folder, self.program, self.log = folder, program, log
        self.objects, self.pods, self.addresses = {}, {}, 0
        self.api = None
        self.lock = threading.RLock()
        self.began = time.monotonic()
        for name in ("dns", "claims", "pods", "logs"):
            os.makedirs(f"{folder}/{name}")
        shell("mount", "-t", "tmpfs", "tmpfs", f"{folder}/pods")
        shell("mount", "-t", "tmpfs", "tmpfs", "/run")
        os.makedirs("/run/netns")
        shell("ip", "link", "set", "lo", "up")
        shell("ip", "link", "add", "pods", "type", "bridge")
        shell("ip", "addr", "add", f"{NET}.255.254/16", "dev", "pods")
        shell("ip", "link", "set", "pods", "up")
        self.told()

    def say(self, text):
        self.log(f"{time.monotonic() - self.began:7.2f} {text}")

    def object(self, kind, name):
        return self.objects[(kind, name)]

    def apply(self, objects):
        """Remembers objects; controllers bring pods about (`scale`, `roll`)."""
        for one in objects:
            self.objects[(one["kind"], one["metadata"]["name"])] = one

    def certify(self, name):
        """A secret as cert-manager makes them, of a certificate that is its own authority."""
        at = f"{self.folder}/{name}"
        words = f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout {at}.key -out {at}.crt -subj /CN=mbal -days 2"
        subprocess.run(words.split(), check=True, stderr=subprocess.DEVNULL)
        data = {}
        for key, file in (("tls.crt", "crt"), ("tls.key", "key"), ("ca.crt", "crt")):
            with open(f"{at}.{file}", "rb") as found:
                data[key] = base64.b64encode(found.read()).decode()
        self.apply([{"kind": "Secret", "metadata": {"name": name}, "data": data}])

    def told(self):
        """Names and endpoints, as DNS and proxies know them now."""
        with self.lock:
            hosts, endpoints = ["127.0.0.1 localhost"], {}
            for (kind, name), service in self.objects.items():
                if kind != "Service":
                    continue
                spec, found = service["spec"], []
                is_headless = spec.get("clusterIP") == "None"
                for pod in self.pods.values():
                    if not spec["selector"].items() <= pod.labels.items():
                        continue
                    named = pod.set["spec"]["serviceName"] == name
                    if is_headless and named and (pod.is_ready or spec.get("publishNotReadyAddresses")):
                        domain = f"{name}.{service['metadata']['namespace']}.svc.cluster.local"
                        hosts.append(f"{pod.address} {pod.name}.{domain}")
                    if pod.is_ready and not pod.is_forgotten:
                        found.append(pod.address)
                endpoints[name] = found
                if not is_headless and found:
                    hosts.append(f"{found[0]} {name}")
            for name, text in (("hosts", "\n".join(hosts) + "\n"), ("endpoints", json.dumps(endpoints))):
                with open(f"{self.folder}/dns/{name}.new", "w") as file:
                    file.write(text)
                os.rename(f"{self.folder}/dns/{name}.new", f"{self.folder}/dns/{name}")

    def start(self, name, ordinal):
        pod = Pod(self, self.object("StatefulSet", name), ordinal)
        with self.lock:
            self.pods[pod.name] = pod
        self.told()
        pod.run()
        return pod

    def of(self, name):
        """The pods of a StatefulSet, by ordinal."""
        with self.lock:
            pods = [pod for pod in self.pods.values() if pod.set["metadata"]["name"] == name]
        return sorted(pods, key=lambda pod: pod.ordinal)

    def scale(self, name):
        """To as many pods as the object says: all at once, as podManagementPolicy Parallel has it."""
        spec = self.object("StatefulSet", name)["spec"]
        assert spec["podManagementPolicy"] == "Parallel"
        there, wanted = self.of(name), spec["replicas"]
        ends = [threading.Thread(target=pod.stop) for pod in there if pod.ordinal >= wanted]
        for thread in ends:
            thread.start()
        for ordinal in range(len(there), wanted):
            self.start(name, ordinal)
        for thread in ends:
            thread.join()

    def roll(self, name):
        """A rolling update: the last pod first, each one after the one before has been ready for minReadySeconds."""
        spec = self.object("StatefulSet", name)["spec"]
        assert spec.get("updateStrategy", {}).get("type", "RollingUpdate") == "RollingUpdate"
        for pod in reversed(self.of(name)):
            pod.stop()
            self.start(name, pod.ordinal).wait_ready()
            time.sleep(spec.get("minReadySeconds", 0))

    def wait_ready(self, name, within=60):
        for pod in self.of(name):
            pod.wait_ready(within)

    def end(self):
        for pod in list(self.pods.values()):
            pod.lose()


class Pod:
    def __init__(self, world, of_set, ordinal):
        self.world, self.set, self.ordinal = world, of_set, ordinal
        self.name = f"{of_set['metadata']['name']}-{ordinal}"
        template = of_set["spec"]["template"]
        self.labels, self.spec = template["metadata"]["labels"], template["spec"]
        (self.container,) = self.spec["containers"]
        self.is_ready = self.is_stopping = self.is_forgotten = self.is_gone = False
        self.process, self.restarts, self.exit_code = None, 0, None
        with world.lock:
            world.addresses += 1
            number = world.addresses
        self.address = f"{NET}.{number // 250}.{number % 250 + 1}"
        self.netns, self.root = f"pod{number}", f"{world.folder}/pods/{number}"
        self.changed = threading.Condition()

    def run(self):
        self.connect()
        self.furnish()
        self.begin()
        for work in (self.keep, self.probe_readiness, self.probe_liveness):
            threading.Thread(target=work, daemon=True).start()

    def connect(self):
        number = self.netns[3:]
        shell("ip", "netns", "add", self.netns)
        shell("ip", "link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", self.netns)
        shell("ip", "link", "set", f"v{number}", "master", "pods", "up")
        shell("ip", "-n", self.netns, "addr", "add", f"{self.address}/16", "dev", "eth0")
        shell("ip", "-n", self.netns, "link", "set", "eth0", "up")
        shell("ip", "-n", self.netns, "link", "set", "lo", "up")

    def furnish(self):
        """The root as the image has it, and the volumes."""
        root = self.root
        os.makedirs(f"{root}")
        shell("mount", "-t", "tmpfs", "tmpfs", root)
        for path in LIBRARIES:
            if os.path.isdir(path):
                os.makedirs(root + path)
                shell("mount", "--bind", "-o", "ro", path, root + path)
        for path in ("/usr/bin", "/etc", "/run/mbal", "/tmp", "/dns", "/proc", "/dev"):
            os.makedirs(root + path, exist_ok=True)
        for path in (f"{root}/usr/bin/mbal", f"{root}/dev/null", f"{root}/dev/urandom"):
            open(path, "w").close()
        shell("mount", "--bind", self.world.program, f"{root}/usr/bin/mbal")
        shell("mount", "--bind", "/dev/null", f"{root}/dev/null")
        shell("mount", "--bind", "/dev/urandom", f"{root}/dev/urandom")
        shell("mount", "--bind", f"{self.world.folder}/dns", f"{root}/dns")
        shell("mount", "-t", "proc", "proc", f"{root}/proc")
        os.symlink("/dns/hosts", f"{root}/etc/hosts")
        with open(f"{root}/etc/nsswitch.conf", "w") as file:
            file.write("hosts: files\n")
        with open(f"{root}/etc/passwd", "w") as file:
            file.write("root:x:0:0::/:/nowhere\nmbal:x:65532:65532::/:/nowhere\n")
        mounts = {mount["name"]: mount["mountPath"] for mount in self.container["volumeMounts"]}
        has_token = self.world.api and self.spec["automountServiceAccountToken"]
        for path in [*mounts.values(), *([ACCOUNT] if has_token else [])]:
            os.makedirs(root + path, exist_ok=True)
        assert self.container["securityContext"]["readOnlyRootFilesystem"]
        shell("mount", "-o", "remount,ro", root)
        if has_token:
            shell("mount", "--bind", "-o", "ro", self.world.api.account, root + ACCOUNT)
        claims = [claim["metadata"]["name"] for claim in self.set["spec"].get("volumeClaimTemplates") or []]
        for volume in (self.spec.get("volumes") or []) + [{"name": name, "claim": True} for name in claims]:
            if volume["name"] in mounts:
                self.mount(volume, root + mounts[volume["name"]])

    def mount(self, volume, path):
        group = self.spec["securityContext"]["fsGroup"]
        if "claim" in volume:
            kept = f"{self.world.folder}/claims/{volume['name']}-{self.name}"
            os.makedirs(kept, exist_ok=True)
            shell("mount", "--bind", kept, path)
        else:
            shell("mount", "-t", "tmpfs", "tmpfs", path)
        # Root's, with the pod's group.
        os.chown(path, 0, group)
        os.chmod(path, 0o2777 if "emptyDir" in volume else 0o2775)
        if "secret" in volume:
            of = volume["secret"]
            for key, value in self.world.object("Secret", of["secretName"])["data"].items():
                with open(f"{path}/{key}", "wb") as file:
                    file.write(base64.b64decode(value))
                os.chown(f"{path}/{key}", 0, group)
                os.chmod(f"{path}/{key}", of["defaultMode"])

    def environment(self):
        found = OF_IMAGE | (self.world.api.environment() if self.world.api else {})
        if self.spec.get("enableServiceLinks", True):
            for (kind, name), service in self.world.objects.items():
                if kind == "Service" and service["spec"].get("clusterIP") != "None":
                    port = service["spec"]["ports"][0]["port"]
                    found[f"{name.upper().replace('-', '_')}_PORT"] = f"tcp://{NET}.255.1:{port}"
        fields = {"metadata.name": self.name, "status.podIP": self.address, "metadata.namespace": self.set["metadata"]["namespace"]}
        for one in self.container.get("env") or []:
            if "value" in one:
                found[one["name"]] = self.filled(one["value"], found)
            elif "fieldRef" in one["valueFrom"]:
                found[one["name"]] = fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
            else:
                of = one["valueFrom"]["configMapKeyRef"]
                found[one["name"]] = self.world.object("ConfigMap", of["name"])["data"][of["key"]]
        return found

    @staticmethod
    def filled(text, variables):
        return re.sub(r"\$\((\w+)\)", lambda found: variables.get(found[1], found[0]), text)

    def words(self, *command):
        """A command inside of the pod, as its user."""
        user = self.spec["securityContext"]
        assert user["runAsNonRoot"] and user["runAsUser"] != 0
        return [
            shutil.which("ip"), "netns", "exec", self.netns, shutil.which("setpriv"), "--no-new-privs", shutil.which("chroot"),
            f"--userspec={user['runAsUser']}:{user['runAsGroup']}", f"--groups={user['fsGroup']}", self.root, *command,
        ]  # fmt: skip

    def runs(self, *words, **variables):
        """What `kubectl exec POD -- WORDS` prints, and whether it succeeds."""
        done = subprocess.run(self.words(*words), env=self.environment() | variables, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    def begin(self):
        environment = self.environment()
        args = [self.filled(word, environment) for word in self.container["args"]]
        log = open(f"{self.world.folder}/logs/{self.name}", "a")
        self.process = subprocess.Popen(self.words("/usr/bin/mbal", *args), env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.world.say(f"{self.name} at {self.address} starts")

    def keep(self):
        """A container that ends by itself is started again."""
        while True:
            self.exit_code = self.process.wait()
            with self.world.lock:
                if self.is_stopping or self.is_gone:
                    return
                self.is_ready = False
                self.restarts += 1
            self.world.told()
            self.world.say(f"{self.name} ended by {self.exit_code}")
            time.sleep(1)
            self.begin()

    def port(self, name):
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        return ports.get(name, name)

    def answers(self, probe):
        timeout = probe.get("timeoutSeconds", 1)
        try:
            if "tcpSocket" in probe:
                socket.create_connection((self.address, self.port(probe["tcpSocket"]["port"])), timeout).close()
                return True
            url = f"http://{self.address}:{self.port(probe['httpGet']['port'])}{probe['httpGet']['path']}"
            return urllib.request.urlopen(url, timeout=timeout).status < 400
        except OSError:
            return False

    def probes(self, probe):
        """Whether it succeeds, again and again, once it has done so often enough in a row."""
        time.sleep(probe.get("initialDelaySeconds", 0))
        right = wrong = 0
        while not (self.is_stopping or self.is_gone):
            if self.answers(probe):
                right, wrong = right + 1, 0
                if right >= probe.get("successThreshold", 1):
                    yield True
            else:
                right, wrong = 0, wrong + 1
                if wrong >= probe.get("failureThreshold", 3):
                    yield False
            time.sleep(probe.get("periodSeconds", 10))

    def probe_readiness(self):
        for is_ready in self.probes(self.container["readinessProbe"]):
            if is_ready == self.is_ready or self.is_stopping:
                continue
            with self.changed:
                self.is_ready = is_ready
                self.changed.notify_all()
            self.world.told()
            self.world.say(f"{self.name} is {'ready' if is_ready else 'not ready'}")

    def probe_liveness(self):
        for is_alive in self.probes(self.container["livenessProbe"]):
            if not is_alive and not self.is_stopping:
                self.world.say(f"{self.name} is not alive: killed")
                self.process.kill()
                time.sleep(5)

    def wait_ready(self, within=60):
        with self.changed:
            assert self.changed.wait_for(lambda: self.is_ready, within), f"{self.name} is not ready after {within} s"

    def stop(self):
        """As a kubelet stops a pod, while its endpoint is forgotten a moment later."""
        began = time.monotonic()
        self.is_stopping = True
        self.world.say(f"{self.name} is to stop")
        threading.Timer(ENDPOINTS_LAG, self.forget).start()
        hook = (self.container.get("lifecycle") or {}).get("preStop") or {}
        if "sleep" in hook:
            time.sleep(hook["sleep"]["seconds"])
        elif "exec" in hook:
            subprocess.run(self.words(*hook["exec"]["command"]), env=self.environment())
        self.process.send_signal(signal.SIGTERM)
        left = self.spec["terminationGracePeriodSeconds"] - (time.monotonic() - began)
        try:
            self.exit_code = self.process.wait(left)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.exit_code = self.process.wait()
            self.world.say(f"{self.name} KILLED after its grace period")
        self.world.say(f"{self.name} ended by {self.exit_code} after {time.monotonic() - began:.1f} s")
        self.vanish()

    def forget(self):
        self.is_forgotten = True
        self.world.told()

    def lose(self):
        """Its node is gone: no signal, no packet."""
        self.is_gone = True
        subprocess.run(["ip", "-n", self.netns, "link", "set", "eth0", "down"])
        if self.process:
            self.process.kill()
            self.process.wait()
        self.vanish()

    def vanish(self):
        self.is_gone = self.is_forgotten = True
        with self.world.lock:
            if self.world.pods.get(self.name) is self:
                del self.world.pods[self.name]
        self.world.told()
        subprocess.run(["ip", "netns", "del", self.netns])
        # Never removed file by file: there are folders of this machine in it.
        subprocess.run(["umount", "--recursive", self.root])
