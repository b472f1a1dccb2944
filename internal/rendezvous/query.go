package rendezvous

import (
	"encoding/binary"
	"fmt"
)

// query is the first byte of a request. PyTorch's torch/csrc/distributed/c10d/TCPStoreBackend.hpp
// and its LibUV server define the protocol.
type query byte

// Every server since PyTorch 2.4 supports the queries up to queryPing, except queryAppend. The
// client sends only these.
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
	queryCount
)

// Limits of a request. PyTorch's LibUV server has the same limits except maxRequestBytes.
const (
	maxKeyBytes     = 8 << 10
	maxValueBytes   = 8 << 20
	maxKeys         = 128 << 10
	maxRequestBytes = 256 << 20
)

// magic identifies the protocol in the first request of a connection.
const magic uint32 = 0x3C85F7CE

// The one-byte answers.
const (
	replyReady    = 0 // CHECK: all keys are set.
	replyNotReady = 1 // CHECK: some key is missing.
	replyStop     = 0 // WAIT, BARRIER: the wait is over.
	replyCanceled = 1 // CANCEL_WAIT: the WAIT has been canceled, or had already been answered.
)

// shape describes the fields that follow the query byte: a nonce, the number of keys, each key with
// its values, and a number, in this order. Most queries have only some of these fields.
type shape struct {
	name    string
	nonce   bool // u32
	counted bool // u64 n, then n keys
	keys    int  // number of keys unless counted is set
	values  int  // for each key
	number  bool // i64
}

var shapes = [queryCount]shape{
	queryValidate:   {name: "VALIDATE", nonce: true},
	querySet:        {name: "SET", keys: 1, values: 1},
	queryCompareSet: {name: "COMPARE_SET", keys: 1, values: 2},
	queryGet:        {name: "GET", keys: 1},
	queryAdd:        {name: "ADD", keys: 1, number: true},
	queryCheck:      {name: "CHECK", counted: true},
	queryWait:       {name: "WAIT", counted: true},
	queryNumKeys:    {name: "GETNUMKEYS"},
	queryDelete:     {name: "DELETE_KEY", keys: 1},
	queryAppend:     {name: "APPEND", keys: 1, values: 1},
	queryMultiGet:   {name: "MULTI_GET", counted: true},
	queryMultiSet:   {name: "MULTI_SET", counted: true, values: 1},
	queryCancelWait: {name: "CANCEL_WAIT"},
	queryPing:       {name: "PING", nonce: true},
	queryQueuePush:  {name: "QUEUE_PUSH", keys: 1, values: 1},
	queryQueuePop:   {name: "QUEUE_POP", keys: 1},
	queryQueueLen:   {name: "QUEUE_LEN", keys: 1},
	queryListKeys:   {name: "LIST_KEYS"},
	queryBarrier:    {name: "BARRIER", keys: 1, number: true},
}

func (q query) String() string {
	if q < queryCount {
		return shapes[q].name
	}
	return fmt.Sprintf("query %d", byte(q))
}

type request struct {
	query  query
	nonce  uint32
	keys   []string
	values [][]byte // shape.values for each key, in the order of the keys
	number int64    // for ADD the delta, for BARRIER the number of ranks
}

func (r *request) append(b []byte) []byte {
	s := &shapes[r.query]
	b = append(b, byte(r.query))
	if s.nonce {
		b = binary.LittleEndian.AppendUint32(b, r.nonce)
	}
	if s.counted {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(r.keys)))
	}
	for i, key := range r.keys {
		b = appendField(b, key)
		for _, value := range r.values[i*s.values : (i+1)*s.values] {
			b = appendField(b, value)
		}
	}
	if s.number {
		b = appendNumber(b, r.number)
	}
	return b
}

// check returns ErrTooLarge if the request would make a server close the connection.
func (r *request) check() error {
	if len(r.keys) > maxKeys {
		return fmt.Errorf("%d keys (at most %d): %w", len(r.keys), maxKeys, ErrTooLarge)
	}
	total := 0
	for _, key := range r.keys {
		if len(key) > maxKeyBytes {
			return fmt.Errorf("key of %d bytes (at most %d): %w",
				len(key), maxKeyBytes, ErrTooLarge)
		}
		total += len(key)
	}
	for _, value := range r.values {
		if len(value) > maxValueBytes {
			return fmt.Errorf("value of %d bytes (at most %d): %w",
				len(value), maxValueBytes, ErrTooLarge)
		}
		total += len(value)
	}
	if total > maxRequestBytes {
		return fmt.Errorf("request of %d bytes (at most %d): %w",
			total, maxRequestBytes, ErrTooLarge)
	}
	return nil
}

func appendField[T string | []byte](b []byte, field T) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(len(field)))
	return append(b, field...)
}

func appendNumber(b []byte, number int64) []byte {
	return binary.LittleEndian.AppendUint64(b, uint64(number))
}
