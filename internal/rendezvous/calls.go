package rendezvous

import (
	"context"
	"fmt"
	"strings"
)

// userKey has the slash that PyTorch's clients put before every key of their user.
func userKey(key string) string { return "/" + key }

func (c *Client) keys(keys ...string) []string {
	long := make([]string, len(keys))
	for i, key := range keys {
		long[i] = userKey(c.prefix + key)
	}
	return long
}

// call asks one request about one key, and adds to an error what was asked of whom.
func (c *Client) call(ctx context.Context, r *request, read func(*decoder) error) error {
	err := r.check()
	if err == nil {
		err = c.ask(ctx, r.append(nil), read)
	}
	return c.explain(r, err)
}

func (c *Client) explain(r *request, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("asking the store at %s for %s %.100q: %w",
		c.addr, r.query, r.keys[0][1:], err)
}

// Set implements Store. It sends a PING behind the value: SET alone has no answer, and the next
// call may use another connection.
func (c *Client) Set(ctx context.Context, key string, value []byte) error {
	r := &request{query: querySet, keys: c.keys(key), values: [][]byte{value}}
	err := r.check()
	if err == nil {
		b, read := appendPing(r.append(nil))
		err = c.ask(ctx, b, read)
	}
	return c.explain(r, err)
}

// Get implements Store.
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

// readField reads one value of a reply. What came before it costs it no budget.
func readField(d *decoder) ([]byte, error) {
	d.budget = maxRequestBytes
	return d.field("value", maxValueBytes)
}

// Add implements Store.
func (c *Client) Add(ctx context.Context, key string, delta int64) (sum int64, err error) {
	r := &request{query: queryAdd, keys: c.keys(key), number: delta}
	err = c.call(ctx, r, func(d *decoder) (err error) {
		sum, err = d.number()
		return err
	})
	return sum, err
}

// CompareSet implements Store.
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

// Wait implements Store.
func (c *Client) Wait(ctx context.Context, keys ...string) error {
	if len(keys) == 0 {
		return nil
	}
	r := &request{query: queryWait, keys: c.keys(keys...)}
	if err := r.check(); err != nil {
		return c.explain(r, err)
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	err := c.wait(ctx, r.keys)
	if err == nil {
		return nil
	}
	failed := &WaitError{Keys: keys, Err: err}
	if ctx.Err() != nil {
		if failed.Missing = c.missing(ctx, r.keys); failed.Missing != nil &&
			len(failed.Missing) == 0 {
			return nil // The last key came at the last moment.
		}
	}
	if c.prefix != "" {
		return failed
	}
	return fmt.Errorf("store at %s: %w", c.addr, failed)
}

func (c *Client) wait(ctx context.Context, keys []string) error {
	l, err := c.acquire(ctx)
	if err != nil {
		return err
	}
	return c.release(l, l.wait(ctx, keys))
}

// missing finds out which keys are not there, for the message of a wait whose context is done.
// It returns nil if it cannot, and names as the caller has them.
func (c *Client) missing(ctx context.Context, keys []string) []string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer cancel()
	l, err := c.acquire(ctx)
	if err != nil {
		return nil
	}
	missing, err := l.missing(ctx, keys)
	if c.release(l, err) != nil {
		return nil
	}
	for i := range missing {
		missing[i] = strings.TrimPrefix(missing[i], userKey(c.prefix))
	}
	return missing
}
