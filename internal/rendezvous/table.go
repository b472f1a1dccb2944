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

// clientID identifies a connection to the server. IDs are never reused.
type clientID uint64

// reply contains the bytes to send to a client.
type reply struct {
	to    clientID
	bytes []byte
}

// table holds the contents of a store and executes requests. It does no I/O and has no lock.
//
// If client 1 sends WAIT for a missing key, it becomes a waiter and gets no reply yet. When client
// 2 sets the key, apply returns the reply for client 1. A waiter may send other requests, except
// a second WAIT or BARRIER.
type table struct {
	values         map[string][]byte    // by key
	queues         map[string][][]byte  // by key; queues are not empty
	barriers       map[string]*barrier  // by key
	waiterByClient map[clientID]*waiter // one per waiting client
	waitersByKey   map[string][]*waiter // by missing key, in order of arrival
	replies        []reply              // result of apply, reused by the next call
}

// waiter is a client that waits for keys or at a barrier.
type waiter struct {
	client      clientID
	missingKeys map[string]bool // nil at a barrier
	barrier     *barrier        // nil for a WAIT
}

// barrier blocks clients until enough have arrived. It cannot be reset: each use needs a new key.
type barrier struct {
	arrivalCount int64      // includes clients that have disconnected
	clients      []clientID // blocked
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

// apply executes and takes ownership of a request. The replies are valid until the next call and
// must be sent in order, even after an error. An error requires closing the sender's connection.
func (t *table) apply(from clientID, r *request) ([]reply, error) {
	t.replies = t.replies[:0]
	err := t.dispatch(from, r)
	return t.replies, err
}

// dispatch executes a request and appends to t.replies. The request has the number of keys and
// values that its query requires, such as one key and two values for COMPARE_SET.
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
		t.endWait(from)
		t.addReply(from, []byte{replyCanceled})
	case queryQueuePush:
		t.push(r.keys[0], r.values[0])
	case queryQueuePop:
		t.pop(from, r.keys[0])
	case queryDelete:
		t.deleteKey(from, r.keys[0])
	case queryValidate:
		return errUnexpectedValidate
	default: // GET, MULTI_GET, CHECK and the other queries of read
		t.addReply(from, t.read(r))
	}

	return nil
}

// read returns the reply to a request that does not change the table.
func (t *table) read(r *request) []byte {
	var b []byte
	switch r.query { //nolint:exhaustive // dispatch handles all other queries
	case queryGet, queryMultiGet:
		for _, key := range r.keys {
			b = appendField(b, t.values[key])
		}
	case queryCheck:
		if slices.ContainsFunc(r.keys, t.isMissing) {
			return []byte{replyNotReady}
		}

		return []byte{replyReady}
	case queryNumKeys:
		return appendNumber(nil, int64(len(t.values)))
	case queryPing:
		return binary.LittleEndian.AppendUint32(nil, r.nonce)
	case queryQueueLen:
		return appendNumber(nil, int64(len(t.queues[r.keys[0]])))
	case queryListKeys:
		b = appendNumber(b, int64(len(t.values)))
		for _, key := range slices.Sorted(maps.Keys(t.values)) {
			b = appendField(b, key)
		}
	}

	return b
}

// addReply adds a reply to the result of apply.
func (t *table) addReply(to clientID, b []byte) {
	if len(b) > 0 { // The reply to a MULTI_GET without keys is empty.
		t.replies = append(t.replies, reply{to: to, bytes: b})
	}
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

// compareSet sets key to desired if its current value equals expected, where a missing key counts
// as empty. It returns the value afterwards, or expected if the key is still missing.
func (t *table) compareSet(key string, expected, desired []byte) []byte {
	current, exists := t.values[key]
	if exists && !bytes.Equal(current, expected) {
		return current
	}

	if !exists && len(expected) > 0 {
		return expected
	}

	t.set(key, desired)
	return desired
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

// deleteKey deletes a key and replies with the number of deleted keys: 0 or 1.
func (t *table) deleteKey(from clientID, key string) {
	var deletedCount int64
	if _, exists := t.values[key]; exists {
		deletedCount = 1
	}

	delete(t.values, key)
	t.addReply(from, appendNumber(nil, deletedCount))
}

// push appends a value to the queue under key.
func (t *table) push(key string, value []byte) {
	t.queues[key] = append(t.queues[key], value)
	waiters := t.waitersByKey[key]
	if len(waiters) > 0 {
		first := waiters[0] // Only one client can pop the value, so the others keep waiting.
		t.removeWaiter(first, key)
		t.removeMissingKey(first, key)
	}
}

// pop removes the first value of the queue under key. The reply is the previous length of the
// queue and, if that is not 0, the value.
func (t *table) pop(from clientID, key string) {
	queue := t.queues[key]
	b := appendNumber(nil, int64(len(queue)))
	if len(queue) > 0 {
		b = appendField(b, queue[0])
		queue = queue[1:]
	}

	t.queues[key] = queue
	if len(queue) == 0 {
		delete(t.queues, key)
	}

	t.addReply(from, b)
}
