package rendezvous

import (
	"context"
	"fmt"
	"strings"
)

// A request contains full keys: a slash, the prefix of the Client, and the key. If the prefix is
// "run5/", a Set of the key "a" sends "/run5/a". PyTorch's clients add the slash, too.

// userKey adds the slash to a key.
func userKey(key string) string { return "/" + key }

// fullKeys adds the slash and the client's prefix to keys.
func (c *Client) fullKeys(keys ...string) []string {
	full := make([]string, len(keys))
	for i, key := range keys {
		full[i] = userKey(c.keyPrefix + key)
	}

	return full
}

// call sends a request and calls readReply to read the reply. The request must have a key.
func (c *Client) call(ctx context.Context, r *request, readReply func(*decoder) error) error {
	err := r.checkSize()
	if err == nil {
		err = c.roundTrip(ctx, r.encode(nil), readReply)
	}

	return c.wrapError(r, err)
}

// wrapError adds a description of a request to its error. It returns nil if err is nil.
func (c *Client) wrapError(r *request, err error) error {
	if err == nil {
		return nil
	}

	key := strings.TrimPrefix(r.keys[0], userKey("")) // without the slash
	others := ""
	if len(r.keys) > 1 {
		others = fmt.Sprintf(" and %d more keys", len(r.keys)-1)
	}

	return fmt.Errorf("sending %s for key %.100q%s to the store at %s: %w",
		r.query, key, others, c.addr, err)
}

// Set stores value under key and waits until the server has stored it.
func (c *Client) Set(ctx context.Context, key string, value []byte) error {
	r := &request{query: querySet, keys: c.fullKeys(key), values: [][]byte{value}}
	err := r.checkSize()
	if err == nil {
		// SET has no reply. The reply to a PING after it shows that the server has stored the value.
		b, readReply := appendPing(r.encode(nil))
		err = c.roundTrip(ctx, b, readReply)
	}

	return c.wrapError(r, err)
}

// Get waits until key is set and returns its value.
func (c *Client) Get(ctx context.Context, key string) (value []byte, err error) {
	if err := c.Wait(ctx, key); err != nil {
		return nil, err
	}

	r := &request{query: queryGet, keys: c.fullKeys(key)}
	err = c.call(ctx, r, func(d *decoder) (err error) {
		value, err = readValue(d)
		return err
	})
	return value, err
}

// readValue reads a reply that consists of one value.
func readValue(d *decoder) ([]byte, error) {
	d.remainingBytes = maxRequestBytes // resets the limit, which earlier replies have reduced
	return d.readField("value", maxValueBytes)
}

// Add adds delta to the decimal number stored under key and returns the sum. A missing key counts
// as 0. If the value is not a number, the server closes the connection.
func (c *Client) Add(ctx context.Context, key string, delta int64) (sum int64, err error) {
	r := &request{query: queryAdd, keys: c.fullKeys(key), number: delta}
	err = c.call(ctx, r, func(d *decoder) (err error) {
		sum, err = d.readNumber()
		return err
	})
	return sum, err
}

// CompareSet stores desired if the value of key equals expected. A missing key equals an empty
// expected value. CompareSet returns the value of key afterwards, or expected if key is still
// missing.
func (c *Client) CompareSet(
	ctx context.Context, key string, expected, desired []byte,
) (current []byte, err error) {
	values := [][]byte{expected, desired}
	r := &request{query: queryCompareSet, keys: c.fullKeys(key), values: values}
	err = c.call(ctx, r, func(d *decoder) (err error) {
		current, err = readValue(d)
		return err
	})
	return current, err
}

// Wait waits until all keys are set. Without keys, it returns nil at once.
func (c *Client) Wait(ctx context.Context, keys ...string) error {
	if len(keys) == 0 {
		return nil
	}

	r := &request{query: queryWait, keys: c.fullKeys(keys...)}
	err := r.checkSize()
	if err == nil {
		err = c.wait(ctx, r.keys)
	}

	return c.wrapError(r, err)
}

// wait sends a WAIT for the keys, which are results of fullKeys.
func (c *Client) wait(ctx context.Context, keys []string) error {
	ctx, cancel := withDefaultTimeout(ctx)
	defer cancel()
	l, err := c.acquireLink(ctx)
	if err != nil {
		return err
	}

	err = l.wait(ctx, keys)
	return c.releaseLink(l, err)
}

// Peek returns the value of key without waiting, and whether the key is set. If the key is not set,
// the value is meaningless.
func (c *Client) Peek(ctx context.Context, key string) (value []byte, isSet bool, err error) {
	// A GET would not distinguish a missing key from an empty value. This CompareSet does: it returns
	// noValue, the expected value, if the key is missing. No key has this value. CompareSet would
	// replace it by the same value, so it never changes the store.
	noValue := []byte("?")
	value, err = c.CompareSet(ctx, key, noValue, noValue)
	isSet = err == nil && string(value) != string(noValue)
	return value, isSet, err
}
