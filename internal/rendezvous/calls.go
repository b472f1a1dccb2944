package rendezvous

import (
	"context"
	"fmt"
)

// userKey prepends a slash, as PyTorch's clients do with every key.
func userKey(key string) string { return "/" + key }

func (c *Client) keys(keys ...string) []string {
	full := make([]string, len(keys))
	for i, key := range keys {
		full[i] = userKey(c.prefix + key)
	}
	return full
}

func (c *Client) call(ctx context.Context, r *request, read func(*decoder) error) error {
	err := r.check()
	if err == nil {
		err = c.roundTrip(ctx, r.append(nil), read)
	}
	return c.wrapError(r, err)
}

func (c *Client) wrapError(r *request, err error) error {
	if err == nil {
		return nil
	}
	key, suffix := r.keys[0][1:], ""
	if len(r.keys) > 1 {
		suffix = fmt.Sprintf(" and %d more", len(r.keys)-1)
	}
	return fmt.Errorf("asking the store at %s for %s %.100q%s: %w", c.addr, r.query, key, suffix, err)
}

// Set stores value under key. The server does not answer a SET, so Set also sends a PING and waits
// for its answer.
func (c *Client) Set(ctx context.Context, key string, value []byte) error {
	r := &request{query: querySet, keys: c.keys(key), values: [][]byte{value}}
	err := r.check()
	if err == nil {
		b, read := appendPing(r.append(nil))
		err = c.roundTrip(ctx, b, read)
	}
	return c.wrapError(r, err)
}

// Get waits until key is set and returns its value, which the caller owns.
func (c *Client) Get(ctx context.Context, key string) (value []byte, err error) {
	if err := c.Wait(ctx, key); err != nil {
		return nil, err
	}
	r := &request{query: queryGet, keys: c.keys(key)}
	err = c.call(ctx, r, func(d *decoder) (err error) {
		value, err = readField(d)
		return err
	})
	return value, err
}

func readField(d *decoder) ([]byte, error) {
	d.budget = maxRequestBytes
	return d.field("value", maxValueBytes)
}

// Add adds delta to the decimal number stored under key and returns the sum. A missing key counts
// as 0. If the stored value is not a number, the server closes the connection.
func (c *Client) Add(ctx context.Context, key string, delta int64) (sum int64, err error) {
	r := &request{query: queryAdd, keys: c.keys(key), number: delta}
	err = c.call(ctx, r, func(d *decoder) (err error) {
		sum, err = d.number()
		return err
	})
	return sum, err
}

// CompareSet stores desired if the value of key is expected, or if key is missing and expected is
// empty. It returns the value that key has afterwards. If key is missing and expected is not empty,
// CompareSet stores nothing and, like TCPStore, returns expected.
func (c *Client) CompareSet(
	ctx context.Context, key string, expected, desired []byte,
) (current []byte, err error) {
	values := [][]byte{expected, desired}
	r := &request{query: queryCompareSet, keys: c.keys(key), values: values}
	err = c.call(ctx, r, func(d *decoder) (err error) {
		current, err = readField(d)
		return err
	})
	return current, err
}

// Wait waits until all keys are set.
func (c *Client) Wait(ctx context.Context, keys ...string) error {
	if len(keys) == 0 {
		return nil
	}
	r := &request{query: queryWait, keys: c.keys(keys...)}
	err := r.check()
	if err == nil {
		err = c.wait(ctx, r.keys)
	}
	return c.wrapError(r, err)
}

func (c *Client) wait(ctx context.Context, keys []string) error {
	ctx, cancel := withDefaultTimeout(ctx)
	defer cancel()
	l, err := c.acquire(ctx)
	if err != nil {
		return err
	}
	return c.release(l, l.wait(ctx, keys))
}

// Peek returns a key's value and whether the key is set. It does not wait.
func (c *Client) Peek(ctx context.Context, key string) (value []byte, set bool, err error) {
	// This CompareSet cannot change the store. Unlike GET, it distinguishes a missing key from an
	// empty value.
	probe := []byte("?")
	value, err = c.CompareSet(ctx, key, probe, probe)
	return value, err == nil && string(value) != string(probe), err
}
