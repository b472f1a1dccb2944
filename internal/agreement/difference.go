package agreement

import (
	"encoding/binary"
	"fmt"

	"symmem/event"
)

// Suppose that the ranks of a group have these histories of a pool, which are equal up to event 6:
//
//	          event 7        event 8         event 9
//	rank 0    alloc 4 KiB    alloc 8 KiB     free
//	rank 1    alloc 4 KiB    alloc 8 KiB     free
//	rank 2    alloc 8 KiB    free            alloc 1 KiB
//
// Ranks 0 and 1 are the usual ranks, because their history is the most frequent one. Rank 2 is the
// deviant rank. Its events 7 and 8 equal events 8 and 9 of the usual ranks. So rank 2 probably
// lacks an event, which an error then reports to the user as a DifferenceMissingEvent.
//
// Each history is a variant of a DivergenceError. The events are compared by their requests. A
// request is an event without the place in the pool, and is represented by a digest (hash).

// Difference describes how the event of the deviant ranks differs from that of the usual ranks. It
// is a guess.
type Difference uint8

const (
	// DifferenceUnknown marks a difference without a guess.
	DifferenceUnknown Difference = iota
	// DifferenceExtraEvent marks an event that only the deviant ranks have.
	DifferenceExtraEvent
	// DifferenceMissingEvent marks an event that only the usual ranks have.
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
	// DifferenceHeldBlock marks a block that all ranks have freed. On some ranks, the block's
	// memory can be reused at once. On others, a graph or another stream holds the memory.
	DifferenceHeldBlock
)

// differenceNames holds the names of the constants above, in their order.
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

// describe returns a sentence that describes the difference to users. n determines the names of
// ranks.
func (d Difference) describe(n Names, deviantRanks, usualRanks []int) string {
	deviant, usual := n.shortRanks(deviantRanks), n.shortRanks(usualRanks)
	have := chooseVerb(deviantRanks, "has", "have")
	switch d {
	case DifferenceExtraEvent:
		do := chooseVerb(usualRanks, "does", "do")
		return fmt.Sprintf("%s %s an event that %s %s not have", deviant, have, usual, do)
	case DifferenceMissingEvent:
		lack := chooseVerb(deviantRanks, "lacks", "lack")
		usualHave := chooseVerb(usualRanks, "has", "have")
		return fmt.Sprintf("%s %s an event that %s %s", deviant, lack, usual, usualHave)
	case DifferenceSize:
		return fmt.Sprintf("%s %s a different size than %s", deviant, have, usual)
	case DifferencePlace:
		return fmt.Sprintf("%s %s the same request at a different place than %s (either placement "+
			"depends on addresses, or the ranks used a buffer on different streams before freeing it; "+
			"see UseOn)", deviant, have, usual)
	case DifferenceOrder:
		return fmt.Sprintf("%s %s the same events in a different order than %s",
			deviant, have, usual)
	case DifferenceStream:
		return fmt.Sprintf("%s %s the same event on a different stream than %s (a pool numbers streams "+
			"from 1, in the order of their first allocation; 0 is the default stream)",
			deviant, have, usual)
	case DifferenceUnrelatedEvent:
		return fmt.Sprintf("%s %s a different event than %s", deviant, have, usual)
	case DifferenceHeldBlock:
		return "all ranks freed the same block, but some ranks keep it for a graph (parked) or for " +
			"another stream (deferred): if a call or a capture uses a buffer on only some ranks, the " +
			"other ranks must call UseOn for it"
	case DifferenceUnknown: // has no sentence
	}

	return ""
}

// classify compares the usual variant of d with the first deviant one. events.list has an entry for
// each variant. Its detail holds digests of requests: that of the differing event and those of the
// next events.
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
	case !usual.HasEvent && !deviant.HasEvent:
		return DifferenceUnknown
	case !deviant.HasEvent:
		return DifferenceMissingEvent
	case !usual.HasEvent:
		return DifferenceExtraEvent
	}

	isSameRequest := usual.Event.SameRequest(&deviant.Event)
	isFree := usual.Event.Kind == event.KindFree
	switch {
	case isSameRequest && isFree:
		return DifferenceUnrelatedEvent // the ranks freed different blocks
	case isSameRequest:
		return DifferencePlace
	}

	usualRequests := decodeUint64s(events.list[usualIndex].detail)
	deviantRequests := decodeUint64s(events.list[deviantIndex].detail)
	return classifyByAlignment(usual.Event, deviant.Event, usualRequests, deviantRequests)
}

// freesSameBlock reports whether there are several variants that all free the same block.
func (d *DivergenceError) freesSameBlock() bool {
	for _, v := range d.Variants {
		if !v.HasEvent || !v.Event.SameFree(&d.Variants[0].Event) {
			return false
		}
	}

	return len(d.Variants) > 1
}

// classifyByAlignment guesses the difference from the requests of the differing events and of the
// events that follow. The deviant ranks may have changed, added, omitted or swapped an event.
//
// Each case shifts the later requests in another way. For example, if the deviant ranks have added
// an event, their second request equals the first request of the usual ranks. classifyByAlignment
// returns the case in which most requests match. If two are equally good, it prefers a change.
func classifyByAlignment(
	usual, deviant event.Event, usualRequests, deviantRequests []uint64,
) Difference {
	// countWithout counts the requests that match if both histories skip their first requests.
	countWithout := func(usualSkipped, deviantSkipped int) int {
		usualRest := usualRequests[min(usualSkipped, len(usualRequests)):]
		deviantRest := deviantRequests[min(deviantSkipped, len(deviantRequests)):]
		return countMatches(usualRest, deviantRest)
	}
	best, bestCount := classifyChangedEvent(usual, deviant), countWithout(1, 1)
	if count := countWithout(0, 1); count > bestCount {
		best, bestCount = DifferenceExtraEvent, count
	}

	if count := countWithout(1, 0); count > bestCount {
		best, bestCount = DifferenceMissingEvent, count
	}

	hasTwo := len(usualRequests) > 1 && len(deviantRequests) > 1
	if !hasTwo {
		return best
	}

	isSwapped := usualRequests[0] == deviantRequests[1] && usualRequests[1] == deviantRequests[0]
	const swappedCount = 2 // the swapped requests match, too
	if isSwapped && swappedCount+countWithout(2, 2) > bestCount {
		best = DifferenceOrder
	}

	return best
}

// classifyChangedEvent returns the difference between two events with different requests.
func classifyChangedEvent(a, b event.Event) Difference {
	isSameKind := a.Kind == b.Kind
	isSameStream := a.Stream == b.Stream
	isSameSize := a.Size == b.Size && a.Requested == b.Requested
	switch {
	case isSameKind && isSameStream:
		return DifferenceSize
	case isSameKind && isSameSize:
		return DifferenceStream
	}

	return DifferenceUnrelatedEvent
}

// countMatches returns the number of indexes at which a and b are equal.
func countMatches(a, b []uint64) int {
	count := 0
	for i := range min(len(a), len(b)) {
		if a[i] == b[i] {
			count++
		}
	}

	return count
}

// decodeUint64s decodes numbers that appendUint64s has encoded.
func decodeUint64s(b []byte) []uint64 {
	out := make([]uint64, len(b)/8)
	for i := range out {
		out[i] = binary.LittleEndian.Uint64(b[8*i:])
	}

	return out
}
