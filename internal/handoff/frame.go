package handoff

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// A process fetches a file from a Server by a request, and gets a response. Both have fixed sizes:
//
//	request     "SM01", token of 32 bytes, namespace of 8 bytes, number of 4 bytes
//	response    "SM01", status of 4 bytes
//
// The namespace and the number are the key of the file. If the Server has the file, the kernel
// sends a descriptor of it together with the response. Numbers are little-endian.

// Token is a secret that all ranks of a job share.
type Token [sha256.Size]byte

// Key identifies a file that a process exports.
type Key struct {
	Namespace uint64 // identifies a group or pool; see NamespaceOf
	Number    uint32 // number of the file in the namespace
}

// NamespaceOf returns the Key.Namespace of the group or pool with the given name. It is a hash of
// the name, so that keys have a fixed size.
func NamespaceOf(name string) uint64 {
	sum := sha256.Sum256([]byte(name))
	return binary.LittleEndian.Uint64(sum[:])
}

// ErrProtocol means that the peer violated the protocol.
var ErrProtocol = errors.New("peer does not speak symmem's hand-off protocol")

// ErrUnknownKey means that the peer exports no file under the key.
var ErrUnknownKey = errors.New("peer has not exported a file under this key")

// ErrRefused means that the two processes must not share files: the peer has refused this process's
// token, belongs to another user, or is another process than before.
var ErrRefused = errors.New("hand-off refused")

const (
	protocolID    = 0x31304d53               // "SM01" in little-endian: the name and the version
	requestBytes  = 4 + len(Token{}) + 8 + 4 // protocolID, token, and the fields of Key
	responseBytes = 4 + 4                    // protocolID and status

	statusFound   = 0 // a descriptor of the file comes with the response
	statusUnknown = 1 // no file is exported under the key
	statusRefused = 2 // the token is wrong
)

// encodeRequest returns a request.
func encodeRequest(token Token, key Key) []byte {
	b := make([]byte, 0, requestBytes)
	b = binary.LittleEndian.AppendUint32(b, protocolID)
	b = append(b, token[:]...)
	b = binary.LittleEndian.AppendUint64(b, key.Namespace)
	return binary.LittleEndian.AppendUint32(b, key.Number)
}

// decodeRequest decodes a request. It returns ErrProtocol if the size or the protocol ID is wrong.
func decodeRequest(b []byte) (Token, Key, error) {
	var token Token
	if len(b) != requestBytes || binary.LittleEndian.Uint32(b) != protocolID {
		return token, Key{}, ErrProtocol
	}

	n := copy(token[:], b[4:]) // after the protocol ID
	encodedKey := b[4+n:]
	key := Key{
		Namespace: binary.LittleEndian.Uint64(encodedKey),
		Number:    binary.LittleEndian.Uint32(encodedKey[8:]),
	}
	return token, key, nil
}

// encodeResponse returns a response.
func encodeResponse(status uint32) []byte {
	b := make([]byte, 0, responseBytes)
	b = binary.LittleEndian.AppendUint32(b, protocolID)
	return binary.LittleEndian.AppendUint32(b, status)
}

// decodeResponse returns nil for statusFound. For another status or an invalid response, it returns
// an error that matches ErrUnknownKey, ErrRefused or ErrProtocol.
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
