package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// coreDNSImage is under the name of the released one; the lab makes it (lab/lab/containers.py).
const coreDNSImage = "rancher/mirrored-coredns-coredns:1.14.6"

// coreDNS is the one add-on of k3s that the double has: the same names, labels, address and Corefile, one replica. k3s keeps a
// record of each node in NodeHosts; here it is the server alone.
const coreDNS = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: coredns, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "system:coredns"}
rules:
- {apiGroups: [""], resources: [endpoints, services, pods, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "system:coredns"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:coredns"}
subjects: [{kind: ServiceAccount, name: coredns, namespace: kube-system}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system}
data:
  NodeHosts: "%{NODE_IP}% %{NODE_NAME}%\n"
  Corefile: |
    .:53 {
        errors
        health
        ready
        kubernetes %{CLUSTER_DOMAIN}% in-addr.arpa ip6.arpa {
            pods insecure
            fallthrough in-addr.arpa ip6.arpa
        }
        hosts /etc/coredns/NodeHosts {
            ttl 60
            reload 15s
            fallthrough
        }
        prometheus :9153
        cache 30
        loop
        reload
        loadbalance
        forward . /etc/resolv.conf
    }
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec:
  selector: {matchLabels: {k8s-app: kube-dns}}
  strategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 1}}
  template:
    metadata: {labels: {k8s-app: kube-dns}}
    spec:
      serviceAccountName: coredns
      priorityClassName: system-cluster-critical
      dnsPolicy: Default
      nodeSelector: {kubernetes.io/os: linux}
      tolerations:
      - {key: CriticalAddonsOnly, operator: Exists}
      - {key: node-role.kubernetes.io/control-plane, operator: Exists, effect: NoSchedule}
      containers:
      - name: coredns
        image: %{IMAGE}%
        imagePullPolicy: IfNotPresent
        args: ["-conf", /etc/coredns/Corefile]
        resources: {limits: {memory: 170Mi}, requests: {cpu: 100m, memory: 70Mi}}
        ports:
        - {name: dns, containerPort: 53, protocol: UDP}
        - {name: dns-tcp, containerPort: 53, protocol: TCP}
        securityContext:
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities: {add: [NET_BIND_SERVICE], drop: [ALL]}
        readinessProbe:
          httpGet: {path: /ready, port: 8181}
          timeoutSeconds: 5
        livenessProbe:
          httpGet: {path: /health, port: 8080}
          initialDelaySeconds: 60
          timeoutSeconds: 5
        volumeMounts: [{name: config, mountPath: /etc/coredns, readOnly: true}]
      volumes: [{name: config, configMap: {name: coredns}}]
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system, labels: {k8s-app: kube-dns, kubernetes.io/cluster-service: "true"}}
spec:
  clusterIP: %{CLUSTER_DNS}%
  selector: {k8s-app: kube-dns}
  ports:
  - {name: dns, port: 53, protocol: UDP}
  - {name: dns-tcp, port: 53, protocol: TCP}
`

// writeCoreDNS puts the add-on among the manifests, or takes it out where it is disabled.
func writeCoreDNS(dir string, config *Config) error {
	file := filepath.Join(dir, "coredns.yaml")
	if slices.Contains(config.Disable, "coredns") {
		if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
			return err
		}
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	text := strings.NewReplacer("%{IMAGE}%", coreDNSImage, "%{CLUSTER_DNS}%", config.ClusterDNS,
		"%{CLUSTER_DOMAIN}%", config.ClusterDomain, "%{NODE_IP}%", config.NodeIP, "%{NODE_NAME}%", config.NodeName).Replace(coreDNS)
	if seen, err := os.ReadFile(file); err == nil && string(seen) == text {
		return nil
	}
	return os.WriteFile(file, []byte(text), 0o600)
}
