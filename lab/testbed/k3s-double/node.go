package main

import (
	"archive/zip"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	clientcmd "k8s.io/client-go/tools/clientcmd"
	api "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"testbed/k3s/flags"
)

// spawn starts every child from one thread that lives as long as the process: Pdeathsig fires when that thread ends.
var spawn = make(chan func())

func init() {
	go func() {
		runtime.LockOSThread()
		for start := range spawn {
			start()
		}
	}()
}

// children run until one of them ends or the unit is stopped; containers and their shims outlive them (KillMode=process).
type children struct {
	ended   chan error
	running []*os.Process
}

func (c *children) start(name string, arguments ...string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return c.run(name, exec.Command(self, append([]string{name}, arguments...)...))
}

func (c *children) run(name string, command *exec.Cmd) error {
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	command.Env = slices.DeleteFunc(os.Environ(), func(entry string) bool { return strings.HasPrefix(entry, "NOTIFY_SOCKET=") })
	command.Env = append(command.Env, thrift()...)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	started := make(chan error)
	spawn <- func() { started <- command.Start() }
	if err := <-started; err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	c.running = append(c.running, command.Process)
	go func() { c.ended <- fmt.Errorf("%s ended: %v", name, command.Wait()) }()
	return nil
}

// On a node with few (emulated) processors each program gets one thread: none spins waiting for work from another.
func small() bool { return runtime.NumCPU() <= 2 }

// thrift is what makes Go programs spend memory instead of cycles.
func thrift() []string {
	settings := []string{"GOGC=400"}
	if small() {
		settings = append(settings, "GOMAXPROCS=1")
	}
	return slices.DeleteFunc(settings, func(setting string) bool {
		name, _, _ := strings.Cut(setting, "=")
		return os.Getenv(name) != ""
	})
}

// await waits like the function of that name, but gives up when a child has ended.
func (c *children) await(what string, try func() error) error {
	deadline := time.Now().Add(patience)
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case failure := <-c.ended:
			return fmt.Errorf("waiting for %s: %w", what, failure)
		case <-time.After(time.Second):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
	}
}

func (c *children) wait() error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	var failure error
	left := len(c.running)
	select {
	case failure = <-c.ended:
		left--
	case <-stop:
	}
	for _, process := range c.running {
		process.Signal(syscall.SIGTERM)
	}
	deadline := time.After(10 * time.Second)
	for ; left > 0; left-- {
		select {
		case <-c.ended:
		case <-deadline:
			for _, process := range c.running {
				process.Kill()
			}
		}
	}
	return failure
}

// helper is the path of one of containerd's programs. They travel in the binary, as k3s' do; a build without them takes the
// distribution's. PATH is not searched, because /usr/local/bin/ctr is a link to k3s on a real node.
func helper(name string) string {
	if path := filepath.Join(helpers, name); exec.Command(path, "--version").Run() == nil {
		return path
	}
	return filepath.Join("/usr/bin", name)
}

const helpers = "/var/lib/rancher/k3s/data/current/bin"

