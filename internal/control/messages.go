package control

import "symmem/driver"

// Messages is what a Plane can do besides if its ranks are on one machine: it knows the messages
// that go between two of them. The data moves elsewhere, as that of collectives does.
//
// The n-th Send of one rank to another belongs to the n-th Recv there. Calls for one peer and
// direction are made one at a time.
type Messages interface {
	// Offer numbers this rank's end of the next message and shows it to the peer.
	Offer(call *driver.Call) Message
	// Answered reports whether the peer has shown its end of a message.
	Answered(call *driver.Call, number uint64) bool
	// Theirs returns what the peer has shown of its end of a message. It is known if it was Answered
	// and is one of the latest thousands. Of two ranks that Offer a message and then ask, at least one
	// knows the other's end.
	Theirs(call *driver.Call, number uint64) (theirs End, known bool)
	// Lost reports whether the process of a rank of the group has ended.
	Lost(peer int) bool
}

// Message is this rank's end of a message.
type Message struct {
	// Number counts the messages of the pair, from 1.
	Number uint64
	// After is how many tickets this rank had taken before.
	After uint64
}

// End is what a rank shows of its end of a message.
type End struct {
	// Digest and Tag are those of its call; After is how many tickets it had taken before.
	Digest, Tag, After uint64
}
