package kernels

// Message says where a message lies and where it goes: struct Message of src/message.h. It lies in
// host memory that the device reads and writes. The stream of a Recv writes MessageWaits to State,
// waits until Go is 1, and runs the kernels, which copy, and then write MessageDone to State and 0
// to Go in one store. The host writes the other fields before it sets Go, and writes them again
// only once State is MessageDone.
type Message struct {
	From, To, Bytes uint64
	// Taken is the address of a word that becomes 1 once the message has been copied, or 0.
	Taken     uint64
	State, Go uint32
	_         [3]uint64
}

// The states of a Message. The state is 0 until the stream has reached the message.
const (
	MessageWaits = 1
	MessageDone  = 2
)

// MessageObject is Object for messages.
func MessageObject(major, minor int) ([]byte, error) { return objectOf("message", major, minor) }

// Copy is a launch of a kernel that takes the address of a Message.
type Copy struct {
	Kernel          string
	Blocks, Threads int
}

// Copies are the launches that receive a message of a size, one after the other.
func Copies(bytes int64) []Copy {
	if bytes <= smallMessage {
		return []Copy{{"message_small", 1, min(messageThreads, up(int(bytes)+1, warp*threadBytes)*warp)}}
	}
	blocks := min(up(int(bytes), messageThreads*threadBytes), messageBlocks)
	return []Copy{{"message_copy", blocks, messageThreads}, {"message_done", 1, 1}}
}

const (
	// smallMessage is the size of a message up to which one block copies it.
	smallMessage = 32 << 10
	// messageThreads and messageBlocks are the most of a launch: 2 MiB are in flight then, more
	// than a link between GPUs holds.
	messageThreads, messageBlocks = 512, 64
	// threadBytes is the number of bytes that a thread copies at a time.
	threadBytes = 64
)

// up divides and rounds up.
func up(n, by int) int { return (n + by - 1) / by }
