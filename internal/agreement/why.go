package agreement

import (
	"encoding/binary"
	"fmt"

	"symmem/internal/ledger"
)

// Why classifies the difference at the first differing event. It is a hint for the reader of a
// report and not part of what was agreed.
type Why uint8

// The kinds of difference.
const (
	// WhyUnknown means that the difference could not be classified.
	WhyUnknown Why = iota
	// WhyExtra means an event that the other ranks do not have.
	WhyExtra
	// WhyMissing means that an event of the other ranks is missing.
	WhyMissing
	// WhySize means the same event with another size.
	WhySize
	// WhyPlace means the same request, placed at another segment or offset.
	WhyPlace
	// WhyOrder means two events in the opposite order.
	WhyOrder
	// WhyStream means the same event on another stream.
	WhyStream
	// WhyEvent means an unrelated event.
	WhyEvent
	// WhyHeld means that the same block was freed, and not all ranks could reuse it at once.
	WhyHeld
)

var whyNames = [...]string{
	"unknown", "extra event", "missing event", "different size", "different place",
	"different order", "different stream", "different event", "held block",
}

// String returns the name of w.
func (w Why) String() string {
	if int(w) >= len(whyNames) {
		return fmt.Sprintf("why %d", uint8(w))
	}
	return whyNames[w]
}

// sentence describes w for a report, comparing the deviant ranks with the usual ones.
func (w Why) sentence(n Names, deviant, usual []int) string {
	have := verb(deviant, "has", "have")
	a, b := n.short(deviant), n.short(usual)
	switch w {
	case WhyExtra:
		return fmt.Sprintf("%s %s an event that %s %s not", a, have, b, verb(usual, "has", "have"))
	case WhyMissing:
		return fmt.Sprintf("%s %s an event of %s", a, verb(deviant, "lacks", "lack"), b)
	case WhySize:
		return fmt.Sprintf("%s %s another size than %s", a, have, b)
	case WhyPlace:
		return fmt.Sprintf("%s %s the same request at another place than %s (so ranks place by address, "+
			"or differ in the streams that used a buffer before its free: see UseOn)", a, have, b)
	case WhyOrder:
		return fmt.Sprintf("%s %s the same events in another order than %s", a, have, b)
	case WhyStream:
		return fmt.Sprintf("%s %s the same event on another stream than %s (a pool numbers streams by "+
			"their first allocation there, from 1; 0 is the default stream)", a, have, b)
	case WhyEvent:
		return fmt.Sprintf("%s %s another event than %s", a, have, b)
	case WhyHeld:
		return "all have freed the same block, but only some ranks hold it for a graph (parked) or for " +
			"another stream (deferred): where a call uses a buffer on some ranks alone, also in a " +
			"capture, the others call UseOn for it"
	case WhyUnknown:
	}
	return ""
}

// explain classifies the difference between the usual variant and the first deviating one.
func explain(d *DivergenceError, w variants) Why {
	if d.sameFree() {
		return WhyHeld
	}
	usual, deviant := d.contrast()
	if usual < 0 || deviant < 0 {
		return WhyUnknown
	}
	u, v := d.Variants[usual], d.Variants[deviant]
	switch {
	case u.HasEvent && !v.HasEvent:
		return WhyMissing
	case !u.HasEvent && v.HasEvent:
		return WhyExtra
	case !u.HasEvent:
		return WhyUnknown
	case u.Event.SameRequest(v.Event):
		if u.Event.Kind == ledger.KindFree { // of different blocks
			return WhyEvent
		}
		return WhyPlace
	}
	return shift(u.Event, v.Event, words(w.list[usual].note), words(w.list[deviant].note))
}

// sameFree reports whether all ranks have freed the same block.
func (d *DivergenceError) sameFree() bool {
	for _, v := range d.Variants {
		if !v.HasEvent || !v.Event.SameFree(d.Variants[0].Event) {
			return false
		}
	}
	return len(d.Variants) > 1
}

// shift aligns the requests in the four ways that a single slip can explain, and picks the one with
// the most matching events. A substitution wins ties, since it assumes least.
func shift(u, v ledger.Event, usual, deviant []uint64) Why {
	best, why := matches(usual, deviant, 1, 1), substitution(u, v)
	if n := matches(usual, deviant, 0, 1); n > best {
		best, why = n, WhyExtra
	}
	if n := matches(usual, deviant, 1, 0); n > best {
		best, why = n, WhyMissing
	}
	swapped := len(usual) > 1 && len(deviant) > 1 &&
		usual[0] == deviant[1] && usual[1] == deviant[0]
	if swapped && 2+matches(usual, deviant, 2, 2) > best {
		why = WhyOrder
	}
	return why
}

func substitution(u, v ledger.Event) Why {
	switch {
	case u.Kind != v.Kind:
		return WhyEvent
	case u.Stream != v.Stream && u.Size == v.Size && u.Requested == v.Requested:
		return WhyStream
	case u.Stream == v.Stream:
		return WhySize
	}
	return WhyEvent
}

// matches counts the equal events of two lists of requests, beginning at the given indices.
func matches(a, b []uint64, fromA, fromB int) int {
	n := 0
	for fromA < len(a) && fromB < len(b) {
		if a[fromA] == b[fromB] {
			n++
		}
		fromA, fromB = fromA+1, fromB+1
	}
	return n
}

func words(b []byte) []uint64 {
	out := make([]uint64, len(b)/8)
	for i := range out {
		out[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return out
}
