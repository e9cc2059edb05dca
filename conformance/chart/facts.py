"""What has to hold of everything that the chart renders: read from standard input as one JSON object a line (strict/)."""

import json
import sys
from collections import defaultdict

class Rendered:
    def __init__(self, lines):
        self.objects = [json.loads(line) for line in lines]
        self.of = defaultdict(dict)
        for one in self.objects:
            name = one["metadata"]["name"]
            assert name not in self.of[one["kind"]], f"two of {one['kind']} {name}"
            self.of[one["kind"]][name] = one

    def pods(self):
        """(what, kind, template's spec) of whatever runs."""
        for kind in ("StatefulSet", "Job"):
            for name, one in self.of[kind].items():
                yield name, kind, one["spec"]["template"]["spec"]
        for name, one in self.of["Pod"].items():
            yield name, "Pod", one["spec"]


def flag(args, name):
    found = [arg.split("=", 1)[1] for arg in args if arg.startswith(f"--{name}=")]
    assert len(found) <= 1, f"--{name} twice"
    return found[0] if found else None


def seconds(text):
    assert text.endswith("s"), text
    return int(text[:-1])


def harmless(rendered):
    """Nobody is root, nobody writes to a root, nobody has a token that he does not use."""
    for name, _, spec in rendered.pods():
        user = spec["securityContext"]
        assert user["runAsNonRoot"] and user["runAsUser"] > 0, name
        assert user["seccompProfile"]["type"] == "RuntimeDefault", name
        assert spec["enableServiceLinks"] is False, f"{name}: a service's variables would be settings"
        for container in spec["containers"]:
            of = container["securityContext"]
            assert of["readOnlyRootFilesystem"] and not of["allowPrivilegeEscalation"], name
            assert of["capabilities"] == {"drop": ["ALL"]}, name
            assert "command" not in container, f"{name}: the image's own program, without a shell"
        uses_api = any("--statefulset=" in arg for arg in spec["containers"][0]["args"])
        assert spec["automountServiceAccountToken"] == uses_api, name
        for volume in spec.get("volumes") or []:
            if "secret" in volume:
                assert volume["secret"]["defaultMode"] == 0o440, f"{name}: MBal refuses a secret that others can read"


def drains(rendered):
    """A server is given the time that it takes, and is asked for by the port that it opens when it serves."""
    (one,) = [one for one in rendered.of["StatefulSet"].values() if one["metadata"]["labels"]["app.kubernetes.io/component"] == "server"]
    spec = one["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    pre = ((container.get("lifecycle") or {}).get("preStop") or {}).get("sleep", {}).get("seconds", 0)
    drain = flag(container["args"], "drain-timeout")
    assert spec["terminationGracePeriodSeconds"] > pre + (seconds(drain) if drain else 0)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert container["readinessProbe"]["tcpSocket"]["port"] == "memcached"
    assert container["livenessProbe"]["httpGet"]["port"] == "metrics"
    assert ports["memcached"] == int(flag(container["args"], "port"))
    assert ports["metrics"] == int(flag(container["args"], "metrics").split(":")[1])
    assert one["spec"]["podManagementPolicy"] == "Parallel", "a first map waits for all servers"
    for kept in (one["spec"]["selector"]["matchLabels"], one["spec"]["template"]["metadata"]["labels"]):
        assert "helm.sh/chart" not in kept, "a newer chart would restart every server"
    headless = rendered.of["Service"][one["spec"]["serviceName"]]["spec"]
    assert headless["clusterIP"] == "None" and headless["publishNotReadyAddresses"], "servers link before they are ready"
    return container["args"], one


def a_cluster(rendered):
    args, server = drains(rendered)
    urls = flag(args, "coordinator")
    if not urls:
        assert flag(args, "drain-timeout") is None and len(rendered.of["StatefulSet"]) == 1
        return
    (coordinator,) = [one for one in rendered.of["StatefulSet"].values() if one is not server]
    name = coordinator["metadata"]["name"]
    (container,) = coordinator["spec"]["template"]["spec"]["containers"]
    assert len(urls.split(",")) == coordinator["spec"]["replicas"]
    assert all(url.startswith(f"http://{name}-{i}.{coordinator['spec']['serviceName']}.") for i, url in enumerate(urls.split(",")))
    assert flag(container["args"], "cluster-name") == flag(args, "cluster-name")
    servers = [one for one in container["env"] if one["name"] == "MBAL_SERVERS"]
    of = servers[0]["valueFrom"]["configMapKeyRef"]
    assert rendered.of["ConfigMap"][of["name"]]["data"][of["key"]] == str(server["spec"]["replicas"])
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    # The state outlives the pod.
    has_etcd = flag(container["args"], "etcd")
    assert bool(has_etcd) != bool(flag(container["args"], "state"))
    if coordinator["spec"]["replicas"] > 1:
        assert has_etcd
        assert name in rendered.of["PodDisruptionBudget"]
    roles = list(rendered.of["Role"].values())
    scaled = flag(container["args"], "statefulset")
    if scaled:
        assert scaled == f"{server['metadata']['namespace']}/{server['metadata']['name']}"
        rule = {"apiGroups": ["apps"], "resources": ["statefulsets/scale"], "resourceNames": [server["metadata"]["name"]], "verbs": ["patch"]}
        assert [role["rules"] for role in roles] == [[rule]], "nothing but that"
        (job,) = rendered.of["Job"].values()
        assert job["spec"]["template"]["spec"]["containers"][0]["args"][:2] == ["cluster", "autoscale"]
    else:
        assert not roles and not rendered.of["Job"]


def reached(rendered):
    """Policies open what is used: clients, links, the coordinator."""
    policies = rendered.of["NetworkPolicy"]
    if not policies:
        return
    opened = {}
    for name, one in policies.items():
        ports = [port for rule in one["spec"]["ingress"] for port in rule["ports"]]
        opened[name] = lambda port, ports=ports: any(one["port"] <= port <= one.get("endPort", one["port"]) for one in ports)
    for name, one in rendered.of["StatefulSet"].items():
        for container in one["spec"]["template"]["spec"]["containers"]:
            for port in container["ports"]:
                if port["name"] != "metrics":
                    assert opened[name](port["containerPort"]), f"{name}: {port} is closed"
            workers, threads = flag(container["args"], "worker-ports"), flag(container["args"], "threads")
            if workers and threads:
                assert opened[name](int(workers) + int(threads) - 1)


def secrets(rendered):
    """Long enough, and all that is mounted is there, but for what the values call somebody else's."""
    for one in rendered.of["Secret"].values():
        for key, value in one["data"].items():
            assert key == "passwords" or len(value) >= 60
    for name, _, spec in rendered.pods():
        for volume in spec.get("volumes") or []:
            mounted = (volume.get("secret") or {}).get("secretName")
            assert mounted in (None, "mine", "logins", "tls") or mounted in rendered.of["Secret"], f"{name}: no secret {mounted}"


def main():
    rendered = Rendered(sys.stdin)
    for check in (harmless, a_cluster, reached, secrets):
        check(rendered)


if __name__ == "__main__":
    main()
