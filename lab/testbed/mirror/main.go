// Command mirror serves a folder as a site of downloads and a registry of images, as a company's mirror does: https on loopback,
// with a certificate authority of its own. The registry is CNCF Distribution, which most registries are built on.
//
//	mirror FOLDER
//
// FOLDER/files is what it hands out, FOLDER/registry is the registry's storage, FOLDER/ca.pem the authority. It prints its address
// when it answers, and ends with its standard input, so that it never outlives who started it.
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
	"io"
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
	if len(os.Args) != 2 {
		fail(fmt.Errorf("usage: mirror FOLDER"))
	}
	if err := serve(os.Args[1]); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "mirror:", err)
	os.Exit(1)
}

func serve(folder string) error {
	certificate, authority, err := issue()
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
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}})
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	return http.Serve(listener, handler)
}

// issue makes an authority and a certificate of it for 127.0.0.1, both for a day.
func issue() (tls.Certificate, []byte, error) {
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
		NotBefore: parent.NotBefore, NotAfter: parent.NotAfter, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	leafBytes, err := x509.CreateCertificate(rand.Reader, leaf, signer, &key.PublicKey, parentKey)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: parentBytes})
	return tls.Certificate{Certificate: [][]byte{leafBytes}, PrivateKey: key}, authority, nil
}
