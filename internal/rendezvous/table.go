package rendezvous

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// clientID identifies the connection of a client. IDs are never reused.
type clientID uint64

type reply struct {
	to    clientID
	bytes []byte
}

// table holds the keys and values of a store and executes requests. It does no I/O and has no lock.
//
// If client 1 sends a WAIT for a missing key, apply returns no reply, but records a waiter. When
// client 2 sets the key, apply returns the reply to client 1. Until then, client 1 may send any
// request except WAIT and BARRIER.
type table struct {
	values         map[string][]byte   // by key
	queues         map[string][][]byte // by key; an empty queue has no entry
	barriers       map[string]*barrier // by key
	waiterByClient map[clientID]*waiter
	waitersByKey   map[string][]*waiter // by missing key; oldest first
	replies        []reply              // returned by apply and overwritten by the next call
}

// waiter is a client whose WAIT or BARRIER has no reply yet.
type waiter struct {
	client      clientID
	missingKeys map[string]bool // nil for a BARRIER
	barrier     *barrier        // nil for a WAIT
}

// barrier blocks clients until enough have arrived. Then it stays open.
type barrier struct {
	arrivalCount int64 // also counts clients that have disconnected since
	blocked      []clientID
}

// Errors of requests that violate the protocol.
var (
	errSecondWait         = errors.New("a second wait before the first has ended")
	errNotANumber         = errors.New("ADD to a value that is not a number")
	errUnexpectedValidate = errors.New("VALIDATE after the handshake")
	errAppendTooBig       = errors.New("APPEND would make a value too long")
)

func newTable() *table {
	return &table{
		values:         map[string][]byte{},
		queues:         map[string][][]byte{},
		barriers:       map[string]*barrier{},
		waiterByClient: map[clientID]*waiter{},
		waitersByKey:   map[string][]*waiter{},
	}
}

// apply executes a request and returns replies to its sender and to waiters. The caller must send
// them before the next call, and after an error close the sender's connection. It must not change
// r.values afterwards.
func (t *table) apply(from clientID, r *request) ([]reply, error) {
	t.replies = t.replies[:0]
	err := t.dispatch(from, r)
	return t.replies, err
}

// dispatch executes a request and appends to t.replies. The decoder guarantees the number of keys
// and values, such as one key and two values for COMPARE_SET.
func (t *table) dispatch(from clientID, r *request) error {
	switch r.query {
	case querySet, queryMultiSet:
		for i, key := range r.keys {
			t.set(key, r.values[i])
		}
	case queryCompareSet:
		expected, desired := r.values[0], r.values[1]
		current := t.compareSet(r.keys[0], expected, desired)
		t.addReply(from, appendField(nil, current))
	case queryAdd:
		return t.add(from, r.keys[0], r.number)
	case queryAppend:
		return t.appendValue(r.keys[0], r.values[0])
	case queryWait:
		return t.startWait(from, r.keys)
	case queryBarrier:
		return t.arriveAtBarrier(from, r.keys[0], r.number)
	case queryCancelWait:
		t.cancelWait(from)
		t.addReply(from, []byte{replyCanceled})
	case queryQueuePush:
		t.push(r.keys[0], r.values[0])
	case queryQueuePop:
		t.addReply(from, t.pop(r.keys[0]))
	case queryDelete:
		t.addReply(from, appendNumber(nil, t.deleteKey(r.keys[0])))
	case queryGet, queryMultiGet:
		t.addReply(from, t.encodeValues(r.keys))
	case queryCheck:
		t.addReply(from, []byte{t.checkReply(r.keys)})
	case queryNumKeys:
		t.addReply(from, appendNumber(nil, int64(len(t.values))))
	case queryListKeys:
		t.addReply(from, t.encodeKeys())
	case queryQueueLen:
		queue := t.queues[r.keys[0]]
		t.addReply(from, appendNumber(nil, int64(len(queue))))
	case queryPing:
		t.addReply(from, binary.LittleEndian.AppendUint32(nil, r.nonce))
	default: // VALIDATE: the decoder rejects unknown queries.
		return errUnexpectedValidate
	}

	return nil
}

func (t *table) addReply(to clientID, b []byte) {
	if len(b) > 0 { // The reply to a MULTI_GET without keys is empty.
		t.replies = append(t.replies, reply{to: to, bytes: b})
	}
}

// encodeValues encodes a missing key as an empty value.
func (t *table) encodeValues(keys []string) []byte {
	var b []byte
	for _, key := range keys {
		b = appendField(b, t.values[key])
	}

	return b
}

// encodeKeys encodes the number of keys with values, and these keys in order.
func (t *table) encodeKeys() []byte {
	b := appendNumber(nil, int64(len(t.values)))
	for _, key := range slices.Sorted(maps.Keys(t.values)) {
		b = appendField(b, key)
	}

	return b
}

func (t *table) checkReply(keys []string) byte {
	if slices.ContainsFunc(keys, t.isMissing) {
		return replyNotReady
	}

	return replyReady
}

// isMissing reports whether key has neither a value nor a queue.
func (t *table) isMissing(key string) bool {
	_, exists := t.values[key]
	return !exists && len(t.queues[key]) == 0
}

// set stores a value and wakes the waiters for its key.
func (t *table) set(key string, value []byte) {
	t.values[key] = value
	t.wakeWaiters(key)
}

// compareSet sets key to desired if its value is expected. A missing key counts as an empty value.
// The result is the value of key afterwards, or expected if key is still missing.
func (t *table) compareSet(key string, expected, desired []byte) []byte {
	current, exists := t.values[key]
	switch {
	case bytes.Equal(current, expected):
		t.set(key, desired)
		return desired
	case exists:
		return current
	}

	return expected
}

// add adds delta to the number under key, or to 0 if the key is missing, and replies with the sum.
// Overflow wraps around.
func (t *table) add(from clientID, key string, delta int64) error {
	sum := delta
	if current, exists := t.values[key]; exists {
		number, err := strconv.ParseInt(string(current), 10, 64)
		if err != nil {
			return fmt.Errorf("%w: %q", errNotANumber, key)
		}

		sum += number
	}

	t.addReply(from, appendNumber(nil, sum))
	t.set(key, strconv.AppendInt(nil, sum, 10))
	return nil
}

// appendValue appends value to the value of key, or to an empty value if the key is missing.
func (t *table) appendValue(key string, value []byte) error {
	newValue := slices.Concat(t.values[key], value)
	if len(newValue) > maxValueBytes {
		return errAppendTooBig
	}

	t.set(key, newValue)
	return nil
}

// deleteKey returns 1, or 0 if the key had no value.
func (t *table) deleteKey(key string) (deletedCount int64) {
	if _, exists := t.values[key]; !exists {
		return 0
	}

	delete(t.values, key)
	return 1
}

// push appends a value to the queue under key.
func (t *table) push(key string, value []byte) {
	t.queues[key] = append(t.queues[key], value)
	waiters := t.waitersByKey[key]
	if len(waiters) > 0 {
		oldest := waiters[0] // Only one client can pop the value, so the others keep waiting.
		t.unlistWaiter(oldest, key)
		t.removeMissingKey(oldest, key)
	}
}

// pop removes the first value of the queue under key. The encoded reply is the previous length of
// the queue, followed by the value if there was one.
func (t *table) pop(key string) []byte {
	queue := t.queues[key]
	b := appendNumber(nil, int64(len(queue)))
	if len(queue) > 0 {
		b = appendField(b, queue[0])
		t.queues[key] = queue[1:]
	}

	if len(t.queues[key]) == 0 {
		delete(t.queues, key)
	}

	return b
}