// unpack lays out the zip archive that hangs on the end of the executable; an older layout's files are replaced by renaming.
func unpack() error {
	archive, err := zip.OpenReader("/proc/self/exe")
	if err != nil {
		return nil // a plain `go build` has none
	}
	defer archive.Close()
	if err := os.MkdirAll(helpers, 0o755); err != nil {
		return err
	}
	for _, entry := range archive.File {
		target := filepath.Join(helpers, filepath.Base(entry.Name))
		stamp := fmt.Sprintf("%08x", entry.CRC32)
		if seen, err := os.ReadFile(target + ".crc32"); err == nil && string(seen) == stamp {
			continue
		}
		if err := unpackOne(entry, target); err != nil {
			return fmt.Errorf("%s: %w", target, err)
		}
		if err := os.WriteFile(target+".crc32", []byte(stamp), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func unpackOne(entry *zip.File, target string) error {
	from, err := entry.Open()
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(target+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(to, from); err != nil {
		return errors.Join(err, to.Close())
	}
	if err := to.Close(); err != nil {
		return err
	}
	return os.Rename(target+".new", target)
}

// awaitPredecessor lets the children of a k3s that was killed end first: two API servers or kubelets never run side by side.
func awaitPredecessor(addresses ...string) error {
	return await("the last run's processes to end", 2*time.Minute, func() error {
		for _, address := range addresses {
			network := "tcp"
			if strings.HasPrefix(address, "/") {
				network = "unix"
			}
			if connection, err := net.DialTimeout(network, address, time.Second); err == nil {
				connection.Close()
				return fmt.Errorf("%s still answers", address)
			}
		}
		return nil
	})
}

// patience is how long a step may take with a cluster on two emulated cores.
const patience = 10 * time.Minute

func ready() { daemon.SdNotify(true, "READY=1") }

// startContainerd renders k3s's containerd configuration (default CNI directories, as with flannel-backend none).
func startContainerd(c *children, config *Config) error {
	dir := filepath.Join(config.DataDir, "agent")
	file := filepath.Join(dir, "etc/containerd/config.toml")
	text := fmt.Sprintf(`version = 2
root = %q
state = "/run/k3s/containerd"
[grpc]
  address = %q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  enable_selinux = %v
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "overlayfs"
  default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/opt/cni/bin"
  conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = %q
`, filepath.Join(dir, "containerd"), containerdSocket, config.PauseImage, config.SELinux, filepath.Join(filepath.Dir(file), "certs.d"))
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	if err := writeMirrors(filepath.Join(filepath.Dir(file), "certs.d")); err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	for _, module := range []string{"overlay", "br_netfilter", "nf_conntrack", "iptable_nat", "iptable_filter"} {
		exec.Command("modprobe", "--", module).Run()
	}
	if err := c.run("containerd", exec.Command(helper("containerd"), "--config", file)); err != nil {
		return err
	}
	if err := await("containerd", patience, func() error {
		return exec.Command(helper("ctr"), "--address", containerdSocket, "version").Run()
	}); err != nil {
		return err
	}
	archives, _ := filepath.Glob(filepath.Join(dir, "images", "*.tar*"))
	for _, archive := range archives {
		done := filepath.Join(dir, "etc", filepath.Base(archive)+".imported")
		if stamp, err := os.ReadFile(done); err == nil && string(stamp) == stampOf(archive) {
			continue
		}
		out, err := exec.Command(helper("ctr"), "--address", containerdSocket, "--namespace", "k8s.io", "images", "import", archive).CombinedOutput()
		if err != nil {
			return fmt.Errorf("importing %s: %v: %s", archive, err, out)
		}
		os.WriteFile(done, []byte(stampOf(archive)), 0o600)
	}
	return nil
}

// writeMirrors renders registries.yaml for containerd: mirrors with their endpoints, and configs' tls. Other keys are refused.
func writeMirrors(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	data, err := os.ReadFile("/etc/rancher/k3s/registries.yaml")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	var given struct {
		Mirrors map[string]struct {
			Endpoint []string `json:"endpoint"`
		} `json:"mirrors"`
		Configs map[string]struct {
			TLS struct {
				CAFile             string `json:"ca_file"`
				InsecureSkipVerify bool   `json:"insecure_skip_verify"`
			} `json:"tls"`
		} `json:"configs"`
	}
	if err := yaml.UnmarshalStrict(data, &given); err != nil {
		return fmt.Errorf("registries.yaml: %w", err)
	}
	for host, mirror := range given.Mirrors {
		text := ""
		for _, endpoint := range mirror.Endpoint {
			site, err := url.Parse(endpoint)
			if err != nil {
				return fmt.Errorf("registries.yaml: %w", err)
			}
			trust := given.Configs[site.Host].TLS
			text += fmt.Sprintf("[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n  skip_verify = %v\n", endpoint, trust.InsecureSkipVerify)
			if trust.CAFile != "" {
				text += fmt.Sprintf("  ca = %q\n", trust.CAFile)
			}
		}
		if err := os.MkdirAll(filepath.Join(dir, host), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, host, "hosts.toml"), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func stampOf(file string) string {
	info, err := os.Stat(file)
	if err != nil {
		return ""
	}
	return fmt.Sprint(info.Size(), info.ModTime().UnixNano())
}

func startKubelet(c *children, config *Config, dir string, identity ...string) error {
	settings := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"authentication": map[string]any{"anonymous": map[string]any{"enabled": false}, "webhook": map[string]any{"enabled": true},
			"x509": map[string]any{"clientCAFile": filepath.Join(dir, "server-ca.crt")}},
		"authorization":            map[string]any{"mode": "Webhook"},
		"cgroupDriver":             "systemd",
		"clusterDNS":               []string{config.ClusterDNS},
		"clusterDomain":            config.ClusterDomain,
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		"failSwapOn":               false,
		"resolvConf":               resolver(config),
		"serializeImagePulls":      false,
		"evictionHard":             map[string]string{"imagefs.available": "5%", "nodefs.available": "5%"},
	}
	data, err := yaml.Marshal(settings)
	if err != nil {
		return err
	}
	file := filepath.Join(config.DataDir, "agent/etc/kubelet.yaml")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return err
	}
	arguments := append([]string{"--config=" + file, "--node-ip=" + config.NodeIP, "--hostname-override=" + config.NodeName}, identity...)
	if len(config.NodeLabel) > 0 {
		arguments = append(arguments, "--node-labels="+strings.Join(config.NodeLabel, ","))
	}
	if len(config.NodeTaint) > 0 {
		arguments = append(arguments, "--register-with-taints="+strings.Join(config.NodeTaint, ","))
	}
	// cAdvisor reads every cgroup each 10 s by default; no scenario asks for what it finds.
	arguments = append(arguments, "--housekeeping-interval=1m")
	if config.ProtectKernel {
		arguments = append(arguments, "--protect-kernel-defaults=true")
	}
	return c.start("kubelet", flags.Merge(arguments, config.KubeletArg)...)
}

// resolver is the node's resolv.conf, or, as in k3s, one of our own where that names no server that a pod can reach.
func resolver(config *Config) string {
	file := "/etc/resolv.conf"
	data, _ := os.ReadFile(file)
	for line := range strings.Lines(string(data)) {
		words := strings.Fields(line)
		if len(words) == 2 && words[0] == "nameserver" && net.ParseIP(words[1]).IsGlobalUnicast() {
			return file
		}
	}
	file = filepath.Join(config.DataDir, "agent/etc/resolv.conf")
	if err := os.WriteFile(file, []byte("nameserver 8.8.8.8\n"), 0o644); err != nil {
		fmt.Fprintf(os.Stderr, "level=error msg=\"%v\"\n", err)
	}
	return file
}

func runAgent() error {
	config, err := readConfig()
	if err != nil {
		return err
	}
	if config.Server == "" || config.Token == "" {
		return errors.New("--server and --token are required")
	}
	hash, secret, err := parseToken(config.Token)
	if err != nil {
		return err
	}
	dir := filepath.Join(config.DataDir, "agent")
	if err := os.MkdirAll(filepath.Join(dir, "etc"), 0o700); err != nil {
		return err
	}
	var ca []byte
	if err := await("the server", patience, func() error { ca, err = fetchCA(config.Server, hash); return err }); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "server-ca.crt"), ca, 0o600); err != nil {
		return err
	}
	bootstrap, kubeconfig := filepath.Join(dir, "bootstrap.kubeconfig"), filepath.Join(dir, "kubelet.kubeconfig")
	if err := writeKubeconfig(bootstrap, config.Server, ca, &api.AuthInfo{Token: secret}, 0o600); err != nil {
		return err
	}
	c := &children{ended: make(chan error, 8)}
	if err := startNode(c, config, dir, kubeconfig, "--bootstrap-kubeconfig="+bootstrap, "--kubeconfig="+kubeconfig, "--cert-dir="+dir); err != nil {
		return err
	}
	ready()
	return c.wait()
}

// startNode starts what every node runs, one after the other. dir holds the CA; kubeconfig is there at once, or written by the
// kubelet when it has joined.
func startNode(c *children, config *Config, dir, kubeconfig string, identity ...string) error {
	if err := unpack(); err != nil {
		return err
	}
	if err := awaitPredecessor("127.0.0.1:10248", containerdSocket); err != nil {
		return err
	}
	if err := startContainerd(c, config); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(config.DataDir, "agent/etc"), 0o700); err != nil {
		return err
	}
	if err := startKubelet(c, config, dir, identity...); err != nil {
		return err
	}
	if err := c.await("the kubelet's certificate", func() error { _, err := os.Stat(kubeconfig); return err }); err != nil {
		return err
	}
	return startProxy(c, config, kubeconfig)
}

func startProxy(c *children, config *Config, kubeconfig string) error {
	arguments := []string{"--kubeconfig=" + kubeconfig, "--cluster-cidr=" + config.ClusterCIDR, "--proxy-mode=iptables",
		"--hostname-override=" + config.NodeName, "--healthz-bind-address=127.0.0.1:10256", "--conntrack-max-per-core=0"}
	return c.start("kube-proxy", flags.Merge(arguments, config.ProxyArg)...)
}

// parseToken takes K10<sha256 of the CA>::<user>:<secret>, or a bare secret (then the CA isn't verified, as in k3s).
func parseToken(token string) (hash, secret string, err error) {
	if !strings.HasPrefix(token, "K10") {
		return "", token, nil
	}
	hash, rest, found := strings.Cut(strings.TrimPrefix(token, "K10"), "::")
	_, secret, named := strings.Cut(rest, ":")
	if !found || !named || len(hash) != 64 {
		return "", "", errors.New("invalid token format")
	}
	return hash, secret, nil
}

func fetchCA(server, hash string) ([]byte, error) {
	address, err := url.Parse(server)
	if err != nil {
		return nil, err
	}
	connection, err := tls.Dial("tcp", address.Host, &tls.Config{InsecureSkipVerify: true}) // checked against the token below
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	chain := connection.ConnectionState().PeerCertificates
	ca := chain[len(chain)-1]
	if sum := caHash(ca); hash != "" && sum != hash {
		return nil, fmt.Errorf("token CA hash does not match the Cluster CA certificate hash: %s != %s", hash, sum)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	_, err = chain[0].Verify(x509.VerifyOptions{Roots: pool})
	return pemOf(ca), err
}

func caHash(ca *x509.Certificate) string {
	sum := sha256.Sum256(pemOf(ca))
	return hex.EncodeToString(sum[:])
}

func writeKubeconfig(file, server string, ca []byte, user *api.AuthInfo, mode os.FileMode) error {
	data, err := clientcmd.Write(api.Config{
		Clusters:       map[string]*api.Cluster{"default": {Server: server, CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*api.AuthInfo{"default": user},
		Contexts:       map[string]*api.Context{"default": {Cluster: "default", AuthInfo: "default"}},
		CurrentContext: "default",
	})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file, data, mode); err != nil {
		return err
	}
	return os.Chmod(file, mode)
}

func await(what string, limit time.Duration, try func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := try()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
		time.Sleep(500 * time.Millisecond)
	}
}
