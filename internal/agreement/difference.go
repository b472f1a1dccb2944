package agreement

import (
	"fmt"

	"symmem/event"
)

// Difference is a guess how the history of a pool differs between ranks. The usual ranks have the
// most frequent history, and deviant ranks have another. In this example, rank 2 is deviant, with a
// DifferenceMissingEvent:
//
//	ranks 0, 1    alloc 4 KiB    alloc 8 KiB    free
//	rank 2        alloc 8 KiB    free           alloc 1 KiB
type Difference uint8

const (
	// DifferenceUnknown means that there is no guess.
	DifferenceUnknown Difference = iota
	// DifferenceExtraEvent marks an event that only the deviant ranks have.
	DifferenceExtraEvent
	// DifferenceMissingEvent marks an event that only the usual ranks have.
	DifferenceMissingEvent
	// DifferenceSize marks events that differ in their sizes.
	DifferenceSize
	// DifferencePlace marks events that differ only in the segment or the offset.
	DifferencePlace
	// DifferenceOrder marks two events in reverse order.
	DifferenceOrder
	// DifferenceStream marks events that differ in the stream.
	DifferenceStream
	// DifferenceUnrelatedEvent marks events that have nothing in common.
	DifferenceUnrelatedEvent
	// DifferenceHeldBlock marks a freed block that a graph or another stream holds on some ranks.
	DifferenceHeldBlock
)

var differenceNames = [...]string{
	DifferenceUnknown:        "unknown",
	DifferenceExtraEvent:     "extra event",
	DifferenceMissingEvent:   "missing event",
	DifferenceSize:           "different size",
	DifferencePlace:          "different place",
	DifferenceOrder:          "different order",
	DifferenceStream:         "different stream",
	DifferenceUnrelatedEvent: "different event",
	DifferenceHeldBlock:      "held block",
}

func (d Difference) String() string {
	if int(d) >= len(differenceNames) {
		return fmt.Sprintf("difference %d", uint8(d))
	}

	return differenceNames[d]
}

func (d Difference) describe(names Names, deviantRanks, usualRanks []int) string {
	deviant, usual := names.shortRanks(deviantRanks), names.shortRanks(usualRanks)
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
	default: // DifferenceUnknown
		return ""
	}
}

// classify compares the usual variant of d with the first deviant one. d.Variants and sides.list
// have the same indexes.
func classify(d *DivergenceError, sides contributions) Difference {
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

	if usual.Event.SameRequest(&deviant.Event) {
		if usual.Event.Kind == event.KindFree { // the ranks freed different blocks
			return DifferenceUnrelatedEvent
		}

		return DifferencePlace
	}

	usualRequests := decodeUint64s(sides.list[usualIndex].detail)
	deviantRequests := decodeUint64s(sides.list[deviantIndex].detail)
	return classifyByAlignment(usual.Event, deviant.Event, usualRequests, deviantRequests)
}

// freesSameBlock reports whether there are several variants, and all free the same block.
func (d *DivergenceError) freesSameBlock() bool {
	for _, v := range d.Variants {
		if !v.HasEvent || !v.Event.SameFree(&d.Variants[0].Event) {
			return false
		}
	}

	return len(d.Variants) > 1
}

// classifyByAlignment guesses whether the deviant ranks changed, added, omitted or swapped an
// event. It compares digests of requests, from this event on. If the deviant ranks added an event,
// for example, their second request equals the first usual one. The first guess with the most
// matches wins.
func classifyByAlignment(
	usual, deviant event.Event, usualRequests, deviantRequests []uint64,
) Difference {
	laterUsual := withoutFirst(usualRequests)
	laterDeviant := withoutFirst(deviantRequests)
	guesses := []struct {
		difference Difference
		matches    int
	}{
		{classifyChangedEvent(usual, deviant), countMatches(laterUsual, laterDeviant)},
		{DifferenceExtraEvent, countMatches(usualRequests, laterDeviant)},
		{DifferenceMissingEvent, countMatches(laterUsual, deviantRequests)},
		{DifferenceOrder, countSwappedMatches(usualRequests, deviantRequests)},
	}
	best := guesses[0]
	for _, g := range guesses {
		if g.matches > best.matches {
			best = g
		}
	}

	return best.difference
}

func withoutFirst(requests []uint64) []uint64 { return requests[min(1, len(requests)):] }

// countSwappedMatches returns the number of matches after swapping the first two requests of a, or
// 0 if b does not begin with the swapped requests.
func countSwappedMatches(a, b []uint64) int {
	if len(a) < 2 || len(b) < 2 {
		return 0
	}

	areSwapped := a[0] == b[1] && a[1] == b[0]
	if !areSwapped {
		return 0
	}

	return 2 + countMatches(a[2:], b[2:])
}

// classifyChangedEvent returns the difference between two events with different requests.
func classifyChangedEvent(a, b event.Event) Difference {
	isSameKind := a.Kind == b.Kind
	isSameStream := a.Stream == b.Stream
	isSameSize := a.Size == b.Size && a.Requested == b.Requested
	switch {
	case isSameKind && isSameStream: // so the sizes differ
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
