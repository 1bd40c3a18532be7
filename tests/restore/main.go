// A double of k3s for restores: real members of etcd, which join, are saved and are reset by the code of the lab's double
// (datastore.go); no Kubernetes. What its servers agree on (the CA, the token, the nodes) is in etcd, as with k3s.
package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"sigs.k8s.io/yaml"
)

const (
	dataDir = "/var/lib/rancher/k3s"
	local   = "http://127.0.0.1:2379"
	ready   = "/run/k3s-ready"
)

func main() {
	if len(os.Args) < 2 {
		os.Exit(1)
	}
	var err error
	switch os.Args[1] {
	case "--version":
		fmt.Println("k3s version v1.35.8+double1 (0000000)")
	case "server":
		var reset bool
		var path string
		if reset, path, err = resetFlags(os.Args[2:]); err == nil && reset {
			err = runReset(path)
		} else if err == nil {
			err = runServer()
		}
	case "agent":
		err = runAgent()
	case "etcd-snapshot":
		if _, err := os.Stat(filepath.Join(dataDir, "server/db/etcd/member")); err != nil {
			os.Exit(1)
		}
		err = saveSnapshot(os.Args[3:], local, dataDir, readConfig().NodeName)
	case "kubectl":
		err = kubectl(strings.Join(os.Args[2:], " "))
	default:
		err = errors.New("no such command: " + os.Args[1])
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "level=fatal msg=%q\n", err.Error())
		os.Exit(1)
	}
}

type config struct {
	NodeIP    string `json:"node-ip"`
	NodeName  string `json:"node-name"`
	Server    string `json:"server"`
	TokenFile string `json:"token-file"`
}

func readConfig() config {
	found := config{}
	text, _ := os.ReadFile("/etc/rancher/k3s/config.yaml")
	if err := yaml.Unmarshal(text, &found); err != nil {
		panic(err)
	}
	return found
}

func (c config) peer() string  { return "http://" + c.NodeIP + ":2380" }
func (c config) store() string { return "http://" + host(c.Server) + ":2379" }

func host(server string) string {
	parsed, err := url.Parse(server)
	if err != nil {
		panic(err)
	}
	return parsed.Hostname()
}

// digest is of the secret part of K10<CA>::<user>:<secret>, or of a bare secret.
func (c config) digest() string {
	text, _ := os.ReadFile(c.TokenFile)
	words := strings.Split(strings.TrimSpace(string(text)), ":")
	sum := sha256.Sum256([]byte(words[len(words)-1]))
	return hex.EncodeToString(sum[:])
}

func connect(endpoint string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
}

func limited() context.Context {
	ctx, _ := context.WithTimeout(context.Background(), 20*time.Second) //nolint:govet
	return ctx
}

func get(client *clientv3.Client, key string) (string, error) {
	answer, err := client.Get(limited(), key)
	if err != nil || len(answer.Kvs) == 0 {
		return "", err
	}
	return string(answer.Kvs[0].Value), nil
}

func runServer() error {
	c := readConfig()
	data := filepath.Join(dataDir, "server/db/etcd")
	cluster, state := c.NodeName+"="+c.peer(), embed.ClusterStateFlagNew
	if _, err := os.Stat(filepath.Join(data, "member")); err != nil && c.Server != "" {
		joined, err := join(c)
		if err != nil {
			return err
		}
		cluster, state = joined, embed.ClusterStateFlagExisting
	}
	etcd, err := start(c, data, cluster, state)
	if err != nil {
		return err
	}
	os.Remove(filepath.Join(dataDir, "server/db/reset-flag"))
	if err := agree(c); err != nil {
		return err
	}
	return serve(c, etcd.Err(), "node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/etcd")
}

