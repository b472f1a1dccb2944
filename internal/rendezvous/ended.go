package rendezvous

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"time"
)

// endsKey is the prefix of the numbered keys under which the Server stores which ranks have ended.
// The keys do not depend on the world, so that every rank can wait for the next key from the start.
const endsKey = "symmem-ends"

func endKey(n int) string { return endsKey + "/" + strconv.Itoa(n) }

// A rank sends its greeting in a COMPARE_SET of greetingKey. The Server records the rank, stores
// nothing, and returns greetingAnswer. Any other server finds no value under greetingKey. It then
// stores nothing and returns the expected value.
const (
	greetingKey    = "symmem-greeting"
	greetingAnswer = "ends are told"
)

const maxGreetingBytes = 4 << 10

// greeting identifies the rank that a connection represents. World is the prefix of the rank's
// keys, or "" while the prefix is unknown. If Probe is set, the server only answers whether another
// process has claimed the rank.
type greeting struct {
	World   string `json:"world"`
	Rank    int    `json:"rank"`
	Job     string `json:"job,omitempty"`
	Process string `json:"process,omitempty"`
	Place   string `json:"place,omitempty"`
	Probe   bool   `json:"probe,omitempty"`
}

// rankEnd is the value stored under endKey. A launcher's report applies to every world, so its
// World is empty.
type rankEnd struct {
	World string `json:"world,omitempty"`
	Rank  int    `json:"rank"`
	How   string `json:"how"`
	// Left is set if the rank announced that it would leave. Why is the reason.
	Left bool   `json:"left,omitempty"`
	Why  string `json:"why,omitempty"`
	// Closing announces that the store is about to close normally. The other fields are then zero.
	Closing bool `json:"closing,omitempty"`
}

// EndedError means that a rank has ended or left.
type EndedError struct {
	Rank int
	How  string
	Left bool
	// Why is the reason that the rank passed to Leave, or "".
	Why string
}

func (e *EndedError) Error() string { return e.How }

// RecordExit records that a rank's process has exited. how describes the exit and names the rank.
func (s *Server) RecordExit(rank int, how string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recordEnd(rankEnd{Rank: rank, How: how})
}

// recordEnd stores e under the next numbered key. The caller must hold s.mu.
func (s *Server) recordEnd(e rankEnd) {
	value, err := json.Marshal(e)
	if err != nil {
		return // cannot happen for strings and numbers
	}
	key := userKey(endKey(s.endCount))
	r := &request{query: querySet, keys: []string{key}, values: [][]byte{value}}
	s.endCount++
	// SET has no answer and cannot fail.
	_ = s.applyRequest(0, r)
}

// announceClosing announces that the store is about to close normally, and waits up to flushTimeout
// until all watchers have disconnected. Closing the connection of a watcher that has not read the
// announcement would make it report the end of rank 0.
func (s *Server) announceClosing() {
	s.mu.Lock()
	s.recordEnd(rankEnd{Closing: true})
	s.mu.Unlock()
	timeout := time.After(flushTimeout)
	for {
		hasWatchers, ended := s.watchers()
		if !hasWatchers {
			return
		}
		select {
		case <-ended:
		case <-timeout:
			return
		}
	}
}

// watchers reports whether a remote rank has sent a greeting and is still connected. The channel is
// closed when the next session ends.
func (s *Server) watchers() (bool, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sess := range s.sessions {
		if sess.greeting != nil && sess.isRemote {
			return true, s.remoteEnded
		}
	}
	return false, nil
}

// handleGreeting answers r and returns true if r is a greeting. The caller must hold s.mu.
func (s *Server) handleGreeting(from clientID, r *request) bool {
	sess := s.sessions[from]
	if sess == nil || r.query != queryCompareSet || r.keys[0] != userKey(greetingKey) {
		return false
	}
	g := &greeting{}
	if len(r.values[0]) > maxGreetingBytes || json.Unmarshal(r.values[0], g) != nil {
		return false
	}
	key := rankClaim{job: g.Job, rank: g.Rank}
	if other := s.sessions[s.claims[key]]; other != nil && other.greeting.Process != g.Process {
		sess.outbox.post(appendField(nil, rankTakenAnswer+other.greeting.Place))
		return true
	}
	if !g.Probe {
		sess.greeting = g
		if g.Job != "" {
			s.claims[key] = sess.id
		}
	}
	sess.outbox.post(appendField(nil, greetingAnswer))
	return true
}

func (s *Server) connectedRanks(world string) (ranks []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sess := range s.sessions {
		if sess.greeting != nil && sess.greeting.World == world {
			ranks = append(ranks, sess.greeting.Rank)
		}
	}
	slices.Sort(ranks)
	return ranks
}

