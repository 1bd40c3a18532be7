// Command mirror serves a folder as a site of downloads and a registry of images, as a company's mirror does: https on loopback,
// with its own certificate authority. The registry is CNCF Distribution, which most registries are built on.
//
//	mirror FOLDER PORT ADDRESS...
//
// FOLDER/files is what it hands out, FOLDER/registry is the registry's storage, FOLDER/ca.pem the authority. It listens at
// 127.0.0.1; its certificate holds that and each ADDRESS.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
)

func main() {
	if len(os.Args) < 3 {
		fail(fmt.Errorf("usage: mirror FOLDER PORT ADDRESS..."))
	}
	if err := serve(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "mirror:", err)
	os.Exit(1)
}

func serve(folder, port string, addresses []string) error {
	certificate, authority, err := issue(addresses)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "ca.pem"), authority, 0o644); err != nil {
		return err
	}
	config := &configuration.Configuration{
		Version: configuration.CurrentVersion,
		Storage: configuration.Storage{
			"filesystem":  configuration.Parameters{"rootdirectory": filepath.Join(folder, "registry")},
			"maintenance": configuration.Parameters{"uploadpurging": map[any]any{"enabled": false}},
		},
	}
	config.Log.Level = "error"
	config.Log.AccessLog.Disabled = true
	handler := http.NewServeMux()
	handler.Handle("/v2/", handlers.NewApp(context.Background(), config))
	handler.Handle("/", http.FileServer(http.Dir(filepath.Join(folder, "files"))))
	listener, err := tls.Listen("tcp", net.JoinHostPort("127.0.0.1", port), &tls.Config{Certificates: []tls.Certificate{certificate}})
	if err != nil {
		return err
	}
	return http.Serve(listener, handler)
}

// issue makes an authority and its certificate for 127.0.0.1 and addresses, both for a day.
func issue(addresses []string) (tls.Certificate, []byte, error) {
	held := []net.IP{net.IPv4(127, 0, 0, 1)}
	for _, address := range addresses {
		held = append(held, net.ParseIP(address))
	}
	parentKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	now := time.Now()
	parent := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of the lab's mirror"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}
	parentBytes, err := x509.CreateCertificate(rand.Reader, parent, parent, &parentKey.PublicKey, parentKey)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	signer, err := x509.ParseCertificate(parentBytes)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "the lab's mirror"},
		NotBefore: parent.NotBefore, NotAfter: parent.NotAfter, IPAddresses: held,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	leafBytes, err := x509.CreateCertificate(rand.Reader, leaf, signer, &key.PublicKey, parentKey)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: parentBytes})
	return tls.Certificate{Certificate: [][]byte{leafBytes}, PrivateKey: key}, authority, nil
}
