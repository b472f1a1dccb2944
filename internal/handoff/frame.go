package handoff

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// Token is a secret that all ranks of a job share.
type Token [sha256.Size]byte

// Key identifies a file that a process exports.
type Key struct {
	Namespace uint64 // group or pool; see NamespaceOf
	Number    uint32 // number of the file in the namespace
}

// NamespaceOf returns the Key.Namespace of the group or pool with the given name.
func NamespaceOf(name string) uint64 {
	sum := sha256.Sum256([]byte(name))
	return binary.LittleEndian.Uint64(sum[:])
}

// ErrProtocol means that the peer violated the protocol.
var ErrProtocol = errors.New("peer does not speak symmem's hand-off protocol")

// ErrUnknownKey means that the peer exports no file under the key.
var ErrUnknownKey = errors.New("peer has not exported a file under this key")

// ErrRefused means that the peer rejected this process's token, belongs to another user, or is an
// unexpected process.
var ErrRefused = errors.New("hand-off refused")

const (
	protocolID    = 0x31304d53 // "SM" and the version "01"
	requestBytes  = 4 + len(Token{}) + 12
	responseBytes = 4 + 4

	statusFound   = 0
	statusUnknown = 1
	statusRefused = 2
)

// encodeRequest returns a request: the protocol ID, the token and the key. Integers are
// little-endian.
func encodeRequest(token Token, key Key) []byte {
	b := make([]byte, 0, requestBytes)
	b = binary.LittleEndian.AppendUint32(b, protocolID)
	b = append(b, token[:]...)
	b = binary.LittleEndian.AppendUint64(b, key.Namespace)
	return binary.LittleEndian.AppendUint32(b, key.Number)
}

func decodeRequest(b []byte) (Token, Key, error) {
	var token Token
	if len(b) != requestBytes || binary.LittleEndian.Uint32(b) != protocolID {
		return token, Key{}, ErrProtocol
	}
	n := copy(token[:], b[4:])
	rest := b[4+n:]
	return token, Key{
		Namespace: binary.LittleEndian.Uint64(rest), Number: binary.LittleEndian.Uint32(rest[8:]),
	}, nil
}

// encodeResponse returns a response: the protocol ID and a status. The exported file accompanies
// statusFound.
func encodeResponse(status uint32) []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, responseBytes), protocolID)
	return binary.LittleEndian.AppendUint32(b, status)
}

// decodeResponse returns nil for statusFound, or else an error that matches ErrUnknownKey,
// ErrRefused or ErrProtocol.
func decodeResponse(b []byte) error {
	if len(b) != responseBytes || binary.LittleEndian.Uint32(b) != protocolID {
		return ErrProtocol
	}
	switch status := binary.LittleEndian.Uint32(b[4:]); status {
	case statusFound:
		return nil
	case statusUnknown:
		return ErrUnknownKey
	case statusRefused:
		return fmt.Errorf("the peer belongs to another job: %w", ErrRefused)
	default:
		return fmt.Errorf("the response has the unknown status %d: %w", status, ErrProtocol)
	}
}
