package main

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	api "k8s.io/client-go/tools/clientcmd/api"

	"testbed/k3s/flags"
)

// nodeAccess lets agents join with the token and nodes run kube-proxy under their own identity.
const nodeAccess = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: k3s-node-bootstrapper}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:node-bootstrapper"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:bootstrappers"}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: k3s-node-approver}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:certificates.k8s.io:certificatesigningrequests:nodeclient"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:bootstrappers"}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: k3s-node-proxier}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:node-proxier"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:nodes"}]
`

// unusedAdmission and unusedControllers are left out because nothing in the lab has an object for them: each costs emulated
// cycles at every start or request. What a scenario needs in spite of that it names itself, as on k3s:
// `kube-controller-manager-arg: ["controllers-=cronjob-controller"]`, `kube-apiserver-arg: ["disable-admission-plugins=…"]`.
const unusedAdmission = "MutatingAdmissionPolicy,MutatingAdmissionWebhook,ValidatingAdmissionWebhook," +
	"CertificateSubjectRestriction,DefaultIngressClass,DefaultStorageClass,PersistentVolumeClaimResize,StorageObjectInUseProtection"

var unusedControllers = []string{
	"-clusterrole-aggregation-controller", "-cronjob-controller", "-disruption-controller", "-endpointslice-mirroring-controller",
	"-ephemeral-volume-controller", "-horizontal-pod-autoscaler-controller", "-persistentvolume-attach-detach-controller",
	"-persistentvolume-binder-controller", "-persistentvolume-expander-controller", "-persistentvolume-protection-controller",
	"-persistentvolumeclaim-protection-controller", "-replicationcontroller-controller",
	"-resourcequota-controller", "-selinux-warning-controller",
	"-storage-version-migrator-controller", "-storageversion-garbage-collector-controller", "-ttl-after-finished-controller",
	"-validatingadmissionpolicy-status-controller", "-volumeattributesclass-protection-controller",
}

func runServer() error {
	config, err := readConfig()
	if err != nil {
		return err
	}
	if config.FlannelBackend != "none" {
		return errors.New("the double has no embedded Flannel: set flannel-backend: none")
	}
	if config.Server != "" {
		return errors.New("the double runs one server only")
	}
	dir := filepath.Join(config.DataDir, "server")
	tls, err := openAuthority(filepath.Join(dir, "tls"))
	if err != nil {
		return err
	}
	_, services, _ := net.ParseCIDR(config.ServiceCIDR)
	hosts := append([]string{"127.0.0.1", "localhost", config.NodeIP, config.NodeName, addressAt(services, 1),
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}, config.TLSSAN...)
	for _, leaf := range []struct {
		file, name    string
		organizations []string
		hosts         []string
	}{
		{"serving-kube-apiserver", "kube-apiserver", nil, hosts},
		{"client-admin", "system:admin", []string{"system:masters"}, nil},
		{"client-controller", "system:kube-controller-manager", nil, nil},
		{"client-scheduler", "system:kube-scheduler", nil, nil},
		{"client-kube-apiserver", "kube-apiserver", []string{"system:masters"}, nil},
		{"client-kubelet", "system:node:" + config.NodeName, []string{"system:nodes"}, nil},
	} {
		if err := tls.issue(leaf.file, leaf.name, leaf.organizations, leaf.hosts); err != nil {
			return err
		}
	}
	ca := pemOf(tls.certificate)
	local := "https://127.0.0.1:6443"
	credentials := filepath.Join(dir, "cred")
	kubeconfig := func(folder, file, name string) (string, error) {
		file = filepath.Join(folder, file+".kubeconfig")
		return file, writeKubeconfig(file, local, ca,
			&api.AuthInfo{ClientCertificate: tls.path(name + ".crt"), ClientKey: tls.path(name + ".key")}, 0o600)
	}
	mode, err := strconv.ParseUint(config.KubeconfigMode, 8, 32)
	if err != nil {
		return fmt.Errorf("write-kubeconfig-mode: %w", err)
	}
	certificate, _ := os.ReadFile(tls.path("client-admin.crt"))
	key, _ := os.ReadFile(tls.path("client-admin.key"))
	admin := config.WriteKubeconfig
	if err := writeKubeconfig(admin, local, ca, &api.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key}, os.FileMode(mode)); err != nil {
		return err
	}
	tokens, err := writeTokens(config, dir, caHash(tls.certificate))
	if err != nil {
		return err
	}
	store, peer := "127.0.0.1:2379", "127.0.0.1:2380"
	if err := awaitPredecessor(local[len("https://"):], store); err != nil {
		return err
	}
	if err := startEtcd(filepath.Join(dir, "db/etcd"), store, peer); err != nil {
		return err
	}
	os.Remove(filepath.Join(dir, "db/reset-flag"))
	c := &children{ended: make(chan error, 8)}
	arguments := []string{
		"--etcd-servers=http://" + store, "--etcd-healthcheck-timeout=1m", "--etcd-readycheck-timeout=1m", "--request-timeout=3m",
		"--secure-port=6443", "--bind-address=" + config.BindAddress, "--allow-privileged=true",
		"--service-cluster-ip-range=" + config.ServiceCIDR, "--client-ca-file=" + tls.path("server-ca.crt"),
		"--tls-cert-file=" + tls.path("serving-kube-apiserver.crt"), "--tls-private-key-file=" + tls.path("serving-kube-apiserver.key"),
		"--kubelet-client-certificate=" + tls.path("client-kube-apiserver.crt"), "--kubelet-client-key=" + tls.path("client-kube-apiserver.key"),
		"--kubelet-preferred-address-types=InternalIP", "--service-account-issuer=https://kubernetes.default.svc." + config.ClusterDomain,
		"--service-account-key-file=" + tls.path("service.key"), "--service-account-signing-key-file=" + tls.path("service.key"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--disable-admission-plugins=" + unusedAdmission,
		"--enable-priority-and-fairness=false", "--token-auth-file=" + tokens,
		"--advertise-address=" + config.NodeIP, "--profiling=false",
		// Counting and sizing the objects of each type once a minute is wasted work, and on a starved node it
		// only times out and begins again. Priority and fairness, which would use the numbers, is off.
		"--etcd-count-metric-poll-period=0", "--feature-gates=SizeBasedListCostEstimate=false",
	}
	if config.SecretsEncryption {
		file, err := writeEncryption(dir)
		if err != nil {
			return err
		}
		arguments = append(arguments, "--encryption-provider-config="+file)
	}
	// One after the other: together they would time out on each other on two emulated cores.
	if err := c.start("kube-apiserver", flags.Merge(arguments, config.APIServerArg)...); err != nil {
		return err
	}
	client, err := tls.client("client-admin")
	if err != nil {
		return err
	}
	if err := c.await("the API server", func() error { return get(client, local+"/readyz") }); err != nil {
		return err
	}
	if err := await("access rules", patience, func() error { return kubectlRun(admin, nodeAccess, "apply", "-f", "-") }); err != nil {
		return err
	}
	controller, err := kubeconfig(credentials, "controller", "client-controller")
	if err != nil {
		return err
	}
	arguments = []string{"--kubeconfig=" + controller, "--allocate-node-cidrs=true", "--cluster-cidr=" + config.ClusterCIDR,
		"--service-cluster-ip-range=" + config.ServiceCIDR, "--cluster-signing-cert-file=" + tls.path("server-ca.crt"),
		"--cluster-signing-key-file=" + tls.path("server-ca.key"), "--root-ca-file=" + tls.path("server-ca.crt"),
		"--service-account-private-key-file=" + tls.path("service.key"), "--use-service-account-credentials=true",
		"--kube-api-qps=100", "--kube-api-burst=200", "--secure-port=0", "--node-monitor-grace-period=2m", "--leader-elect=false",
		"--flex-volume-plugin-dir=" + filepath.Join(dir, "flexvolumes"), "--controllers=*," + strings.Join(unusedControllers, ","),
	}
	if err := c.start("kube-controller-manager", flags.Merge(arguments, config.ControllerArg)...); err != nil {
		return err
	}
	// Pods need the default ServiceAccount, which the controllers make.
	if err := c.await("the controllers", func() error {
		return get(client, local+"/api/v1/namespaces/default/serviceaccounts/default")
	}); err != nil {
		return err
	}
	schedulerConfig, err := kubeconfig(credentials, "scheduler", "client-scheduler")
	if err != nil {
		return err
	}
	arguments = []string{"--kubeconfig=" + schedulerConfig, "--secure-port=0", "--kube-api-qps=100", "--kube-api-burst=200", "--leader-elect=false"}
	if err := c.start("kube-scheduler", flags.Merge(arguments, config.SchedulerArg)...); err != nil {
		return err
	}
	// Where an agent's kubelet has its own as well.
	node, err := kubeconfig(filepath.Join(config.DataDir, "agent"), "kubelet", "client-kubelet")
	if err != nil {
		return err
	}
	if err := startNode(c, config, tls.dir, node, "--kubeconfig="+node); err != nil {
		return err
	}
	go setRole(client, local+"/api/v1/nodes/"+config.NodeName)
	manifests := filepath.Join(dir, "manifests")
	if err := writeCoreDNS(manifests, config); err != nil {
		return err
	}
	go deployManifests(manifests, admin)
	ready()
	return c.wait()
}

// writeTokens makes the join token on the first start and returns the API server's token file.
func writeTokens(config *Config, dir, hash string) (string, error) {
	secretFile := filepath.Join(dir, "secret")
	secret := config.Token
	if _, bare, err := parseToken(secret); err == nil {
		secret = bare
	}
	if secret == "" {
		if data, err := os.ReadFile(secretFile); err == nil {
			secret = string(data)
		} else {
			random := make([]byte, 16)
			rand.Read(random)
			secret = hex.EncodeToString(random)
		}
	}
	lines := fmt.Sprintf("%s,k3s-node,node,\"system:bootstrappers\"\n", secret)
	for name, text := range map[string]string{
		"secret": secret, "token": "K10" + hash + "::server:" + secret + "\n",
		"agent-token": "K10" + hash + "::node:" + secret + "\n", "tokens.csv": lines,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	link := filepath.Join(dir, "node-token")
	os.Remove(link)
	return filepath.Join(dir, "tokens.csv"), os.Symlink(filepath.Join(dir, "token"), link)
}

func writeEncryption(dir string) (string, error) {
	file := filepath.Join(dir, "cred/encryption-config.yaml")
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	key := make([]byte, 32)
	rand.Read(key)
	text := fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers: [{aescbc: {keys: [{name: aescbckey, secret: %s}]}}, {identity: {}}]
`, base64.StdEncoding.EncodeToString(key))
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return "", err
	}
	return file, os.WriteFile(file, []byte(text), 0o600)
}