// recordSessionEnd records that the rank of a closed session has ended or left. The caller must
// hold s.mu.
func (s *Server) recordSessionEnd(sess *session) {
	g := sess.greeting
	if g == nil || s.isClosed {
		return
	}
	if key := (rankClaim{job: g.Job, rank: g.Rank}); s.claims[key] == sess.id {
		delete(s.claims, key)
	}
	if g.World == "" {
		return
	}
	e := rankEnd{World: g.World, Rank: g.Rank}
	name := "rank " + strconv.Itoa(g.Rank)
	var why []byte
	if why, e.Left = s.table.values[userKey(g.World+"/"+leftKey(g.Rank))]; e.Left {
		e.How, e.Why = name+" has left", string(why[:min(len(why), MaxReasonBytes)])
	} else {
		e.How = "the connection of " + name + " (" + g.Place + ") to the store has ended"
	}
	s.recordEnd(e)
}

// makesConnectFail reports whether the end of a rank makes this call of Connect fail. It does while
// ranks are missing, unless the rank has left. Every rank leaves at its deadline.
func (m *Member) makesConnectFail(ctx context.Context, e *EndedError) bool {
	if e.Rank == 0 && !e.Left && m.watcher.hasLostStore() {
		return true
	}
	if _, ready, err := m.store.Peek(ctx, readyKey); err != nil || ready {
		return false
	}
	_, left, err := m.store.Peek(ctx, leftKey(e.Rank))
	return err == nil && !left
}

const (
	// launcherDelay bounds how long after a connection is closed the launcher reports the exit.
	launcherDelay = 200 * time.Millisecond
	// rankEndGrace is the time from the end of a rank until a guarded context is canceled. Data
	// that the rank sent earlier may still arrive in that time.
	rankEndGrace = time.Second
)

// Guard returns a context that is canceled soon after one of the given ranks has ended or left. The
// context is also canceled after the store is lost together with rank 0. The cause is an
// EndedError. If symmem does not serve the store, for example under torchrun, ended ranks do not
// cancel the context. The caller must call stop.
func (m *Member) Guard(
	ctx context.Context, ranks []int,
) (guarded context.Context, stop func()) {
	return m.guard(ctx, rankEndGrace, m.endMatcher(ranks))
}

func (m *Member) endMatcher(ranks []int) func(context.Context, *EndedError) bool {
	set := map[int]bool{}
	for _, r := range ranks {
		set[r] = true
	}
	return func(_ context.Context, e *EndedError) bool {
		return set[e.Rank] || e.Rank == 0 && m.watcher.hasLostStore()
	}
}

// guard returns a context that is canceled after a rank for which isFatal returns true has ended
// and delay has passed.
func (m *Member) guard(
	ctx context.Context, delay time.Duration, isFatal func(context.Context, *EndedError) bool,
) (guarded context.Context, stop func()) {
	guarded, cancel := context.WithCancelCause(ctx)
	if m.watcher == nil {
		return guarded, func() { cancel(nil) }
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if e := m.watcher.await(guarded, delay, isFatal); e != nil {
			cancel(e)
		}
	}()
	return guarded, func() { cancel(nil); <-done }
}

// Ended returns the errors of those given ranks that have ended, and of rank 0 if the store is
// lost, ordered by rank. It waits until isEnough returns true for this result or ctx is canceled.
func (m *Member) Ended(
	ctx context.Context, ranks []int, isEnough func([]*EndedError) bool,
) []*EndedError {
	if m.watcher == nil {
		return nil
	}
	isWanted := m.endMatcher(ranks)
	for {
		reports, changed := m.watcher.reports()
		var ended []*EndedError
		for _, end := range reports {
			if isWanted(ctx, end.EndedError) {
				ended = append(ended, end.EndedError)
			}
		}
		if isEnough(ended) {
			return ended
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ended
		}
	}
}

// explainError replaces the error of a call of Connect that failed because a rank has ended. It
// waits briefly, because this rank may learn of the end a moment later.
func (m *Member) explainError(err error) error {
	var (
		absent *AbsentError
		ended  *EndedError
	)
	switch {
	case m.watcher == nil:
	case errors.As(err, &absent):
		ctx, cancel := context.WithTimeout(context.Background(), launcherDelay)
		defer cancel()
		ended = m.watcher.await(ctx, 0, func(_ context.Context, e *EndedError) bool {
			return !e.Left && slices.Contains(absent.Ranks, e.Rank)
		})
	case errors.Is(err, ErrLost), errors.Is(err, errClosedEarly):
		ended = m.watcher.endOfStore()
	}
	if ended == nil {
		return err
	}
	return &AbsentError{Ranks: []int{ended.Rank}, Size: m.world.Size, Err: ended}
}

func (m *Member) endedError(ctx context.Context) error {
	e, ok := errors.AsType[*EndedError](context.Cause(ctx))
	if !ok {
		return nil
	}
	return &AbsentError{Ranks: []int{e.Rank}, Size: m.world.Size, Err: e}
}
