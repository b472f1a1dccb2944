package rendezvous

import (
	"encoding/binary"
	"fmt"
)

// A request consists of a query, a byte that identifies the operation, and the fields of that
// operation. For example, this request adds 5 to the number under the key "/n":
//
//	04                         query ADD
//	02 00 00 00 00 00 00 00    length of the key
//	2f 6e                      key
//	05 00 00 00 00 00 00 00    number
//
// This is the protocol of PyTorch's TCPStore, defined by TCPStoreBackend.hpp and the LibUV server
// in torch/csrc/distributed/c10d.

type query byte

// The client sends only queries that every server since PyTorch 2.4 supports: those up to
// queryPing, except queryAppend.
const (
	queryValidate query = iota
	querySet
	queryCompareSet
	queryGet
	queryAdd
	queryCheck
	queryWait
	queryNumKeys
	queryDelete
	queryAppend
	queryMultiGet
	queryMultiSet
	queryCancelWait
	queryPing
	queryQueuePush
	queryQueuePop
	queryQueueLen
	queryListKeys
	queryBarrier
	queryCount // number of queries
)

// The limits of PyTorch's LibUV server.
const (
	maxKeyBytes   = 8 << 10   // length of a key
	maxValueBytes = 8 << 20   // length of a value
	maxKeys       = 128 << 10 // number of keys of a request
)

// maxRequestBytes is symmem's limit for the total length of keys and values in a request.
const maxRequestBytes = 256 << 20

// protocolMagic is the nonce that VALIDATE, the first request of each connection, must contain.
const protocolMagic uint32 = 0x3C85F7CE

// One-byte replies.
const (
	replyReady    = 0 // to CHECK: all keys are set
	replyNotReady = 1 // to CHECK: some key is missing
	replyWaitOver = 0 // to WAIT and BARRIER
	replyCanceled = 1 // to CANCEL_WAIT, even if no WAIT is pending
)

// requestFormat describes which fields follow the query of a request. The order of fields is:
// nonce, number of keys, each key with its values, number.
type requestFormat struct {
	name         string // of the query, for errors
	hasNonce     bool   // a uint32
	hasKeyCount  bool   // number of keys, a uint64
	fixedKeys    int    // number of keys if hasKeyCount is false
	valuesPerKey int
	hasNumber    bool // an int64
}

var requestFormats = [queryCount]requestFormat{
	queryValidate:   {name: "VALIDATE", hasNonce: true},
	querySet:        {name: "SET", fixedKeys: 1, valuesPerKey: 1},
	queryCompareSet: {name: "COMPARE_SET", fixedKeys: 1, valuesPerKey: 2},
	queryGet:        {name: "GET", fixedKeys: 1},
	queryAdd:        {name: "ADD", fixedKeys: 1, hasNumber: true},
	queryCheck:      {name: "CHECK", hasKeyCount: true},
	queryWait:       {name: "WAIT", hasKeyCount: true},
	queryNumKeys:    {name: "GETNUMKEYS"},
	queryDelete:     {name: "DELETE_KEY", fixedKeys: 1},
	queryAppend:     {name: "APPEND", fixedKeys: 1, valuesPerKey: 1},
	queryMultiGet:   {name: "MULTI_GET", hasKeyCount: true},
	queryMultiSet:   {name: "MULTI_SET", hasKeyCount: true, valuesPerKey: 1},
	queryCancelWait: {name: "CANCEL_WAIT"},
	queryPing:       {name: "PING", hasNonce: true},
	queryQueuePush:  {name: "QUEUE_PUSH", fixedKeys: 1, valuesPerKey: 1},
	queryQueuePop:   {name: "QUEUE_POP", fixedKeys: 1},
	queryQueueLen:   {name: "QUEUE_LEN", fixedKeys: 1},
	queryListKeys:   {name: "LIST_KEYS"},
	queryBarrier:    {name: "BARRIER", fixedKeys: 1, hasNumber: true},
}

func (q query) String() string {
	if q < queryCount {
		return requestFormats[q].name
	}

	return fmt.Sprintf("query %d", byte(q))
}

// request contains a request's fields. Those that are not in its requestFormat are zero.
type request struct {
	query  query
	nonce  uint32 // VALIDATE: protocolMagic; PING: a number that the reply repeats
	keys   []string
	values [][]byte // in the order of their keys
	number int64    // ADD: number to add; BARRIER: number of ranks
}

// encode appends the request to b.
func (r *request) encode(b []byte) []byte {
	format := &requestFormats[r.query]
	b = append(b, byte(r.query))
	if format.hasNonce {
		b = binary.LittleEndian.AppendUint32(b, r.nonce)
	}

	if format.hasKeyCount {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(r.keys)))
	}

	for i, key := range r.keys {
		b = appendField(b, key)
		firstValue := i * format.valuesPerKey
		for _, value := range r.values[firstValue : firstValue+format.valuesPerKey] {
			b = appendField(b, value)
		}
	}

	if format.hasNumber {
		b = appendNumber(b, r.number)
	}

	return b
}

// checkSize returns ErrTooLarge if the request exceeds a limit. A server would close the connection
// without an explanation.
func (r *request) checkSize() error {
	if len(r.keys) > maxKeys {
		return fmt.Errorf("%d keys, at most %d are allowed: %w", len(r.keys), maxKeys, ErrTooLarge)
	}

	total := 0
	for _, key := range r.keys {
		if len(key) > maxKeyBytes {
			return fmt.Errorf("a key of %d bytes, at most %d are allowed: %w",
				len(key), maxKeyBytes, ErrTooLarge)
		}

		total += len(key)
	}

	for _, value := range r.values {
		if len(value) > maxValueBytes {
			return fmt.Errorf("a value of %d bytes, at most %d are allowed: %w",
				len(value), maxValueBytes, ErrTooLarge)
		}

		total += len(value)
	}

	if total > maxRequestBytes {
		return fmt.Errorf("a request of %d bytes, at most %d are allowed: %w",
			total, maxRequestBytes, ErrTooLarge)
	}

	return nil
}

// appendField appends the length of a key or value, as a uint64, and its bytes.
func appendField[T string | []byte](b []byte, field T) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(len(field)))
	return append(b, field...)
}

func appendNumber(b []byte, number int64) []byte {
	return binary.LittleEndian.AppendUint64(b, uint64(number))
}