func startEtcd(dir, clients, peers string) error {
	config := embed.NewConfig()
	config.Dir = dir
	config.LogLevel = "error"
	config.UnsafeNoFsync = true
	config.TickMs, config.ElectionMs = 500, 5000
	client, _ := url.Parse("http://" + clients)
	peer, _ := url.Parse("http://" + peers)
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return nil
	case <-time.After(patience):
		return errors.New("etcd did not become ready")
	}
}

// get asks the API server for something that is there once it is ready.
func get(client *http.Client, address string) error {
	answer, err := client.Get(address)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

// setRole labels the server's own node as k3s does, which the kubelet may not do itself. k3s has two such labels; the other one,
// etcd, is for servers with embedded etcd, which takes cluster-init.
func setRole(client *http.Client, node string) {
	const labels = `{"metadata": {"labels": {"node-role.kubernetes.io/control-plane": "true"}}}`
	for ; ; time.Sleep(time.Second) {
		request, err := http.NewRequest(http.MethodPatch, node+"?fieldManager=k3s", strings.NewReader(labels))
		if err != nil {
			fmt.Fprintf(os.Stderr, "level=error msg=\"%v\"\n", err)
			return
		}
		request.Header.Set("Content-Type", "application/merge-patch+json")
		answer, err := client.Do(request)
		if err != nil {
			continue
		}
		answer.Body.Close()
		if answer.StatusCode == http.StatusOK {
			return
		}
	}
}

func kubectlRun(kubeconfig, input string, arguments ...string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	command := exec.Command(self, append([]string{"kubectl", "--kubeconfig", kubeconfig}, arguments...)...)
	command.Stdin = strings.NewReader(input)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// deployManifests applies what is put into the manifests directory, as k3s does, whenever a file changes.
func deployManifests(dir, kubeconfig string) {
	os.MkdirAll(dir, 0o700)
	applied := map[string]string{}
	for ; ; time.Sleep(5 * time.Second) {
		files, _ := filepath.Glob(filepath.Join(dir, "*.yaml"))
		for _, file := range files {
			if stamp := stampOf(file); applied[file] != stamp {
				if err := kubectlRun(kubeconfig, "", "apply", "--server-side", "--field-manager=deploy@k3s", "--force-conflicts", "-f", file); err != nil {
					fmt.Fprintf(os.Stderr, "level=error msg=\"applying %s: %v\"\n", file, err)
					continue
				}
				applied[file] = stamp
			}
		}
	}
}
