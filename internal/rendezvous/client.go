package rendezvous

import (
	"context"
	"fmt"
	"strings"
)

// Client accesses a store of keys and values that all ranks of a job share. It is safe for
// concurrent use.
//
// After Set, Add or CompareSet has returned without an error, all ranks see the new value. A call
// whose context was canceled may or may not have taken effect. A call returns ErrTooLarge for a key
// of more than 8 KiB, a value of more than 8 MiB, or more than 128 Ki keys.
type Client struct {
	*linkSet
	keyPrefix string // added to each key
}

func newClient(addr string, dial func(context.Context) (*link, error)) *Client {
	return &Client{linkSet: &linkSet{
		addr: addr, dial: dial, serverRank: noServerRank, links: map[*link]bool{},
	}}
}

// WithPrefix returns a client that shares c's links and adds prefix and a slash to every key.
func WithPrefix(c *Client, prefix string) *Client {
	return &Client{linkSet: c.linkSet, keyPrefix: c.keyPrefix + prefix + "/"}
}

// NewLocal returns a client of a new store in this process. Closing the client closes the store.
func NewLocal() *Client {
	const noToken Token = "" // Only this process can reach the server.
	server := newServer("this process", noToken)
	c := server.Client()
	c.onClose = server.Close
	return c
}

// Set stores value under key and waits until the server has stored it.
func (c *Client) Set(ctx context.Context, key string, value []byte) error {
	r := &request{query: querySet, keys: c.wireKeys(key), values: [][]byte{value}}
	return c.do(ctx, r, func(ctx context.Context, l *link) error {
		// SET has no reply, so the reply to a PING confirms it.
		setAndPing, readPingReply := appendPing(r.encode(nil))
		return l.exchange(ctx, setAndPing, readPingReply)
	})
}

// Get waits until key is set and returns its value.
func (c *Client) Get(ctx context.Context, key string) (value []byte, err error) {
	if err := c.Wait(ctx, key); err != nil {
		return nil, err
	}

	return c.callForValue(ctx, &request{query: queryGet, keys: c.wireKeys(key)})
}

// Add adds delta to the decimal number stored under key and returns the sum. A missing key counts
// as 0. If the value is not a number, the server closes the connection.
func (c *Client) Add(ctx context.Context, key string, delta int64) (sum int64, err error) {
	r := &request{query: queryAdd, keys: c.wireKeys(key), number: delta}
	readSum := func(d *decoder) (readErr error) {
		sum, readErr = d.readNumber()
		return readErr
	}
	err = c.call(ctx, r, readSum)
	return sum, err
}

// CompareSet sets key to desired if its value is expected. A missing key counts as an empty value.
// The result is the value of key afterwards, or expected if key is still missing.
func (c *Client) CompareSet(
	ctx context.Context, key string, expected, desired []byte,
) (value []byte, err error) {
	values := [][]byte{expected, desired}
	r := &request{query: queryCompareSet, keys: c.wireKeys(key), values: values}
	return c.callForValue(ctx, r)
}

// Wait waits until all keys are set. Without keys, it returns nil at once.
func (c *Client) Wait(ctx context.Context, keys ...string) error {
	if len(keys) == 0 {
		return nil
	}

	r := &request{query: queryWait, keys: c.wireKeys(keys...)}
	return c.do(ctx, r, func(ctx context.Context, l *link) error {
		return l.wait(ctx, r.keys)
	})
}

// Peek returns the value of key without waiting, and whether the key is set. If the key is not set,
// the value is meaningless. A key with the value "?" counts as not set.
func (c *Client) Peek(ctx context.Context, key string) (value []byte, isSet bool, err error) {
	// GET would return an empty value for a missing key. CompareSet then returns noValue. It
	// changes nothing, because expected and desired are equal.
	noValue := []byte("?")
	value, err = c.CompareSet(ctx, key, noValue, noValue)
	isSet = err == nil && string(value) != string(noValue)
	return value, isSet, err
}

func (c *Client) callForValue(ctx context.Context, r *request) (value []byte, err error) {
	readValue := func(d *decoder) (readErr error) {
		value, readErr = d.readValueReply()
		return readErr
	}
	err = c.call(ctx, r, readValue)
	return value, err
}

// call sends a request and reads the reply with readReply.
func (c *Client) call(ctx context.Context, r *request, readReply func(*decoder) error) error {
	return c.do(ctx, r, func(ctx context.Context, l *link) error {
		return l.exchange(ctx, r.encode(nil), readReply)
	})
}

// do calls exchange, which sends r over a link. Errors name r and the store's address.
func (c *Client) do(
	ctx context.Context, r *request, exchange func(context.Context, *link) error,
) error {
	err := r.checkSize()
	if err == nil {
		err = c.useLink(ctx, exchange)
	}

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

// wireKeys returns the keys to send. With the client's prefix "run5/", "a" becomes "/run5/a".
func (c *Client) wireKeys(keys ...string) []string {
	wire := make([]string, len(keys))
	for i, key := range keys {
		wire[i] = wireKey(c.keyPrefix + key)
	}

	return wire
}

// wireKey adds the slash that PyTorch's clients put before each key.
func wireKey(key string) string { return "/" + key }
