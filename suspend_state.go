package symmem

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"symmem/driver"
)

// Suspend releases the memory of a pool or a group until Resume, on all ranks or on none. If rank 1
// refuses because stream 3 is busy, all ranks return an ErrBusy with the text "rank 1: stream 3 has
// unfinished work: synchronize it first".

// refusalError is the reason why a rank does not suspend, resume or use memory.
type refusalError struct {
	text string // does not contain the text of kind
	kind error  // for errors.Is, such as ErrBusy
}

func (e *refusalError) Error() string { return e.text }

func (e *refusalError) Unwrap() error { return e.kind }

// refusalKinds lists the kinds that a refusalMessage can encode.
var refusalKinds = []error{ErrBusy, ErrCapturing, ErrOutOfMemory, ErrUnsupported, ErrSuspended}

// refusalMessage is sent to the other ranks as JSON.
type refusalMessage struct {
	Text string
	Kind int // index in refusalKinds
}

// agreeOnRefusal returns the same result on all ranks: the refusal of the lowest rank that passes
// one, or nil. The caller must hold Group.mu.
func agreeOnRefusal(ctx context.Context, g *Group, refusal error) error {
	var own []byte // an empty message means that this rank does not refuse
	if refusal != nil {
		own = encodeRefusal(refusal)
	}

	messages, err := g.comm.Exchange(ctx, driver.LaneControl, own)
	if err != nil {
		return g.life.awaitFault(err)
	}

	for groupRank, message := range messages {
		if len(message) == 0 {
			continue
		}

		rank := g.ranks[groupRank]
		received, err := decodeRefusal(message)
		if err != nil {
			return fmt.Errorf("decoding the refusal of rank %d: %w", rank, err)
		}

		received.text = driver.RanksOf([]int{rank}, g.ranks) + ": " + received.text
		return received
	}

	return nil
}

func encodeRefusal(refusal error) []byte {
	const maxTextBytes = driver.MaxPayload / 8 // JSON can need six bytes for a byte of the text
	text := refusal.Error()
	text = text[:min(len(text), maxTextBytes)]
	kind := slices.IndexFunc(refusalKinds, func(kind error) bool {
		return errors.Is(refusal, kind)
	})
	const busyKind = 0 // for an error of any other kind
	message := refusalMessage{Text: text, Kind: max(kind, busyKind)}
	encoded, _ := json.Marshal(message) // cannot fail for these types
	return encoded
}

func decodeRefusal(encoded []byte) (*refusalError, error) {
	var message refusalMessage
	if err := json.Unmarshal(encoded, &message); err != nil {
		return nil, err
	}

	isKnown := message.Kind >= 0 && message.Kind < len(refusalKinds)
	if !isKnown {
		return nil, fmt.Errorf("unknown kind %d", message.Kind)
	}

	return &refusalError{text: message.Text, kind: refusalKinds[message.Kind]}, nil
}

// awaitAllStreams waits for the queued work of this rank. If it takes longer than the limit, it
// returns an ErrBusy that names a stream, and if another library captures a stream, ErrCapturing.
func awaitAllStreams(ctx context.Context, rt *Runtime, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for _, s := range rt.streams.all() {
		err := s.drain(ctx)
		if err == nil {
			continue
		}

		hasTimedOut := ctx.Err() != nil // or the caller's context was canceled
		if !hasTimedOut {
			return fmt.Errorf("stream %d: %w", s.number, err)
		}

		text := fmt.Sprintf("stream %d has unfinished work%s: synchronize it first", s.number,
			describeFirstWait(rt))
		return &refusalError{text: text, kind: ErrBusy}
	}

	return nil
}

// describeFirstWait describes a call that waits for other ranks, as in " (barrier waits for rank
// 3)". It returns "" if it finds none.
func describeFirstWait(rt *Runtime) string {
	for _, g := range rt.registry.allGroups() {
		inspector, canListWaits := g.comm.(driver.Inspector)
		if !canListWaits {
			continue
		}

		waits := inspector.Inspect().Waits
		if len(waits) > 0 {
			first := waits[0]
			ranks := driver.RanksOf(first.Ranks, first.Members)
			return fmt.Sprintf(" (%s waits for %s)", first.InCall, ranks)
		}
	}

	return ""
}

// checkAdoptedWindows returns an ErrBusy if a segment is registered with a communicator of another
// library, which may use the segment at any time.
func checkAdoptedWindows(rt *Runtime, segments []*segment) error {
	rt.mu.Lock()
	communicators := rt.adopted
	rt.mu.Unlock()
	for _, communicator := range communicators {
		communicator.windowsMu.Lock()
		isRegistered := slices.ContainsFunc(segments, func(s *segment) bool {
			return communicator.windows[s] != nil
		})
		communicator.windowsMu.Unlock()
		if isRegistered {
			text := fmt.Sprintf("memory is registered with communicator %q of another library: detach "+
				"the communicator first", communicator.name)
			return &refusalError{text: text, kind: ErrBusy}
		}
	}

	return nil
}

// groupWindow is the registration of a segment with a group.
type groupWindow struct {
	group   *Group
	segment *segment
	window  driver.Window
}

// listWindows lists the pool's windows in all groups, in the same order on all ranks.
func (s *suspender) listWindows() []groupWindow {
	s.mu.Lock()
	defer s.mu.Unlock()
	compareKeys := func(a, b *membership) int { return cmp.Compare(a.group.key, b.group.key) }
	memberships := slices.SortedFunc(maps.Values(s.registrar.memberships), compareKeys)
	var windows []groupWindow
	for _, m := range memberships { // one for each group
		for _, segment := range s.segments.mappedSegments() {
			if w := m.windows[segment]; w != nil {
				windows = append(windows, groupWindow{m.group, segment, w})
			}
		}
	}

	return windows
}

// holdSegments returns the pool's segments and keeps them mapped until releaseAll. Withdrawn
// segments, which are about to be unmapped, are left out.
func (s *suspender) holdSegments() []*segment {
	const firstOrdinal = 0
	acceptAll := func(*segment) bool { return true }
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.segments.holdSegments(firstOrdinal, acceptAll)
}

// setRefusing sets whether allocations fail. In a closed pool, they always do.
func (s *suspender) setRefusing(isRefusing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.segments.refusing = isRefusing || s.segments.closed
}

// addCloseCalls changes the number of Pool.Close calls in progress.
func (s *suspender) addCloseCalls(change int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closes += change
}

// awaitStateChange waits until no Suspend or Resume of the pool is in progress.
func (s *suspender) awaitStateChange(ctx context.Context) error {
	hasChanged := func() bool {
		state := s.state.Load()
		return state != stateSuspending && state != stateResuming
	}
	return poll(ctx, hasChanged)
}
