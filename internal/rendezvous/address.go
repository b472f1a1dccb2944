package rendezvous

import (
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"net"
	"strings"
)

// unixScheme is the prefix of the addresses of Unix sockets. "unix:@name" denotes an abstract
// socket, which needs no file.
const unixScheme = "unix:"

// splitAddress converts an address to the network and address that package net expects.
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

// Token is a secret that a client must send to a server. Package fmt prints only a placeholder for
// it, so that the secret does not get into logs.
type Token string

// tokenKey is the prefix of the key in the CHECK query that carries a token. User keys cannot have
// this prefix, because they start with a slash.
const tokenKey = "symmem/token/"

const maxTokenBytes = 1 << 10

// NewToken returns a random token of 128 bits.
func NewToken() Token { return Token(rand.Text()) }

// String returns a placeholder instead of the secret.
func (t Token) String() string {
	if t == "" {
		return "(no token)"
	}
	return "(token)"
}

// GoString returns the same placeholder as String, for the format %#v.
func (t Token) GoString() string { return t.String() }

func (t Token) query() *request {
	return &request{query: queryCheck, keys: []string{tokenKey + string(t)}}
}

// matches reports, in constant time, whether r carries the token.
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
