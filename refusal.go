package symmem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"symmem/driver"
)

// refusalError says why a rank cannot suspend, resume or use memory. If one rank refuses a Suspend
// or a Resume, all ranks return its error. For example, if stream 3 of rank 1 is busy, they return
// an ErrBusy with the text "rank 1: stream 3 has unfinished work: synchronize it first".
type refusalError struct {
	text string
	kind error // for errors.Is, such as ErrBusy
}

func (e *refusalError) Error() string { return e.text }

func (e *refusalError) Unwrap() error { return e.kind }

// refusalKinds must have the same order on all ranks.
var refusalKinds = []error{ErrBusy, ErrCapturing, ErrOutOfMemory, ErrUnsupported, ErrSuspended}

// refusalMessage is sent to the other ranks as JSON.
type refusalMessage struct {
	Text string
	Kind int // index in refusalKinds
}

// agreeOnRefusal exchanges the refusals of all ranks, and returns the first in group order. refusal
// is nil if this rank does not refuse. The caller must hold Group.mu.
func agreeOnRefusal(ctx context.Context, g *Group, refusal error) error {
	var own []byte // empty without a refusal
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
	const maxTextBytes = driver.MaxPayload / 8 // JSON may need six bytes for one
	text := refusal.Error()
	text = text[:min(len(text), maxTextBytes)]
	message := refusalMessage{Text: text, Kind: kindIndex(refusal)}
	encoded, _ := json.Marshal(message) // cannot fail for these types
	return encoded
}

// kindIndex returns an index in refusalKinds. An error of an unlisted kind counts as ErrBusy.
func kindIndex(refusal error) int {
	for i, kind := range refusalKinds {
		if errors.Is(refusal, kind) {
			return i
		}
	}

	const busyIndex = 0
	return busyIndex
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

// awaitAllStreams waits for the queued work of this rank. If the work takes longer than limit, or
// ctx ends, it returns an ErrBusy that names a stream.
func awaitAllStreams(ctx context.Context, rt *Runtime, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for _, s := range rt.streams.all() {
		err := s.drain(ctx)
		if err == nil {
			continue
		}

		hasWorkFailed := ctx.Err() == nil
		if hasWorkFailed {
			return fmt.Errorf("stream %d: %w", s.number, err)
		}

		text := fmt.Sprintf("stream %d has unfinished work%s: synchronize it first", s.number,
			describeFirstWait(rt))
		return &refusalError{text: text, kind: ErrBusy}
	}

	return nil
}

// describeFirstWait returns a text such as " (barrier waits for rank 3)", or "" if this rank does
// not wait for another.
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
// library, because that library can use the segment at any time.
func checkAdoptedWindows(rt *Runtime, segments []*segment) error {
	rt.mu.Lock()
	communicators := rt.adopted
	rt.mu.Unlock()
	for _, communicator := range communicators {
		if hasWindowOf(communicator, segments) {
			text := fmt.Sprintf("memory is registered with communicator %q of another library: detach "+
				"the communicator first", communicator.name)
			return &refusalError{text: text, kind: ErrBusy}
		}
	}

	return nil
}

func hasWindowOf(communicator *AdoptedCommunicator, segments []*segment) bool {
	communicator.windowsMu.Lock()
	defer communicator.windowsMu.Unlock()
	return slices.ContainsFunc(segments, func(s *segment) bool {
		return communicator.windows[s] != nil
	})
}
