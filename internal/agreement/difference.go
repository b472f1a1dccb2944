package agreement

import (
	"encoding/binary"
	"fmt"

	"symmem/event"
)

// Difference classifies the first differing event of two histories. It is a guess for the text of
// a DivergenceError.
type Difference uint8

const (
	// DifferenceUnknown marks a difference that could not be classified.
	DifferenceUnknown Difference = iota
	// DifferenceExtraEvent marks an event that only the deviant ranks have.
	DifferenceExtraEvent
	// DifferenceMissingEvent marks an event that only the other ranks have.
	DifferenceMissingEvent
	// DifferenceSize marks the same event with a different size.
	DifferenceSize
	// DifferencePlace marks the same request, but with a different segment or offset in the pool.
	DifferencePlace
	// DifferenceOrder marks two events in reverse order.
	DifferenceOrder
	// DifferenceStream marks the same event on a different stream.
	DifferenceStream
	// DifferenceUnrelatedEvent marks events that have nothing in common.
	DifferenceUnrelatedEvent
	// DifferenceHeldBlock marks a block that all ranks freed but only some can reuse at once.
	DifferenceHeldBlock
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

// describe returns a sentence on how the deviant ranks differ from the usual ranks, which have the
// most frequent variant.
func (d Difference) describe(n Names, deviantRanks, usualRanks []int) string {
	have := chooseVerb(deviantRanks, "has", "have")
	a, b := n.shortRanks(deviantRanks), n.shortRanks(usualRanks)
	switch d {
	case DifferenceExtraEvent:
		return fmt.Sprintf("%s %s an event that %s %s not have", a, have, b,
			chooseVerb(usualRanks, "does", "do"))
	case DifferenceMissingEvent:
		return fmt.Sprintf("%s %s an event that %s %s", a, chooseVerb(deviantRanks, "lacks", "lack"), b,
			chooseVerb(usualRanks, "has", "have"))
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
	case DifferenceUnrelatedEvent:
		return fmt.Sprintf("%s %s a different event than %s", a, have, b)
	case DifferenceHeldBlock:
		return "all ranks freed the same block, but some ranks keep it for a graph (parked) or for " +
			"another stream (deferred): if a call or a capture uses a buffer on only some ranks, the " +
			"other ranks must call UseOn for it"
	case DifferenceUnknown:
	}
	return ""
}

// classify compares the most frequent variant of d with the first other variant. The details in
// events hold digests of each rank's requests, from the differing event on.
func classify(d *DivergenceError, events contributions) Difference {
	if d.freesSameBlock() {
		return DifferenceHeldBlock
	}
	usualIndex, deviantIndex := d.indexesOfUsualAndDeviant()
	if usualIndex < 0 || deviantIndex < 0 {
		return DifferenceUnknown
	}
	usual, deviant := d.Variants[usualIndex], d.Variants[deviantIndex]
	switch {
	case usual.HasEvent && !deviant.HasEvent:
		return DifferenceMissingEvent
	case !usual.HasEvent && deviant.HasEvent:
		return DifferenceExtraEvent
	case !usual.HasEvent:
		return DifferenceUnknown
	case usual.Event.SameRequest(&deviant.Event):
		if usual.Event.Kind == event.KindFree {
			return DifferenceUnrelatedEvent // the ranks freed different blocks
		}
		return DifferencePlace
	}
	return classifyByAlignment(usual.Event, deviant.Event,
		decodeUint64s(events.list[usualIndex].detail), decodeUint64s(events.list[deviantIndex].detail))
}

// freesSameBlock reports whether all ranks freed the same block.
func (d *DivergenceError) freesSameBlock() bool {
	for _, v := range d.Variants {
		if !v.HasEvent || !v.Event.SameFree(&d.Variants[0].Event) {
			return false
		}
	}
	return len(d.Variants) > 1
}

// classifyByAlignment compares the requests of usual and deviant ranks, which begin with the
// differing events. It compares them as if the deviant ranks had changed, added, omitted or
// swapped an event, and returns the case in which most of the later requests match, preferably a
// change.
func classifyByAlignment(
	usual, deviant event.Event, usualRequests, deviantRequests []uint64,
) Difference {
	d := classifyChangedEvent(usual, deviant)
	bestCount := countMatches(usualRequests, deviantRequests, 1, 1)
	if n := countMatches(usualRequests, deviantRequests, 0, 1); n > bestCount {
		bestCount, d = n, DifferenceExtraEvent
	}
	if n := countMatches(usualRequests, deviantRequests, 1, 0); n > bestCount {
		bestCount, d = n, DifferenceMissingEvent
	}
	isSwapped := len(usualRequests) > 1 && len(deviantRequests) > 1 &&
		usualRequests[0] == deviantRequests[1] && usualRequests[1] == deviantRequests[0]
	if isSwapped && 2+countMatches(usualRequests, deviantRequests, 2, 2) > bestCount {
		d = DifferenceOrder
	}
	return d
}

// classifyChangedEvent returns the difference between two events with different requests.
func classifyChangedEvent(a, b event.Event) Difference {
	isSameSize := a.Size == b.Size && a.Requested == b.Requested
	switch {
	case a.Kind != b.Kind:
		return DifferenceUnrelatedEvent
	case a.Stream != b.Stream && isSameSize:
		return DifferenceStream
	case a.Stream == b.Stream:
		return DifferenceSize
	}
	return DifferenceUnrelatedEvent
}

// countMatches returns the number of equal elements at the same distances from startA in a and
// startB in b.
func countMatches(a, b []uint64, startA, startB int) int {
	n := 0
	for startA < len(a) && startB < len(b) {
		if a[startA] == b[startB] {
			n++
		}
		startA, startB = startA+1, startB+1
	}
	return n
}

func decodeUint64s(b []byte) []uint64 {
	out := make([]uint64, len(b)/8)
	for i := range out {
		out[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return out
}