func start(c config, data, cluster, state string) (*embed.Etcd, error) {
	settings := embed.NewConfig()
	settings.Name, settings.Dir, settings.LogLevel, settings.UnsafeNoFsync = c.NodeName, data, "error", true
	address := func(text string) url.URL { parsed, _ := url.Parse(text); return *parsed }
	settings.ListenClientUrls = []url.URL{address(local), address("http://" + c.NodeIP + ":2379")}
	settings.AdvertiseClientUrls = settings.ListenClientUrls[1:]
	settings.ListenPeerUrls, settings.AdvertisePeerUrls = []url.URL{address(c.peer())}, []url.URL{address(c.peer())}
	settings.ListenMetricsUrls = []url.URL{address("http://127.0.0.1:2381")}
	settings.InitialCluster, settings.ClusterState = cluster, state
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, err
	}
	etcd, err := embed.StartEtcd(settings)
	if err != nil {
		return nil, err
	}
	select {
	case <-etcd.Server.ReadyNotify():
	case <-time.After(time.Minute):
		return nil, errors.New("etcd did not become ready")
	}
	return etcd, os.WriteFile(filepath.Join(data, "config"), []byte("listen-metrics-urls: http://127.0.0.1:2381\n"), 0o600)
}

// join adds this server to the cluster of another one, which knows its token.
func join(c config) (string, error) {
	client, err := connect(c.store())
	if err != nil {
		return "", err
	}
	defer client.Close()
	if known, err := get(client, "/token"); err != nil || known != c.digest() {
		return "", fmt.Errorf("token CA hash or secret does not match the cluster's: %v", err)
	}
	members, err := client.MemberList(limited())
	if err != nil {
		return "", err
	}
	var cluster []string
	for _, one := range members.Members {
		if len(one.PeerURLs) == 1 && one.PeerURLs[0] == c.peer() {
			if one.Name != "" {
				return "", errors.New("duplicate node name found, please use a unique name for this node")
			}
			one.Name = c.NodeName
		}
		cluster = append(cluster, one.Name+"="+one.PeerURLs[0])
	}
	if own := c.NodeName + "=" + c.peer(); !strings.Contains(strings.Join(cluster, ","), own) {
		// A member that has just joined is not yet counted as healthy; of k3s systemd starts the next try.
		for try := 0; ; try++ {
			if _, err = client.MemberAdd(limited(), []string{c.peer()}); err == nil {
				break
			} else if try == 60 {
				return "", err
			}
			time.Sleep(500 * time.Millisecond)
		}
		cluster = append(cluster, own)
	}
	return strings.Join(cluster, ","), nil
}

// agree makes the CA on the first start and takes it from etcd on every other one.
func agree(c config) error {
	client, err := connect(local)
	if err != nil {
		return err
	}
	defer client.Close()
	authority, err := get(client, "/bootstrap")
	if err != nil {
		return err
	}
	if authority == "" {
		random := make([]byte, 32)
		rand.Read(random)
		authority = "CA " + hex.EncodeToString(random)
		for key, value := range map[string]string{"/bootstrap": authority, "/token": c.digest()} {
			if _, err := client.Put(limited(), key, value); err != nil {
				return err
			}
		}
	}
	if known, err := get(client, "/token"); err != nil || known != c.digest() {
		return fmt.Errorf("bootstrap data already found and encrypted with different token: %v", err)
	}
	text, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return err
	}
	for path, text := range map[string]string{"tls/server-ca.crt": authority, "token": string(text), "node-token": string(text)} {
		path = filepath.Join(dataDir, "server", path)
		os.MkdirAll(filepath.Dir(path), 0o700)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
	}
	return enter(client, c, "node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/etcd")
}

