package rendezvous

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"time"
)

// endsKey is the prefix of the keys under which the server reports the ends of ranks: endKey(0),
// endKey(1) and so on. All worlds share them. A rank waits for the key after those that it has
// read.
const endsKey = "symmem-ends"

func endKey(n int) string { return endsKey + "/" + strconv.Itoa(n) }

// A client sends a greeting as a COMPARE_SET of greetingKey. The server answers greetingAnswer, and
// does not set the key. PyTorch's server returns the expected value instead, and does not set the
// key either.
const (
	greetingKey    = "symmem-greeting"
	greetingAnswer = "ends are told"
)

// maxGreetingBytes limits the length of an encoded greeting, which has a few hundred bytes.
const maxGreetingBytes = 4 << 10

// greeting identifies the rank that a connection represents. A world is the set of ranks that
// connect together.
type greeting struct {
	KeyPrefix   string `json:"world"`             // prefix of the world's keys, or "" if unknown
	Rank        int    `json:"rank"`              // number of the rank
	Job         string `json:"job,omitempty"`     // World.jobPrefix
	Process     string `json:"process,omitempty"` // processID
	Description string `json:"place,omitempty"`   // of the process, for users
	IsProbe     bool   `json:"probe,omitempty"`   // asks only whether the rank is claimed
}

// rankEnd is a report of the server about the end of a rank.
type rankEnd struct {
	KeyPrefix   string `json:"world,omitempty"` // as in greeting, or "" from a launcher
	Rank        int    `json:"rank"`            // number of the rank
	Description string `json:"how"`             // for users
	HasLeft     bool   `json:"left,omitempty"`  // the rank has announced that it leaves
	Reason      string `json:"why,omitempty"`   // given by the rank, if it has left
	// IsStoreClosing announces that the store will close normally. The other fields are then zero.
	IsStoreClosing bool `json:"closing,omitempty"`
}

// EndedError means that a rank has ended or left.
type EndedError struct {
	Rank        int
	Description string // for users; contains the number of the rank
	HasLeft     bool   // the rank has announced that it leaves
	Reason      string // given by the rank, if it has left
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

	key := wireKey(endKey(s.endCount))
	s.endCount++
	const fromServer clientID = 0 // IDs of clients start at 1.
	r := &request{query: querySet, keys: []string{key}, values: [][]byte{value}}
	_ = s.applyRequest(fromServer, r) // A SET does not fail.
}

// announceClosing announces to all watchers, which are connections of other ranks, that the store
// will close. Otherwise, they would report the end of rank 0. It waits up to flushTimeout until the
// watchers have disconnected. Watchers of stopped processes receive closingMark from Close.
func (s *Server) announceClosing() {
	s.mu.Lock()
	s.isClosing = true
	s.recordEnd(rankEnd{IsStoreClosing: true})
	s.mu.Unlock()
	timeout := time.After(flushTimeout)
	for {
		isWatched, sessionEnded := s.watchers()
		if !isWatched {
			return
		}

		select {
		case <-sessionEnded:
		case <-timeout:
			return
		}
	}
}

// watchers returns whether another process has sent a greeting and is still connected. In this
// case, it also returns a channel that is closed when a remote session ends.
func (s *Server) watchers() (isWatched bool, sessionEnded <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sess := range s.sessions {
		if sess.greeting != nil && sess.isRemote {
			return true, s.remoteEnded
		}
	}

	return false, nil
}

// handleGreeting answers r if it is a greeting. Otherwise, it returns false. The caller must hold
// s.mu.
func (s *Server) handleGreeting(from clientID, r *request) bool {
	sess := s.sessions[from]
	if sess == nil || r.query != queryCompareSet || r.keys[0] != wireKey(greetingKey) {
		return false
	}

	encoded := r.values[0] // A COMPARE_SET has two values.
	g := &greeting{}
	if len(encoded) > maxGreetingBytes || json.Unmarshal(encoded, g) != nil {
		return false
	}

	rank := jobRank{job: g.Job, rank: g.Rank}
	other := s.sessions[s.claims[rank]] // nil if the rank is free
	isTaken := other != nil && other.greeting.Process != g.Process
	if isTaken {
		sess.outbox.post(appendField(nil, rankTakenPrefix+other.greeting.Description))
		return true
	}

	if !g.IsProbe {
		sess.greeting = g
		if g.Job != "" {
			s.claims[rank] = sess.id
		}
	}

	sess.outbox.post(appendField(nil, greetingAnswer))
	return true
}

