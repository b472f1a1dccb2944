package rendezvous

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"
)

// A launcher that serves the store tells in it which of its ranks have ended, so that the others
// need not wait for them until their time is up. Its keys are those of a user of the store, and
// those of ranks start otherwise: one says that ends are told, and each end has one, by number.
const endsKey = "symmem-ends"

func endKey(n int) string { return endsKey + "/" + strconv.Itoa(n) }

// EndedError means that the process of a rank has ended, as its launcher saw.
type EndedError struct {
	// Rank is the rank, and How says how it has ended, in words.
	Rank int
	How  string
}

// Error is how the rank has ended.
func (e *EndedError) Error() string { return e.How }

// TellEnds promises that every end of a rank will be told by Ended.
func (s *Server) TellEnds() { s.set(endsKey, "told") }

// Ended tells that the process of a rank has ended, and how.
func (s *Server) Ended(rank int, how string) {
	s.mu.Lock()
	n := s.ends
	s.ends++
	s.mu.Unlock()
	s.set(endKey(n), strconv.Itoa(rank)+" "+how)
}

// set stores a value as a client would.
func (s *Server) set(key, value string) {
	r := &request{query: querySet, keys: userKeys(key), values: [][]byte{[]byte(value)}}
	// A SET has no answer, and no way to go wrong.
	_ = s.handle(0, r)
}

// watch returns a context that ends, with an EndedError, when the launcher tells of the end of a
// rank without which this one cannot go on. Stop ends the watch, and waits for that.
func (m *member) watch(
	ctx context.Context, fatal func(ctx context.Context, rank int) bool,
) (watched context.Context, stop func()) {
	watched, cancel := context.WithCancelCause(ctx)
	if m.world.Route.Kind != RouteJoin {
		return watched, func() { cancel(nil) }
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Without a store that tells of ends, or with its end or the context's, there is none.
		if e, err := m.firstEnd(watched, fatal); err == nil {
			cancel(e)
		}
	}()
	return watched, func() { cancel(nil); <-done }
}

// errUntold means that nobody tells of ends in this store.
var errUntold = errors.New("nobody tells of the ends of ranks")

// firstEnd waits for an end that is fatal.
func (m *member) firstEnd(
	ctx context.Context, fatal func(ctx context.Context, rank int) bool,
) (*EndedError, error) {
	if there, err := m.has(ctx, m.client, endsKey); err != nil || !there {
		return nil, errors.Join(err, errUntold)
	}
	for n := 0; ; n++ {
		value, err := m.client.Get(ctx, endKey(n))
		if err != nil {
			return nil, err
		}
		number, how, _ := strings.Cut(string(value), " ")
		rank, err := strconv.Atoi(number)
		if err == nil && rank != m.world.Rank && fatal(ctx, rank) {
			return &EndedError{Rank: rank, How: how}, nil
		}
	}
}

// has tells whether a key is there, without waiting for it.
func (m *member) has(ctx context.Context, s Store, key string) (bool, error) {
	// A comparison that stores nothing tells a missing key from an empty value.
	probe := []byte("?")
	got, err := s.CompareSet(ctx, key, probe, probe)
	return err == nil && string(got) != string(probe), err
}

// missed tells whether a rank that has ended is one that this call of Connect still waits for: one
// that did not join, or rank 0 if it did not say that all are there.
func (m *member) missed(ctx context.Context, rank int) bool {
	key := m.key("joined", rank)
	if rank == 0 {
		key = "ready"
	}
	there, err := m.has(ctx, m.store, key)
	return err == nil && !there
}

// mourningWait is how long Guard goes on after the end of a rank: what that has left behind may be
// all that is needed.
const mourningWait = time.Second

// Guard returns a context for what needs all ranks, such as the making of a first group: it ends
// soon after any of them has ended, with an EndedError, where the launcher tells that. The leave is
// the Closer of Connect. The caller must call stop.
func Guard(ctx context.Context, leave any) (guarded context.Context, stop func()) {
	m, ok := leave.(*member)
	if !ok {
		return ctx, func() {}
	}
	return m.watch(ctx, func(ctx context.Context, _ int) bool { return rest(ctx, mourningWait) })
}

// ended is the error of a wait that an EndedError has ended, if one has.
func (m *member) ended(ctx context.Context) error {
	var e *EndedError
	if !errors.As(context.Cause(ctx), &e) {
		return nil
	}
	return &AbsentError{Ranks: []int{e.Rank}, Size: m.world.Size, Err: e}
}
