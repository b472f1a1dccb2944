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

// A table executes the requests of clients. Suppose that client 1 sends the request WAIT for the
// key "a", which is not set. There is no reply yet: client 1 becomes a waiter. Later, client 2
// sends SET for "a". The table stores the value and returns a reply for client 1, which ends the
// wait.
//
// While a client waits, the table replies to its other requests, as PyTorch's LibUV server does.
// But a second wait is an error, because the client could not distinguish the two replies.

// clientID identifies a connection of a server. It is never reused.
type clientID uint64

// reply contains the bytes to send to a client.
type reply struct {
	to    clientID
	bytes []byte
}

// table holds a store's state and computes the replies to requests. It does no I/O and has no
// lock.
type table struct {
	values         map[string][]byte    // by key
	queues         map[string][][]byte  // by key; an empty queue is deleted
	barriers       map[string]*barrier  // by key
	waiterByClient map[clientID]*waiter // clients whose wait has not ended
	// waitersByKey lists the waiters for each missing key in the order of their requests.
	waitersByKey map[string][]*waiter
	replies      []reply // result of apply, reused by the next call
}

// waiter is a client that waits for keys or at a barrier.
type waiter struct {
	client      clientID
	missingKeys map[string]bool // keys for which it waits; nil at a barrier
	barrier     *barrier        // barrier at which it waits; nil if it waits for keys
}

// barrier counts the clients that have arrived at it. The count is never reset, so each use needs
// a new key.
type barrier struct {
	arrivalCount int64      // includes clients that have disconnected
	clients      []clientID // clients that wait for others to arrive
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

// apply executes a request and takes ownership of it. The replies are valid until the next call and
// must be sent in order. After an error, the caller must close the client's connection, and send
// the replies to other clients.
func (t *table) apply(from clientID, r *request) ([]reply, error) {
	t.replies = t.replies[:0]
	err := t.dispatch(from, r)
	return t.replies, err
}

// dispatch executes a request and appends the replies to t.replies.
//
// The decoder has checked the lengths of r.keys and r.values. For example, a COMPARE_SET has one
// key and two values. So the indices below are in range.
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
		t.delete(from, r.keys[0])
	case queryValidate:
		return errUnexpectedValidate
	default:
		t.read(from, r)
	}

	return nil
}

// read executes a request that does not change the table.
func (t *table) read(from clientID, r *request) {
	var b []byte
	switch r.query { //nolint:exhaustive // dispatch handles all other queries
	case queryGet, queryMultiGet:
		for _, key := range r.keys {
			b = appendField(b, t.values[key])
		}
	case queryCheck:
		b = append(b, replyReady)
		if slices.ContainsFunc(r.keys, t.isMissing) {
			b[0] = replyNotReady
		}
	case queryNumKeys:
		b = appendNumber(b, int64(len(t.values)))
	case queryPing:
		b = binary.LittleEndian.AppendUint32(b, r.nonce)
	case queryQueueLen:
		b = appendNumber(b, int64(len(t.queues[r.keys[0]])))
	case queryListKeys:
		b = appendNumber(b, int64(len(t.values)))
		for _, key := range slices.Sorted(maps.Keys(t.values)) {
			b = appendField(b, key)
		}
	}

	t.addReply(from, b)
}

// addReply adds a reply to the result of apply.
func (t *table) addReply(to clientID, b []byte) {
	if len(b) > 0 { // The reply to a MULTI_GET without keys is empty.
		t.replies = append(t.replies, reply{to: to, bytes: b})
	}
}

// isMissing reports whether a WAIT for key has to wait. If the key has a queue, it is not missing.
func (t *table) isMissing(key string) bool {
	_, exists := t.values[key]
	return !exists && len(t.queues[key]) == 0
}

// set stores a value and ends the waits for its key.
func (t *table) set(key string, value []byte) {
	t.values[key] = value
	t.wakeWaiters(key)
}

// compareSet sets key to desired if its value equals expected. A missing key equals an empty
// expected value. compareSet returns the value of key afterwards, or expected if key is still
// missing.
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

// add adds delta to the number under key, or to 0 if the key is missing. It replies with the sum,
// which wraps around if it overflows.
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

// delete removes a key, and replies with the number of keys that it has removed: 0 or 1.
func (t *table) delete(from clientID, key string) {
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
		first := waiters[0] // no other one, because only one client can pop the value
		t.removeWaiter(first, key)
		t.removeMissingKey(first, key)
	}
}

// pop removes the first value of the queue under key. It replies with the length that the queue
// had, followed by the removed value unless the queue was empty.
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
