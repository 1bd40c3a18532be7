// A member of etcd as k3s starts one: its whole configuration is the file that it is given.
package main

import (
	"log"
	"os"

	"go.etcd.io/etcd/server/v3/embed"
)

func main() {
	config, err := embed.ConfigFromFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(<-etcd.Err())
}
