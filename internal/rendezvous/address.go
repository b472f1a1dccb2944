package rendezvous

import (
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"net"
	"strings"
)

// unixScheme is the prefix of Unix socket addresses. "unix:@name" is an abstract socket.
const unixScheme = "unix:"

// splitAddress splits an address into a network and an address for package net.
func splitAddress(address string) (network, addr string, err error) {
	if name, ok := strings.CutPrefix(address, unixScheme); ok {
		if name == "" || name == "@" {
			return "", "", fmt.Errorf("address %q has no name", address)
		}
		return "unix", name, nil
	}
	if _, port, err := net.SplitHostPort(address); err != nil || port == "" {
		return "", "", fmt.Errorf("address %q is neither host:port nor unix:@name", address)
	}
	return "tcp", address, nil
}

// Token is a secret that a client sends to a server. Its String method hides it from logs.
type Token string

// User keys start with a slash, so they cannot have this prefix.
const tokenKey = "symmem/token/"

const maxTokenBytes = 1 << 10

// NewToken returns a random token of 128 bits.
func NewToken() Token { return Token(rand.Text()) }

// String hides the secret.
func (t Token) String() string {
	if t == "" {
		return "(no token)"
	}
	return "(token)"
}

// GoString hides the secret from the format %#v.
func (t Token) GoString() string { return t.String() }

func (t Token) query() *request {
	return &request{query: queryCheck, keys: []string{tokenKey + string(t)}}
}

// matches compares in constant time.
func (t Token) matches(r *request) bool {
	if r.query != queryCheck || len(r.keys) != 1 {
		return false
	}
	return subtle.ConstantTimeCompare([]byte(r.keys[0]), []byte(tokenKey+string(t))) == 1
}

func (t Token) validate() error {
	if len(t) > maxTokenBytes {
		return fmt.Errorf("token of %d bytes (at most %d): %w",
			len(t), maxTokenBytes, ErrTooLarge)
	}
	return nil
}