// enter is the kubelet: it registers the node, and proves that it is the one that registered before.
func enter(client *clientv3.Client, c config, roles ...string) error {
	os.MkdirAll("/etc/rancher/node", 0o700)
	password, err := os.ReadFile("/etc/rancher/node/password")
	if err != nil {
		random := make([]byte, 16)
		rand.Read(random)
		password = []byte(hex.EncodeToString(random))
		if err := os.WriteFile("/etc/rancher/node/password", password, 0o600); err != nil {
			return err
		}
	}
	known, err := get(client, "/password/"+c.NodeName)
	if err != nil {
		return err
	}
	if known != "" && known != string(password) {
		return errors.New("Node password rejected, duplicate hostname or contents of '/etc/rancher/node/password' may not match server node-passwd entry")
	}
	labels := map[string]string{}
	for _, role := range roles {
		labels[role] = "true"
	}
	node, _ := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": c.NodeName, "labels": labels},
		"status": map[string]any{"conditions": []any{map[string]string{"type": "Ready", "status": "True"}}},
	})
	for key, value := range map[string]string{"/nodes/" + c.NodeName: string(node), "/password/" + c.NodeName: string(password)} {
		if _, err := client.Put(limited(), key, value); err != nil {
			return err
		}
	}
	os.MkdirAll(filepath.Join(dataDir, "agent"), 0o700)
	return os.WriteFile(filepath.Join(dataDir, "agent/kubelet.kubeconfig"), nil, 0o600)
}

func serve(c config, failed <-chan error, roles ...string) error {
	if err := os.WriteFile(ready, nil, 0o600); err != nil {
		return err
	}
	return <-failed
}

func runAgent() error {
	c := readConfig()
	client, err := connect(c.store())
	if err != nil {
		return err
	}
	authority, err := get(client, "/bootstrap")
	if err != nil || authority == "" {
		return fmt.Errorf("failed to get CA certs: %v", err)
	}
	os.MkdirAll(filepath.Join(dataDir, "agent"), 0o700)
	if err := os.WriteFile(filepath.Join(dataDir, "agent/server-ca.crt"), []byte(authority), 0o600); err != nil {
		return err
	}
	if err := enter(client, c); err != nil {
		return err
	}
	return serve(c, make(chan error))
}

func runReset(path string) error {
	c := readConfig()
	token, _ := os.ReadFile(c.TokenFile)
	if wait := os.Getenv("K3S_DOUBLE_RESET_SECONDS"); wait != "" {
		pause, _ := time.ParseDuration(wait + "s")
		time.Sleep(pause)
	}
	own := member{name: c.NodeName, peer: c.peer()}
	if err := resetCluster(dataDir, path, c.Server, string(token), own); err != nil {
		return err
	}
	if _, err := start(c, filepath.Join(dataDir, "server/db/etcd"), own.name+"="+own.peer, embed.ClusterStateFlagNew); err != nil {
		return err
	}
	resetDone()
	return nil
}

func kubectl(words string) error {
	client, err := connect(local)
	if err != nil {
		return err
	}
	defer client.Close()
	switch {
	case strings.Contains(words, "/readyz"):
		if _, err := get(client, "/bootstrap"); err != nil {
			return err
		}
		fmt.Println("ok")
	case strings.Contains(words, "get nodes"):
		answer, err := client.Get(limited(), "/nodes/", clientv3.WithPrefix())
		if err != nil {
			return err
		}
		var items []string
		for _, one := range answer.Kvs {
			items = append(items, string(one.Value))
		}
		fmt.Printf(`{"apiVersion": "v1", "kind": "List", "items": [%s]}`+"\n", strings.Join(items, ","))
	case strings.HasPrefix(words, "put "): // of the tests: something that the cluster writes
		key, value, _ := strings.Cut(words[len("put "):], "=")
		_, err = client.Put(limited(), "/objects/"+key, value)
		return err
	case strings.HasPrefix(words, "objects"):
		answer, err := client.Get(limited(), "/objects/", clientv3.WithPrefix())
		if err != nil {
			return err
		}
		found := map[string]string{}
		for _, one := range answer.Kvs {
			found[strings.TrimPrefix(string(one.Key), "/objects/")] = string(one.Value)
		}
		return json.NewEncoder(os.Stdout).Encode(found)
	case strings.HasPrefix(words, "members"):
		answer, err := client.MemberList(limited())
		if err != nil {
			return err
		}
		for _, one := range answer.Members {
			fmt.Println(one.Name)
		}
	default:
		return errors.New("the double does not know kubectl " + words)
	}
	return nil
}
