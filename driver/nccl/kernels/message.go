package kernels

// Message describes the copy of one message, in the layout of struct Message in src/message.h, in
// host memory. The stream of a Recv sets State to MessageWaits, waits until Go is 1, and runs the
// copy kernels, which set State to MessageDone and Go to 0 in a single write. The host may write
// the other fields only before it sets Go to 1.
type Message struct {
	From, To, Bytes uint64
	Taken           uint64 // address of a word that is set to 1 after the copy, or 0
	State, Go       uint32
	_               [3]uint64
}

// The states of a Message. State is 0 until the stream reaches the Recv.
const (
	MessageWaits = 1
	MessageDone  = 2
)

// MessageObject is Object for the message kernels.
func MessageObject(major, minor int) ([]byte, error) { return loadObject("message", major, minor) }

// Copy describes a launch of a kernel whose only argument is the address of a Message.
type Copy struct {
	Kernel          string
	Blocks, Threads int
}

// Copies returns the launches that copy a message of the given size, in execution order.
func Copies(bytes int64) []Copy {
	if bytes <= smallMessage {
		// Even an empty message needs a thread.
		warps := ceilDiv(int(bytes)+1, warp*threadBytes)
		return []Copy{{"message_small", 1, min(messageThreads, warps*warp)}}
	}

	blocks := min(ceilDiv(int(bytes), messageThreads*threadBytes), messageBlocks)
	return []Copy{{"message_copy", blocks, messageThreads}, {"message_done", 1, 1}}
}

const (
	smallMessage = 32 << 10 // copied by one block
	// The grid has at most 2 MiB in flight, which saturates a link between GPUs.
	messageThreads, messageBlocks = 512, 64
	threadBytes                   = 64
)

func ceilDiv(n, divisor int) int { return (n + divisor - 1) / divisor }
