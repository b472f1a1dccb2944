package event

import "fmt"

// Kind classifies an event.
type Kind uint8

// Events of a pool's history: the requests that ranks compare, and their effects. Ranks exchange
// these values, so they must not change.
const (
	KindSegment Kind = iota + 1 // mapping of a segment at the next free offset of the pool
	KindAlloc                   // allocation of a block
	KindFree                    // free of a block that can be reused at once
	KindReturn                  // return of a block to the pool after KindPark or KindDefer
	KindPark                    // free of a block that a captured graph uses
	KindDefer                   // free of a block that other streams may still be using
	KindTrim                    // removal of a segment
	KindReserve                 // reservation of memory
	KindNote                    // number that the caller has recorded

	kindHistoryEnd // the next constants begin here
)

// Other events of a pool, which ranks do not compare. Event.Name is the id of the group of a
// registration or a scope. It is empty for a scope that registers nothing. (At the end of a scope,
// a group registers new segments.)
const (
	KindUse     Kind = iota + kindHistoryEnd // use of a block by another stream
	KindRelease                              // unmapping of a segment
	// KindRestart means that the ranks have restored the same state of the pool after a fault: its
	// history continues at Number. A KindRelease follows for each removed segment.
	KindRestart
	KindRegister     // registration of a segment with a group
	KindDeregister   // end of a registration
	KindScopeBegin   // beginning of a scope
	KindScopeEnd     // end of a scope; a KindRegister follows for each new segment
	KindScopeAbandon // end of a scope without registrations

	kindPoolEnd
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

	kindEnd
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
	KindUse:     "use",
	KindRelease: "release",
	KindRestart: "restart",

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

// String returns the name of k.
func (k Kind) String() string {
	if k == 0 || k >= kindEnd {
		return fmt.Sprintf("kind %d", uint8(k))
	}

	return kindNames[k]
}

// InHistory reports whether events of kind k are part of a pool's history.
func (k Kind) InHistory() bool { return k > 0 && k < kindHistoryEnd }

// IsGroupEvent reports whether events of kind k belong to a group, not to a pool.
func (k Kind) IsGroupEvent() bool { return k >= kindPoolEnd && k < kindEnd }

// isPlacement reports whether events of kind k place memory. Their Size may exceed Requested.
func (k Kind) isPlacement() bool {
	return k == KindSegment || k == KindAlloc || k == KindReserve
}

// isFree reports whether events of kind k end an allocation.
func (k Kind) isFree() bool { return k == KindFree || k == KindPark || k == KindDefer }
