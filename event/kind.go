package event

import "fmt"

// A pool maps segments of memory, and allocates blocks in them. A group makes calls in which its
// ranks exchange data, such as collectives. For example, a rank records these events:
//
//	pool    KindSegment     the pool maps segment 0
//	pool    KindAlloc       it allocates a block in segment 0
//	pool    KindRegister    it registers segment 0 with a group
//	group   KindCollective  the group sums up the ranks' blocks, on stream 1
//	pool    KindDefer       the program frees the block, but stream 1 may still be using it
//	pool    KindReturn      stream 1 has finished, so the block can be allocated again

// Kind classifies an event. Traces contain these values, and ranks exchange some of them, so they
// must not change.
type Kind uint8

// Events in the history of a pool. Ranks that share the pool compare their histories, which must be
// the same.
const (
	KindSegment Kind = iota + 1 // mapping of a segment
	KindAlloc                   // allocation of a block
	KindFree                    // free of a block that can be allocated again at once
	KindReturn                  // the block of an earlier KindPark or KindDefer can be allocated again
	KindPark                    // free of a block that a captured graph uses
	KindDefer                   // free of a block that other streams may still be using
	KindTrim                    // removal of a segment
	KindReserve                 // reservation of memory
	KindNote                    // number that the program has recorded

	kindHistoryEnd // one more than the largest Kind above
)

// Other events of a pool. Ranks do not compare them.
//
// A scope is a part of the program. At its end, a group registers the pool's new segments, unless
// the scope has no group. Event.Name is the id of the group of a registration or a scope.
const (
	KindUse     Kind = iota + kindHistoryEnd // use of a block by another stream
	KindRelease                              // unmapping of a segment
	// KindRestart means that the ranks have restored the same state of the pool after a fault. The
	// history continues at Event.Number. A KindRelease follows for each removed segment.
	KindRestart
	KindRegister     // registration of a segment with a group
	KindDeregister   // end of a registration
	KindScopeBegin   // beginning of a scope
	KindScopeEnd     // end of a scope; a KindRegister follows for each new segment
	KindScopeAbandon // end of a scope without registrations

	kindPoolEnd // one more than the largest Kind above
)

// Events of a group.
const (
	KindCollective Kind = iota + kindPoolEnd // submission of a collective, Send or Recv
	KindInteger                              // comparison or combination of the ranks' integers
	KindFlag                                 // the same for Booleans
	KindFloat                                // the same for floats
	KindText                                 // the same for strings
	KindStep                                 // beginning of a step of the program
	KindFault                                // failure of the group

	kindEnd // one more than the largest Kind above
)

var kindNames = [kindEnd]string{
	KindSegment: "segment",
	KindAlloc:   "alloc",
	KindFree:    "free",
	KindReturn:  "return",
	KindPark:    "parked free",
	KindDefer:   "deferred free",
	KindTrim:    "trim",
	KindReserve: "reserve",
	KindNote:    "note",

	KindUse:          "use",
	KindRelease:      "release",
	KindRestart:      "restart",
	KindRegister:     "register",
	KindDeregister:   "deregister",
	KindScopeBegin:   "scope begin",
	KindScopeEnd:     "scope end",
	KindScopeAbandon: "scope abandon",

	KindCollective: "collective",
	KindInteger:    "integer",
	KindFlag:       "flag",
	KindFloat:      "float",
	KindText:       "text",
	KindStep:       "step",
	KindFault:      "fault",
}

// String returns the name of the kind, such as "parked free" for KindPark.
func (k Kind) String() string {
	isKnown := k > 0 && k < kindEnd
	if !isKnown {
		return fmt.Sprintf("kind %d", uint8(k))
	}

	return kindNames[k]
}

// InHistory reports whether the history of a pool contains events of this kind.
func (k Kind) InHistory() bool { return k > 0 && k < kindHistoryEnd }

// IsGroupEvent reports whether events of this kind belong to a group. Other events belong to a
// pool.
func (k Kind) IsGroupEvent() bool { return k >= kindPoolEnd && k < kindEnd }

// isPlacement reports whether events of this kind place or reserve memory. The Size of the event
// can be larger than Requested.
func (k Kind) isPlacement() bool {
	return k == KindSegment || k == KindAlloc || k == KindReserve
}

// isFree reports whether events of this kind free a block.
func (k Kind) isFree() bool { return k == KindFree || k == KindPark || k == KindDefer }
