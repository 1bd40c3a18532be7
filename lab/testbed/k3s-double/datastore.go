package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
)

// What k3s does with snapshots of its etcd: the flags, the names of files, the messages and the order of what it refuses.

// member is how an etcd is known to itself and to others.
type member struct{ name, peer string }

// saveSnapshot is `k3s etcd-snapshot save`: DIR/NAME-NODE-SECONDS, mode 0600.
func saveSnapshot(arguments []string, endpoint, dataDir, node string) error {
	flags := flag.NewFlagSet("etcd-snapshot save", flag.ContinueOnError)
	name := flags.String("name", "on-demand", "")
	dir := filepath.Join(dataDir, "server/db/snapshots")
	flags.StringVar(&dir, "etcd-snapshot-dir", dir, "")
	flags.StringVar(&dir, "dir", dir, "")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return errors.New("this command does not take any arguments")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	called := fmt.Sprintf("%s-%s-%d", *name, node, time.Now().Unix())
	config := clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()}
	if _, err := snapshot.NewV3(zap.NewNop()).Save(ctx, config, filepath.Join(dir, called)); err != nil {
		return fmt.Errorf("failed to save snapshot %s: %w", called, err)
	}
	fmt.Fprintf(os.Stderr, "level=info msg=\"Snapshot %s saved.\"\n", called)
	return nil
}

// resetFlags are what `k3s server` takes on its command line here; all else is in its files.
func resetFlags(arguments []string) (reset bool, path string, err error) {
	flags := flag.NewFlagSet("server", flag.ContinueOnError)
	flags.BoolVar(&reset, "cluster-reset", false, "")
	flags.StringVar(&path, "cluster-reset-restore-path", "", "")
	flags.Bool("etcd-s3", false, "")
	err = flags.Parse(arguments)
	return
}

// resetCluster makes the snapshot the datastore of a cluster with this one member, and keeps the old one beside it.
func resetCluster(dataDir, path, server, token string, own member) error {
	db := filepath.Join(dataDir, "server/db")
	done := filepath.Join(db, "reset-flag")
	if server != "" {
		return errors.New("cannot perform cluster-reset while server URL is set - remove server from configuration before resetting")
	}
	if path != "" && token == "" {
		return errors.New("--token is required to restore")
	}
	if _, err := os.Stat(done); err == nil {
		return fmt.Errorf("Managed etcd cluster membership was previously reset, please remove the cluster-reset flag and start k3s normally. "+
			"If you need to perform another cluster reset, you must first manually delete the file at %s", done)
	}
	if info, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("etcd: snapshot path does not exist: %s", path)
	} else if err != nil {
		return err
	} else if info.IsDir() {
		return fmt.Errorf("etcd: snapshot path must be a file, not a directory: %s", path)
	}
	data := filepath.Join(db, "etcd")
	if _, err := os.Stat(data); err == nil {
		if err := os.Rename(data, fmt.Sprintf("%s-old-%d", data, time.Now().Unix())); err != nil {
			return err
		}
	} else if err := os.MkdirAll(db, 0o700); err != nil {
		return err
	}
	if err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: path, Name: own.name, OutputDataDir: data, PeerURLs: []string{own.peer},
		InitialCluster: own.name + "=" + own.peer, InitialClusterToken: "etcd-cluster",
	}); err != nil {
		return err
	}
	return os.WriteFile(done, nil, 0o600)
}

// resetDone is the last message of a reset.
func resetDone() {
	fmt.Fprintln(os.Stderr, `level=info msg="Managed etcd cluster membership has been reset, restart without --cluster-reset flag now. `+
		`Backup and delete ${datadir}/server/db on each peer etcd server and rejoin the nodes"`)
}
