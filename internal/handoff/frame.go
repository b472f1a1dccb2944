package handoff

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// Requests and responses have fixed sizes and little-endian numbers:
//
//	request     "SM01", Token (32 bytes), Key.Namespace (8 bytes), Key.Number (4 bytes)
//	response    "SM01", status (4 bytes)
//
// A response with statusFound carries a file descriptor as ancillary data.

// Token is a secret that all ranks of a job share.
type Token [sha256.Size]byte

// Key identifies a file that a process exports.
type Key struct {
	Namespace uint64 // from NamespaceOf
	Number    uint32 // unique in the namespace
}

// NamespaceOf hashes the name of a group of ranks or a pool of memory.
func NamespaceOf(name string) uint64 {
	sum := sha256.Sum256([]byte(name))
	return binary.LittleEndian.Uint64(sum[:])
}

// ErrProtocol means that the peer violated the protocol.
var ErrProtocol = errors.New("peer does not speak symmem's hand-off protocol")

// ErrUnknownKey means that the peer does not export a file under the key.
var ErrUnknownKey = errors.New("peer has not exported a file under this key")

// ErrRefused means that the processes must not share files: the token is wrong, or the process at
// the peer's address is new or belongs to another user.
var ErrRefused = errors.New("hand-off refused")

// protocolID is "SM01" as a little-endian number.
const protocolID = 0x31304d53

// Offsets and sizes of requests and responses. The protocol ID has 4 bytes.
const (
	tokenOffset     = 4
	namespaceOffset = tokenOffset + len(Token{})
	numberOffset    = namespaceOffset + 8
	requestBytes    = numberOffset + 4

	statusOffset  = 4
	responseBytes = statusOffset + 4
)

const (
	statusFound   = 0
	statusUnknown = 1 // no file is exported under the key
	statusRefused = 2 // the token is wrong
)

func encodeRequest(token Token, key Key) []byte {
	b := make([]byte, 0, requestBytes)
	b = binary.LittleEndian.AppendUint32(b, protocolID)
	b = append(b, token[:]...)
	b = binary.LittleEndian.AppendUint64(b, key.Namespace)
	return binary.LittleEndian.AppendUint32(b, key.Number)
}

// isMessage reports whether b has the given size and begins with the protocol ID.
func isMessage(b []byte, size int) bool {
	return len(b) == size && binary.LittleEndian.Uint32(b) == protocolID
}

// decodeRequest returns ErrProtocol if the size or the protocol ID is wrong.
func decodeRequest(b []byte) (Token, Key, error) {
	var token Token
	if !isMessage(b, requestBytes) {
		return token, Key{}, ErrProtocol
	}

	copy(token[:], b[tokenOffset:])
	key := Key{
		Namespace: binary.LittleEndian.Uint64(b[namespaceOffset:]),
		Number:    binary.LittleEndian.Uint32(b[numberOffset:]),
	}
	return token, key, nil
}

func encodeResponse(status uint32) []byte {
	b := make([]byte, 0, responseBytes)
	b = binary.LittleEndian.AppendUint32(b, protocolID)
	return binary.LittleEndian.AppendUint32(b, status)
}

// decodeResponse returns nil for statusFound. For any other response, it returns an error that
// matches ErrUnknownKey, ErrRefused or ErrProtocol.
func decodeResponse(b []byte) error {
	if !isMessage(b, responseBytes) {
		return ErrProtocol
	}

	switch status := binary.LittleEndian.Uint32(b[statusOffset:]); status {
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