// connectedRanks returns the ranks of a world that are still connected, in ascending order.
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

// recordSessionEnd gives up the claim of a session that has ended, and records the end of its rank.
// It has no effect for a session without a greeting. The caller must hold s.mu.
func (s *Server) recordSessionEnd(sess *session) {
	g := sess.greeting
	if g == nil || s.isClosed {
		return
	}

	rank := jobRank{job: g.Job, rank: g.Rank}
	if s.claims[rank] == sess.id {
		delete(s.claims, rank)
	}

	if g.KeyPrefix == "" {
		return // The rank has not joined a world yet.
	}

	e := rankEnd{KeyPrefix: g.KeyPrefix, Rank: g.Rank}
	name := "rank " + strconv.Itoa(g.Rank)
	reason, hasLeft := s.table.values[wireKey(g.KeyPrefix+"/"+leftKey(g.Rank))]
	if hasLeft {
		e.HasLeft = true
		e.Description = name + " has left"
		e.Reason = string(reason[:min(len(reason), MaxReasonBytes)])
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

	_, isReady, err := m.worldClient.Peek(ctx, readyKey)
	if err != nil || isReady {
		return false // All ranks have joined before, or the store is lost.
	}

	_, hasLeft, err := m.worldClient.Peek(ctx, leftKey(e.Rank))
	return err == nil && !hasLeft
}

const (
	// launcherDelay bounds the time from the end of a connection to the launcher's report.
	launcherDelay = 200 * time.Millisecond
	// During rankEndGrace, data that the ended rank sent earlier may still arrive.
	rankEndGrace = time.Second
)

// Guard returns a context that is canceled soon after one of the given ranks has ended or left, or
// after the store was lost together with rank 0. The cause is an EndedError. If symmem does not
// serve the store, ranks that end do not cancel the context. The caller must call stop.
func (m *Member) Guard(
	ctx context.Context, ranks []int,
) (guarded context.Context, stop func()) {
	return m.guard(ctx, rankEndGrace, m.endMatcher(ranks))
}

// endMatcher returns a function that reports whether an EndedError is about one of the given ranks,
// or about the loss of the store together with rank 0.
func (m *Member) endMatcher(ranks []int) func(context.Context, *EndedError) bool {
	isWanted := map[int]bool{}
	for _, rank := range ranks {
		isWanted[rank] = true
	}

	return func(_ context.Context, e *EndedError) bool {
		return isWanted[e.Rank] || (e.Rank == 0 && m.watcher.hasLostStore())
	}
}

// guard returns a context that is canceled when delay has passed since the end of a rank for which
// isFatal returns true.
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
		ended := m.watcher.awaitEnd(guarded, delay, isFatal)
		if ended != nil {
			cancel(ended)
		}
	}()
	return guarded, func() {
		cancel(nil)
		<-done
	}
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

// explainError returns an AbsentError about the rank whose end has caused err. It returns err if
// there is no such rank. It waits briefly, because the report of the end may arrive later than err.
func (m *Member) explainError(err error) error {
	if m.watcher == nil {
		return err
	}

	var absent *AbsentError
	var ended *EndedError
	switch {
	case errors.As(err, &absent):
		ctx, cancel := context.WithTimeout(context.Background(), launcherDelay)
		defer cancel()
		const noDelay = 0
		ended = m.watcher.awaitEnd(ctx, noDelay, func(_ context.Context, e *EndedError) bool {
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

// endedError returns an AbsentError about the rank whose end has canceled a context from guard. It
// returns nil if ctx is not canceled or has another cause.
func (m *Member) endedError(ctx context.Context) error {
	ended, isEnded := errors.AsType[*EndedError](context.Cause(ctx))
	if !isEnded {
		return nil
	}

	return &AbsentError{Ranks: []int{ended.Rank}, Size: m.world.Size, Err: ended}
}
