package rendezvous

import (
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"net"
	"strings"
)

// Endpoint identifies a server and the token that it requires.
type Endpoint struct {
	// Address has the form "host:port", "unix:@name" or "unix:/path".
	Address string
	Token   Token
}

const unixScheme = "unix:"

// splitAddress returns the arguments of net.Dial for an Endpoint.Address. The socket "@name" is
// abstract: it has no file.
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
		return "", "", fmt.Errorf("address %q is neither host:port nor unix:socket", address)
	}

	return "tcp", address, nil
}

// listenAddress returns the address at which rank 0 listens. On TCP, it listens on all interfaces,
// except for a loopback address. The host's address may not belong to an interface, for example in
// Kubernetes.
func listenAddress(address string) string {
	host, port, err := net.SplitHostPort(address)
	isTCP := err == nil && !strings.HasPrefix(address, unixScheme)
	if !isTCP {
		return address
	}

	ip := net.ParseIP(host)
	isLoopback := host == "localhost" || (ip != nil && ip.IsLoopback())
	if isLoopback {
		return address
	}

	return net.JoinHostPort("", port)
}

// Token is a secret that the server of a store may require. PyTorch's protocol has no
// authentication, so a client sends the token SECRET by a CHECK of the key "symmem/token/SECRET".
type Token string

const tokenKeyPrefix = "symmem/token/"

// maxTokenBytes is small, because any client may send a token.
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

// authRequest returns the request that sends the token.
func (t Token) authRequest() *request {
	return &request{query: queryCheck, keys: []string{tokenKeyPrefix + string(t)}}
}

// matches reports whether r sends the token t. The comparison resists timing attacks.
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
