package rendezvous

import (
	"context"
	"fmt"
	"strings"
)

// userKey adds the slash with which PyTorch's clients, too, send each key.
func userKey(key string) string { return "/" + key }

// fullKeys returns the keys to send. With the client's prefix "run5/", "a" becomes "/run5/a".
func (c *Client) fullKeys(keys ...string) []string {
	full := make([]string, len(keys))
	for i, key := range keys {
		full[i] = userKey(c.keyPrefix + key)
	}

	return full
}

// call sends a request with at least one key and reads the reply with readReply.
func (c *Client) call(ctx context.Context, r *request, readReply func(*decoder) error) error {
	err := r.checkSize()
	if err == nil {
		err = c.roundTrip(ctx, r.encode(nil), readReply)
	}

	return c.wrapError(r, err)
}

func (c *Client) callForValue(ctx context.Context, r *request) (value []byte, err error) {
	readValue := func(d *decoder) (readErr error) {
		d.remainingBytes = maxRequestBytes // Earlier replies have reduced the decoder's limit.
		value, readErr = d.readField("value", maxValueBytes)
		return readErr
	}
	err = c.call(ctx, r, readValue)
	return value, err
}

// wrapError adds the request and the store's address to err, unless err is nil.
func (c *Client) wrapError(r *request, err error) error {
	if err == nil {
		return nil
	}

	firstKey := strings.TrimPrefix(r.keys[0], "/")
	others := ""
	if len(r.keys) > 1 {
		others = fmt.Sprintf(" and %d more keys", len(r.keys)-1)
	}

	return fmt.Errorf("sending %s for key %.100q%s to the store at %s: %w",
		r.query, firstKey, others, c.addr, err)
}

// Set stores value under key and waits until the server has stored it.
func (c *Client) Set(ctx context.Context, key string, value []byte) error {
	r := &request{query: querySet, keys: c.fullKeys(key), values: [][]byte{value}}
	err := r.checkSize()
	if err == nil {
		// SET has no reply, but the reply to a subsequent PING confirms it.
		setAndPing, readReply := appendPing(r.encode(nil))
		err = c.roundTrip(ctx, setAndPing, readReply)
	}

	return c.wrapError(r, err)
}

// Get waits until key is set and returns its value.
func (c *Client) Get(ctx context.Context, key string) (value []byte, err error) {
	if err := c.Wait(ctx, key); err != nil {
		return nil, err
	}

	return c.callForValue(ctx, &request{query: queryGet, keys: c.fullKeys(key)})
}

// Add adds delta to the decimal number stored under key and returns the sum. A missing key counts
// as 0. If the value is not a number, the server closes the connection.
func (c *Client) Add(ctx context.Context, key string, delta int64) (sum int64, err error) {
	r := &request{query: queryAdd, keys: c.fullKeys(key), number: delta}
	readSum := func(d *decoder) (readErr error) {
		sum, readErr = d.readNumber()
		return readErr
	}
	err = c.call(ctx, r, readSum)
	return sum, err
}

// CompareSet sets key to desired if the current value is expected, and returns the value of key
// afterwards. An empty expected value also matches a missing key. For any other expected value,
// CompareSet leaves a missing key unset and returns expected.
func (c *Client) CompareSet(
	ctx context.Context, key string, expected, desired []byte,
) (current []byte, err error) {
	values := [][]byte{expected, desired}
	r := &request{query: queryCompareSet, keys: c.fullKeys(key), values: values}
	return c.callForValue(ctx, r)
}

// Wait waits until all keys are set. Without keys, it returns nil at once.
func (c *Client) Wait(ctx context.Context, keys ...string) error {
	if len(keys) == 0 {
		return nil
	}

	r := &request{query: queryWait, keys: c.fullKeys(keys...)}
	err := r.checkSize()
	if err == nil {
		err = c.waitForFullKeys(ctx, r.keys)
	}

	return c.wrapError(r, err)
}

func (c *Client) waitForFullKeys(ctx context.Context, fullKeys []string) error {
	ctx, cancel := withDefaultTimeout(ctx)
	defer cancel()
	l, err := c.acquireLink(ctx)
	if err != nil {
		return err
	}

	err = l.wait(ctx, fullKeys)
	return c.releaseLink(l, err)
}

// Peek returns the value of key without waiting, and whether the key is set. If the key is not set,
// the value is meaningless.
func (c *Client) Peek(ctx context.Context, key string) (value []byte, isSet bool, err error) {
	// A GET returns an empty value for a missing key, but this CompareSet returns noValue. It never
	// changes the store. No caller stores noValue.
	noValue := []byte("?")
	value, err = c.CompareSet(ctx, key, noValue, noValue)
	isSet = err == nil && string(value) != string(noValue)
	return value, isSet, err
}
