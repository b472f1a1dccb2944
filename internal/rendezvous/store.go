package rendezvous

import (
	"context"
	"errors"
	"strings"
	"time"
)

// DefaultTimeout bounds every call whose context has no deadline: no call waits forever. It is
// the default of PyTorch's stores.
const DefaultTimeout = 300 * time.Second

// A Store holds small keys and values that all ranks of a job share. It is safe for concurrent
// use: a call that waits does not hold up the others.
//
// A call that has returned without error has taken effect for all ranks. A call that was
// cancelled may have taken effect. Keys are at most 8 KiB, values 8 MiB, and a call names at
// most 128 Ki keys (ErrTooLarge).
type Store interface {
	// Set stores value under key.
	Set(ctx context.Context, key string, value []byte) error
	// Get waits until key is there and returns its value, which the caller owns.
	Get(ctx context.Context, key string) ([]byte, error)
	// Add adds delta to the decimal number under key (a missing key counts as 0) and returns
	// the sum. If the value is no number the server closes the connection.
	Add(ctx context.Context, key string, delta int64) (int64, error)
	// Wait returns once all keys are there, or a *WaitError that names those that are not.
	Wait(ctx context.Context, keys ...string) error
	// CompareSet stores desired if key holds expected, or if key is missing and expected is
	// empty, and returns what key holds afterwards. For a missing key with an expectation it
	// returns expected, as TCPStore does.
	CompareSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error)
	// Delete removes key and reports whether it was there.
	Delete(ctx context.Context, key string) (bool, error)
	// MultiGet waits until all keys are there and returns their values in the same order.
	MultiGet(ctx context.Context, keys ...string) ([][]byte, error)
}

// bounded gives a context without a deadline the default one.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, DefaultTimeout)
}

// outlasting gives a context that ends a while after ctx does, with its cause.
func outlasting(ctx context.Context, while time.Duration) (context.Context, context.CancelFunc) {
	longer, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(while)
		defer timer.Stop()
		select {
		case <-timer.C:
			end(context.Cause(ctx))
		case <-longer.Done():
		}
	})
	return longer, func() { stop(); end(nil) }
}

// WithPrefix returns a view of store in which every key lies under prefix, joined by a slash as
// PyTorch's PrefixStore joins them. A WaitError of the view names keys without the prefix.
func WithPrefix(store Store, prefix string) Store {
	return &prefixed{store: store, prefix: prefix + "/"}
}

// prefixed is immutable and as safe for concurrent use as its store.
type prefixed struct {
	store  Store
	prefix string
}

func (p *prefixed) keys(keys []string) []string {
	long := make([]string, len(keys))
	for i, key := range keys {
		long[i] = p.prefix + key
	}
	return long
}

// strip removes the prefix from the keys of a WaitError.
func (p *prefixed) strip(err error) error {
	wait, ok := errors.AsType[*WaitError](err)
	if !ok {
		return err
	}
	return &WaitError{Keys: p.short(wait.Keys), Missing: p.short(wait.Missing), Err: wait.Err}
}

func (p *prefixed) short(keys []string) []string {
	if keys == nil {
		return nil
	}
	short := make([]string, len(keys))
	for i, key := range keys {
		short[i] = strings.TrimPrefix(key, p.prefix)
	}
	return short
}

// ServedBy is that of the store, or -1 where it does not know.
func (p *prefixed) ServedBy() int {
	if s, ok := p.store.(interface{ ServedBy() int }); ok {
		return s.ServedBy()
	}
	return -1
}

// Set implements Store.
func (p *prefixed) Set(ctx context.Context, key string, value []byte) error {
	return p.store.Set(ctx, p.prefix+key, value)
}

// Get implements Store.
func (p *prefixed) Get(ctx context.Context, key string) ([]byte, error) {
	value, err := p.store.Get(ctx, p.prefix+key)
	return value, p.strip(err)
}

// Add implements Store.
func (p *prefixed) Add(ctx context.Context, key string, delta int64) (int64, error) {
	return p.store.Add(ctx, p.prefix+key, delta)
}

// Wait implements Store.
func (p *prefixed) Wait(ctx context.Context, keys ...string) error {
	return p.strip(p.store.Wait(ctx, p.keys(keys)...))
}

// CompareSet implements Store.
func (p *prefixed) CompareSet(
	ctx context.Context, key string, expected, desired []byte,
) ([]byte, error) {
	return p.store.CompareSet(ctx, p.prefix+key, expected, desired)
}

// Delete implements Store.
func (p *prefixed) Delete(ctx context.Context, key string) (bool, error) {
	return p.store.Delete(ctx, p.prefix+key)
}

// MultiGet implements Store.
func (p *prefixed) MultiGet(ctx context.Context, keys ...string) ([][]byte, error) {
	values, err := p.store.MultiGet(ctx, p.keys(keys)...)
	return values, p.strip(err)
}
