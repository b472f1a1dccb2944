package rendezvous

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"time"
)

// All worlds share the numbered keys under endsKey, so that every rank can wait for the next key.
const endsKey = "symmem-ends"

func endKey(n int) string { return endsKey + "/" + strconv.Itoa(n) }

// A greeting is a COMPARE_SET of greetingKey, after which this key is still missing. PyTorch's
// server returns the expected value instead of greetingAnswer.
const (
	greetingKey    = "symmem-greeting"
	greetingAnswer = "ends are told"
)

const maxGreetingBytes = 4 << 10

// greeting identifies the rank that a connection represents.
type greeting struct {
	KeyPrefix   string `json:"world"` // of the world, or "" if unknown
	Rank        int    `json:"rank"`
	Job         string `json:"job,omitempty"`
	Process     string `json:"process,omitempty"`
	Description string `json:"place,omitempty"`
	IsProbe     bool   `json:"probe,omitempty"` // asks only whether the rank is claimed
}

type rankEnd struct {
	KeyPrefix   string `json:"world,omitempty"` // of the world, or "" from a launcher
	Rank        int    `json:"rank"`
	Description string `json:"how"`
	HasLeft     bool   `json:"left,omitempty"`
	Reason      string `json:"why,omitempty"`
	// IsStoreClosing announces that the store will close normally. The other fields are then zero.
	IsStoreClosing bool `json:"closing,omitempty"`
}

// EndedError means that a rank has ended or left.
type EndedError struct {
	Rank        int
	Description string
	HasLeft     bool
	Reason      string
}

func (e *EndedError) Error() string { return e.Description }

// RecordExit records that a rank's process has exited. The description names the rank.
func (s *Server) RecordExit(rank int, description string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recordEnd(rankEnd{Rank: rank, Description: description})
}

// recordEnd stores e under the next numbered key. The caller must hold s.mu.
func (s *Server) recordEnd(e rankEnd) {
	value, err := json.Marshal(e)
	if err != nil {
		return // impossible for strings and numbers
	}
	key := userKey(endKey(s.endCount))
	r := &request{query: querySet, keys: []string{key}, values: [][]byte{value}}
	s.endCount++
	_ = s.applyRequest(0, r)
}

// announceClosing waits up to flushTimeout until all watchers have read the announcement.
// Otherwise, they would report the end of rank 0. Watchers that do not read it in time, because
// their processes are stopped, receive closingMark from Close.
func (s *Server) announceClosing() {
	s.mu.Lock()
	s.isClosing = true
	s.recordEnd(rankEnd{IsStoreClosing: true})
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

// handleGreeting answers r if it is a greeting. The caller must hold s.mu.
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
		sess.outbox.post(appendField(nil, rankTakenAnswer+other.greeting.Description))
		return true
	}
	if !g.IsProbe {
		sess.greeting = g
		if g.Job != "" {
			s.claims[key] = sess.id
		}
	}
	sess.outbox.post(appendField(nil, greetingAnswer))
	return true
}

func (s *Server) connectedRanks(keyPrefix string) (ranks []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sess := range s.sessions {
		if sess.greeting != nil && sess.greeting.KeyPrefix == keyPrefix {
			ranks = append(ranks, sess.greeting.Rank)
		}
	}
	slices.Sort(ranks)
	return ranks
}

// recordSessionEnd must be called with s.mu held.
func (s *Server) recordSessionEnd(sess *session) {
	g := sess.greeting
	if g == nil || s.isClosed {
		return
	}
	if key := (rankClaim{job: g.Job, rank: g.Rank}); s.claims[key] == sess.id {
		delete(s.claims, key)
	}
	if g.KeyPrefix == "" {
		return
	}
	e := rankEnd{KeyPrefix: g.KeyPrefix, Rank: g.Rank}
	name := "rank " + strconv.Itoa(g.Rank)
	var reason []byte
	if reason, e.HasLeft = s.table.values[userKey(g.KeyPrefix+"/"+leftKey(g.Rank))]; e.HasLeft {
		e.Description, e.Reason = name+" has left", string(reason[:min(len(reason), MaxReasonBytes)])
	} else {
		e.Description = "the connection of " + name + " (" + g.Description + ") to the store has ended"
	}
	s.recordEnd(e)
}

// isFatalToConnect reports whether the end of a rank makes this call of Connect fail. The end of a
// rank that has left does not, because every rank leaves at its deadline.
func (m *Member) isFatalToConnect(ctx context.Context, e *EndedError) bool {
	if e.Rank == 0 && !e.HasLeft && m.watcher.hasLostStore() {
		return true
	}
	if _, ready, err := m.store.Peek(ctx, readyKey); err != nil || ready {
		return false
	}
	_, left, err := m.store.Peek(ctx, leftKey(e.Rank))
	return err == nil && !left
}

const (
	// launcherDelay bounds the time from the end of a connection to the launcher's report.
	launcherDelay = 200 * time.Millisecond
	// During rankEndGrace, data that the ended rank sent earlier may still arrive.
	rankEndGrace = time.Second
)

// Guard returns a context that is canceled soon after one of the given ranks has ended or left, or
// the store was lost together with rank 0. The cause is an EndedError. If symmem does not serve the
// store, the context is not canceled. The caller must call stop.
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

// guard cancels the context when delay has passed since the end of a rank for which isFatal returns
// true.
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
		if e := m.watcher.awaitEnd(guarded, delay, isFatal); e != nil {
			cancel(e)
		}
	}()
	return guarded, func() { cancel(nil); <-done }
}

// AwaitEnded returns the errors of the given ranks that have ended, and of rank 0 if the store is
// lost, ordered by rank. It waits until isEnough returns true for them or ctx is canceled.
func (m *Member) AwaitEnded(
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

// explainError waits briefly, because the report of the end of a rank may arrive later than err.
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
		ended = m.watcher.awaitEnd(ctx, 0, func(_ context.Context, e *EndedError) bool {
			return !e.HasLeft && slices.Contains(absent.Ranks, e.Rank)
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
