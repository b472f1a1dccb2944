package event

import "fmt"

// Kind classifies an event.
type Kind uint8

// The kinds of events in the history of a pool, which ranks compare. Their values are part of the
// wire format and must not change.
const (
	// KindSegment reports that a segment was mapped at the next offset of the arena.
	KindSegment Kind = iota + 1
	// KindAlloc reports that a block was allocated.
	KindAlloc
	// KindFree reports that a block was freed and can be reused immediately.
	KindFree
	// KindReturn reports that a parked or deferred block became free.
	KindReturn
	// KindPark reports that a block was freed while a graph still used it.
	KindPark
	// KindDefer reports that a block that other streams may still use was freed, either by the
	// caller or because its last graph released it.
	KindDefer
	// KindTrim reports that a segment was removed from the pool.
	KindTrim
	// KindReserve reports that memory was reserved.
	KindReserve
	// KindNote reports that the caller recorded a number in the history.
	KindNote

	kindsInHistory
)

// The other kinds of events of a pool. Ranks do not compare them.
const (
	// KindUse reports that a stream uses a block that was allocated on another one. The block's
	// memory is not reused until that stream has finished with it.
	KindUse Kind = iota + kindsInHistory
	// KindRelease reports that a segment was unmapped.
	KindRelease
	// KindRestart reports that the ranks realigned the pool after a fault. The history continues at
	// Number, and live blocks remain. A KindRelease follows for each segment that was removed.
	KindRestart
	// KindRegister reports that a segment was registered with the group Name, which created a window.
	KindRegister
	// KindDeregister reports that a window was deregistered, or that it was closed with its group.
	KindDeregister
	// KindScopeBegin reports that a scope of the group Name begins. The name of a disabled scope is
	// empty.
	KindScopeBegin
	// KindScopeEnd reports that a scope ends. Its registrations follow.
	KindScopeEnd
	// KindScopeAbandon reports that a scope ends without registering.
	KindScopeAbandon

	kindsOfPools
)

// The kinds of events of a group.
const (
	// KindCollective reports that a collective, Send or Recv is about to be submitted.
	KindCollective Kind = iota + kindsOfPools
	// KindInteger reports that the ranks compared or combined an integer on the host.
	KindInteger
	// KindFlag is KindInteger for a Boolean.
	KindFlag
	// KindFloat is KindInteger for a floating-point number.
	KindFloat
	// KindText is KindInteger for a text.
	KindText
	// KindStep reports that a step of the program begins.
	KindStep
	// KindFault reports that the group has failed.
	KindFault

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

// String returns the name of k in reports.
func (k Kind) String() string {
	if k == 0 || k >= kindEnd {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kindNames[k]
}

// InHistory reports whether events of kind k are part of a pool's history, which ranks compare.
func (k Kind) InHistory() bool { return k > 0 && k < kindsInHistory }

// OfGroup reports whether events of kind k belong to a group rather than a pool.
func (k Kind) OfGroup() bool { return k >= kindsOfPools && k < kindEnd }

func (k Kind) places() bool {
	return k == KindSegment || k == KindAlloc || k == KindReserve
}

// frees reports whether an event of kind k frees a block.
func (k Kind) frees() bool { return k == KindFree || k == KindPark || k == KindDefer }
