package rendezvous

import (
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"net"
	"strings"
)

// A store has an address: "host:port" on TCP, or "unix:@name" for a Unix socket. A client may
// need a token to use the store. It sends the token "SECRET" as a request for the key
// "symmem/token/SECRET".

// unixScheme is the prefix of the addresses of Unix sockets. "@name" is the name of an abstract
// socket, which is not a file.
const unixScheme = "unix:"

// splitAddress splits an address into a network and an address for package net.
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

// Token is a secret that a client sends to the server of a store. Its String method hides it from
// logs.
type Token string

// tokenKey is the prefix of the key by which a client sends its token. The keys of other requests
// start with a slash, so they cannot have this prefix.
const tokenKey = "symmem/token/"

// maxTokenBytes limits the length of a token, and thus the first requests that a server accepts.
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

// query returns the request that sends the token: a CHECK, which asks whether a key is set. Servers
// of PyTorch, which know no tokens, answer it like other requests.
func (t Token) query() *request {
	return &request{query: queryCheck, keys: []string{tokenKey + string(t)}}
}

// matches reports whether r sends this token. It compares in constant time, so that the time does
// not help to guess the token.
func (t Token) matches(r *request) bool {
	if r.query != queryCheck || len(r.keys) != 1 {
		return false
	}

	received := []byte(r.keys[0])
	expected := []byte(tokenKey + string(t))
	return subtle.ConstantTimeCompare(received, expected) == 1
}

// validate returns ErrTooLarge if the token is too long.
func (t Token) validate() error {
	if len(t) > maxTokenBytes {
		return fmt.Errorf("token of %d bytes (at most %d): %w",
			len(t), maxTokenBytes, ErrTooLarge)
	}

	return nil
}
