package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// authority is one self-signed CA whose files live under dir.
type authority struct {
	dir         string
	certificate *x509.Certificate
	key         crypto.Signer
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

// openAuthority loads the CA, making it on the first start.
func openAuthority(dir string) (*authority, error) {
	a := &authority{dir: dir}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if certs, err := cert.CertsFromFile(a.path("server-ca.crt")); err == nil {
		key, err := keyutil.PrivateKeyFromFile(a.path("server-ca.key"))
		if err != nil {
			return nil, err
		}
		a.certificate, a.key = certs[0], key.(crypto.Signer)
		return a, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	a.key = key
	if a.certificate, err = cert.NewSelfSignedCACert(cert.Config{CommonName: "k3s-server-ca"}, key); err != nil {
		return nil, err
	}
	if err := writeKey(a.path("server-ca.key"), key); err != nil {
		return nil, err
	}
	if err := cert.WriteCert(a.path("server-ca.crt"), pemOf(a.certificate)); err != nil {
		return nil, err
	}
	signing, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	return a, writeKey(a.path("service.key"), signing)
}

// issue writes name.crt and name.key unless they exist. The CA certificate follows in the chain.
func (a *authority) issue(name, commonName string, organizations []string, hosts []string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: commonName, Organization: organizations},
		NotBefore:    a.certificate.NotBefore, NotAfter: time.Now().AddDate(1, 0, 0),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return err
	}
	if err := writeKey(a.path(name+".key"), key); err != nil {
		return err
	}
	return cert.WriteCert(a.path(name+".crt"), append(pemOf(leaf), pemOf(a.certificate)...))
}

// client speaks to the API server with one of the issued certificates.
func (a *authority) client(name string) (*http.Client, error) {
	pair, err := tls.LoadX509KeyPair(a.path(name+".crt"), a.path(name+".key"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.certificate)
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}}}, nil
}

func pemOf(certificate *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})
}

func writeKey(path string, key crypto.PrivateKey) error {
	data, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}
