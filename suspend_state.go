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

// Suspend releases the memory of a pool or a group, until Resume. All ranks must do so, or none.
// Suppose that stream 3 of rank 1 has unfinished work. Then rank 1 refuses to suspend. The ranks
// exchange their refusals, and all of them return an ErrBusy with the text "rank 1: stream 3 has
// unfinished work: synchronize it first".

// refusalError is the reason why a rank does not suspend, resume or use memory.
type refusalError struct {
	text string // does not contain the text of kind
	kind error  // for errors.Is, such as ErrBusy
}

func (e *refusalError) Error() string { return e.text }

// Unwrap returns the kind.
func (e *refusalError) Unwrap() error { return e.kind }

// refusalKinds lists the kinds of refusals that ranks can exchange. Other errors are sent as the
// first kind, ErrBusy.
var refusalKinds = []error{ErrBusy, ErrCapturing, ErrOutOfMemory, ErrUnsupported, ErrSuspended}

// refusalMessage describes a refusal to the other ranks, encoded as JSON.
type refusalMessage struct {
	Text string
	Kind int // index in refusalKinds
}

// agreeOnRefusal exchanges the refusals of all ranks. refusal is nil if this rank does not refuse.
// All ranks return the refusal of the lowest group rank that refuses, or nil. The caller must hold
// Group.mu.
func agreeOnRefusal(ctx context.Context, g *Group, refusal error) error {
	var own []byte // empty if this rank does not refuse
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
		refusal, err := decodeRefusal(message)
		if err != nil {
			return fmt.Errorf("decoding the refusal of rank %d: %w", rank, err)
		}

		refusal.text = driver.RanksOf([]int{rank}, g.ranks) + ": " + refusal.text
		return refusal
	}

	return nil
}

// encodeRefusal encodes a refusalMessage. It shortens the text if necessary.
func encodeRefusal(refusal error) []byte {
	text := refusal.Error()
	// The message must fit into a payload. JSON may encode one byte of the text as six bytes.
	text = text[:min(len(text), driver.MaxPayload/8)]
	kind := slices.IndexFunc(refusalKinds, func(kind error) bool {
		return errors.Is(refusal, kind)
	})
	message := refusalMessage{Text: text, Kind: max(kind, 0)} // ErrBusy if no kind was found
	encoded, _ := json.Marshal(message)                       // cannot fail for these types
	return encoded
}

// decodeRefusal decodes a refusalMessage.
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

// awaitAllStreams waits for the work on all streams of this rank. After the time limit, it returns
// an ErrBusy that names a stream. It returns ErrCapturing if another library captures a stream.
func awaitAllStreams(ctx context.Context, rt *Runtime, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for _, s := range rt.streams.all() {
		err := s.drain(ctx)
		if err == nil {
			continue
		}

		hasEnded := ctx.Err() != nil // after the limit, or because the caller's context has ended
		if !hasEnded {
			return fmt.Errorf("stream %d: %w", s.number, err)
		}

		text := fmt.Sprintf("stream %d has unfinished work%s: synchronize it first", s.number,
			describeFirstWait(rt))
		return &refusalError{text: text, kind: ErrBusy}
	}

	return nil
}

// describeFirstWait describes a call of this rank that waits for other ranks, such as " (barrier
// waits for rank 3)". If there is no such call or the backend cannot list waits, it returns "".
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
// library, which could use it at any time.
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

// groupWindow is a window: the registration of a segment with a group.
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
	for _, m := range memberships { // one for each group that registers segments of the pool
		for _, segment := range s.segments.mappedSegments() {
			if w := m.windows[segment]; w != nil {
				windows = append(windows, groupWindow{m.group, segment, w})
			}
		}
	}

	return windows
}

// holdSegments keeps the pool's segments mapped until a releaseAll, and returns them. It leaves out
// segments that a Trim or a realignment has withdrawn.
func (s *suspender) holdSegments() []*segment {
	const firstOrdinal = 0
	acceptAll := func(*segment) bool { return true }
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.segments.holdSegments(firstOrdinal, acceptAll)
}

// setRefusing makes allocations fail, or succeed again if isRefusing is false. In a closed pool,
// they always fail.
func (s *suspender) setRefusing(isRefusing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.segments.refusing = isRefusing || s.segments.closed
}

// addCloseCalls adds change to the number of Pool.Close calls in progress.
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
