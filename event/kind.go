package event

import "fmt"

// Kind classifies an event.
type Kind uint8

// The kinds of events that form a pool's history. The ranks compare their histories. The values are
// part of the wire format and must not change.
const (
	// KindSegment reports that a segment was mapped at the next free offset of the pool's arena
	// (its reserved address range).
	KindSegment Kind = iota + 1
	// KindAlloc reports that a block was allocated.
	KindAlloc
	// KindFree reports that a block was freed and can be reused immediately.
	KindFree
	// KindReturn reports that a block became free after a KindPark or KindDefer.
	KindReturn
	// KindPark reports that a block was freed while a captured graph still used it.
	KindPark
	// KindDefer reports that a block was freed while other streams may still be using it. Either
	// the caller freed it or, after a KindPark, the last graph that used it released it.
	KindDefer
	// KindTrim reports that a segment was removed from the pool.
	KindTrim
	// KindReserve reports that memory was reserved.
	KindReserve
	// KindNote reports that the caller recorded a number in the history.
	KindNote

	kindsInHistory
)

// The kinds of events of a pool that are not part of its history. Ranks do not compare them.
const (
	// KindUse reports that a stream uses a block that was allocated on another stream. After the
	// block has been freed, its memory is not reused until the stream has finished with it.
	KindUse Kind = iota + kindsInHistory
	// KindRelease reports that a segment was unmapped.
	KindRelease
	// KindRestart reports that, after a fault, the pool has the same state on all ranks again. Its
	// history continues at Number, and live blocks remain allocated. A KindRelease follows for each
	// segment that was removed.
	KindRestart
	// KindRegister reports that a segment was registered with the group that Name identifies. The
	// registration created a window.
	KindRegister
	// KindDeregister reports that a window was deregistered, or that it was closed with its group.
	KindDeregister
	// KindScopeBegin reports that a scope begins. Name identifies the scope's group, and is empty
	// for a disabled scope.
	KindScopeBegin
	// KindScopeEnd reports that a scope ends. If the scope registers segments, a KindRegister
	// follows for each of them.
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
	// KindFlag is like KindInteger, for a Boolean.
	KindFlag
	// KindFloat is like KindInteger, for a floating-point number.
	KindFloat
	// KindText is like KindInteger, for a string.
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

// String returns the name of k as shown in reports.
func (k Kind) String() string {
	if k == 0 || k >= kindEnd {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kindNames[k]
}

// InHistory reports whether events of kind k are part of a pool's history, which ranks compare.
func (k Kind) InHistory() bool { return k > 0 && k < kindsInHistory }

// IsGroupEvent reports whether events of kind k belong to a group rather than a pool.
func (k Kind) IsGroupEvent() bool { return k >= kindsOfPools && k < kindEnd }

func (k Kind) places() bool {
	return k == KindSegment || k == KindAlloc || k == KindReserve
}

// frees reports whether an event of kind k frees a block.
func (k Kind) frees() bool { return k == KindFree || k == KindPark || k == KindDefer }
