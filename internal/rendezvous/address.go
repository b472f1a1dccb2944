package rendezvous

import (
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"net"
	"strings"
)

// unixScheme is the prefix of Unix socket addresses.
const unixScheme = "unix:"

// splitAddress splits an address, "host:port" or "unix:@name", for package net. "@name" is an
// abstract socket, without a file.
func splitAddress(address string) (network, addr string, err error) {
	name, isUnix := strings.CutPrefix(address, unixScheme)
	if isUnix {
		if name == "" || name == "@" {
			return "", "", fmt.Errorf("address %q has no name", address)
		}

		return "unix", name, nil
	}

	_, port, err := net.SplitHostPort(address)
	if err != nil || port == "" {
		return "", "", fmt.Errorf("address %q is neither host:port nor unix:@name", address)
	}

	return "tcp", address, nil
}

// Token is a secret that the server of a store may require. Its String method hides it from logs.
//
// PyTorch's protocol has no authentication, so a client sends the token SECRET in a query for the
// key "symmem/token/SECRET".
type Token string

// tokenKey is the prefix of the key that contains a token. All other keys start with a slash.
const tokenKey = "symmem/token/"

// maxTokenBytes limits a token, and with it what a server reads from an unauthenticated client.
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

// GoString hides the secret from %#v.
func (t Token) GoString() string { return t.String() }

// query returns the request that sends the token: a CHECK, which asks whether a key is set.
// PyTorch's servers do not support tokens and answer it like any other CHECK.
func (t Token) query() *request {
	return &request{query: queryCheck, keys: []string{tokenKey + string(t)}}
}

// matches reports whether r sends this token. It resists timing attacks.
func (t Token) matches(r *request) bool {
	if r.query != queryCheck || len(r.keys) != 1 {
		return false
	}

	received := []byte(r.keys[0])
	expected := []byte(tokenKey + string(t))
	return subtle.ConstantTimeCompare(received, expected) == 1
}

func (t Token) validate() error {
	if len(t) > maxTokenBytes {
		return fmt.Errorf("token of %d bytes (at most %d): %w",
			len(t), maxTokenBytes, ErrTooLarge)
	}

	return nil
}
