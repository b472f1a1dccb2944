package rendezvous

import (
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"net"
	"strings"
)

// unixScheme is the prefix of addresses of Unix sockets.
const unixScheme = "unix:"

// splitAddress returns the arguments of net.Dial for an address such as "host:port", "unix:/path"
// or "unix:@name". "@name" is an abstract socket, which has no file.
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

// Token is a secret that the server of a store may require. The store uses PyTorch's protocol,
// which has no authentication. A client therefore sends the token SECRET by asking whether the key
// "symmem/token/SECRET" is set.
type Token string

const tokenKeyPrefix = "symmem/token/"

// maxTokenBytes is small because servers read tokens of unauthenticated clients.
const maxTokenBytes = 1 << 10

// NewToken returns a random token of 128 bits.
func NewToken() Token { return Token(rand.Text()) }

// String hides the secret from logs.
func (t Token) String() string {
	if t == "" {
		return "(no token)"
	}

	return "(token)"
}

// GoString hides the secret from %#v.
func (t Token) GoString() string { return t.String() }

// authRequest returns the request that sends the token: a CHECK, which asks whether a key is set.
func (t Token) authRequest() *request {
	return &request{query: queryCheck, keys: []string{tokenKeyPrefix + string(t)}}
}

// matches reports whether r is t.authRequest. The comparison resists timing attacks.
func (t Token) matches(r *request) bool {
	if r.query != queryCheck || len(r.keys) != 1 {
		return false
	}

	received := []byte(r.keys[0])
	expected := []byte(tokenKeyPrefix + string(t))
	return subtle.ConstantTimeCompare(received, expected) == 1
}

func (t Token) validate() error {
	if len(t) > maxTokenBytes {
		return fmt.Errorf("token of %d bytes (at most %d): %w",
			len(t), maxTokenBytes, ErrTooLarge)
	}

	return nil
}
