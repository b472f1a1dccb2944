package agreement

import (
	"encoding/binary"
	"fmt"

	"symmem/event"
)

// Difference classifies the first event that differs between ranks. It is a guess that only helps
// the reader of a report.
type Difference uint8

const (
	// DifferenceUnknown marks a difference that could not be classified.
	DifferenceUnknown Difference = iota
	// DifferenceExtra marks an event that only the deviant ranks have.
	DifferenceExtra
	// DifferenceMissing marks an event that only the other ranks have.
	DifferenceMissing
	// DifferenceSize marks the same event with a different size.
	DifferenceSize
	// DifferencePlace marks the same request with a different segment or offset.
	DifferencePlace
	// DifferenceOrder marks two events in reverse order.
	DifferenceOrder
	// DifferenceStream marks the same event on a different stream.
	DifferenceStream
	// DifferenceEvent marks an unrelated event.
	DifferenceEvent
	// DifferenceHeld marks a block that all ranks freed, but that only some could reuse
	// immediately.
	DifferenceHeld
)

var differenceNames = [...]string{
	"unknown", "extra event", "missing event", "different size", "different place",
	"different order", "different stream", "different event", "held block",
}

// String returns the name of d.
func (d Difference) String() string {
	if int(d) >= len(differenceNames) {
		return fmt.Sprintf("difference %d", uint8(d))
	}
	return differenceNames[d]
}

// sentence describes how the deviant ranks differ from the usual ones.
func (d Difference) sentence(n Names, deviant, usual []int) string {
	have := verb(deviant, "has", "have")
	a, b := n.short(deviant), n.short(usual)
	switch d {
	case DifferenceExtra:
		return fmt.Sprintf("%s %s an event that %s %s not have", a, have, b, verb(usual, "does", "do"))
	case DifferenceMissing:
		return fmt.Sprintf("%s %s an event that %s %s", a, verb(deviant, "lacks", "lack"), b,
			verb(usual, "has", "have"))
	case DifferenceSize:
		return fmt.Sprintf("%s %s a different size than %s", a, have, b)
	case DifferencePlace:
		return fmt.Sprintf("%s %s the same request at a different place than %s (either placement "+
			"depends on addresses, or the ranks used a buffer on different streams before freeing it; "+
			"see UseOn)", a, have, b)
	case DifferenceOrder:
		return fmt.Sprintf("%s %s the same events in a different order than %s", a, have, b)
	case DifferenceStream:
		return fmt.Sprintf("%s %s the same event on a different stream than %s (a pool numbers streams "+
			"from 1, in the order of their first allocation; 0 is the default stream)", a, have, b)
	case DifferenceEvent:
		return fmt.Sprintf("%s %s a different event than %s", a, have, b)
	case DifferenceHeld:
		return "all ranks freed the same block, but some ranks keep it for a graph (parked) or for " +
			"another stream (deferred): if a call or a capture uses a buffer on only some ranks, the " +
			"other ranks must call UseOn for it"
	case DifferenceUnknown:
	}
	return ""
}

// classify compares the usual variant with the first one that deviates. The notes in events hold
// the digests of the requests from the differing event on.
func classify(d *DivergenceError, events variants) Difference {
	if d.sameFree() {
		return DifferenceHeld
	}
	usual, deviant := d.usualAndDeviant()
	if usual < 0 || deviant < 0 {
		return DifferenceUnknown
	}
	u, v := d.Variants[usual], d.Variants[deviant]
	switch {
	case u.HasEvent && !v.HasEvent:
		return DifferenceMissing
	case !u.HasEvent && v.HasEvent:
		return DifferenceExtra
	case !u.HasEvent:
		return DifferenceUnknown
	case u.Event.SameRequest(&v.Event):
		if u.Event.Kind == event.KindFree {
			return DifferenceEvent // The ranks freed different blocks.
		}
		return DifferencePlace
	}
	return classifyAligned(u.Event, v.Event,
		decodeWords(events.list[usual].note), decodeWords(events.list[deviant].note))
}

func (d *DivergenceError) sameFree() bool {
	for _, v := range d.Variants {
		if !v.HasEvent || !v.Event.SameFree(&d.Variants[0].Event) {
			return false
		}
	}
	return len(d.Variants) > 1
}

// classifyAligned aligns the lists of requests as after a changed, an extra or a missing event, or
// two swapped events. It returns the difference with the most matching requests and, on a tie,
// prefers a changed event.
func classifyAligned(u, v event.Event, usual, deviant []uint64) Difference {
	best, d := matches(usual, deviant, 1, 1), classifySubstitution(u, v)
	if n := matches(usual, deviant, 0, 1); n > best {
		best, d = n, DifferenceExtra
	}
	if n := matches(usual, deviant, 1, 0); n > best {
		best, d = n, DifferenceMissing
	}
	swapped := len(usual) > 1 && len(deviant) > 1 &&
		usual[0] == deviant[1] && usual[1] == deviant[0]
	if swapped && 2+matches(usual, deviant, 2, 2) > best {
		d = DifferenceOrder
	}
	return d
}

func classifySubstitution(u, v event.Event) Difference {
	switch {
	case u.Kind != v.Kind:
		return DifferenceEvent
	case u.Stream != v.Stream && u.Size == v.Size && u.Requested == v.Requested:
		return DifferenceStream
	case u.Stream == v.Stream:
		return DifferenceSize
	}
	return DifferenceEvent
}

func matches(a, b []uint64, startA, startB int) int {
	n := 0
	for startA < len(a) && startB < len(b) {
		if a[startA] == b[startB] {
			n++
		}
		startA, startB = startA+1, startB+1
	}
	return n
}

func decodeWords(b []byte) []uint64 {
	out := make([]uint64, len(b)/8)
	for i := range out {
		out[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return out
}
