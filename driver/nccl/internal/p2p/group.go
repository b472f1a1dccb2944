package p2p

import (
	"sync"
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// Owner is the communicator whose messages these are.
type Owner interface {
	stream.Group
	// NoteMessage remembers a message that is about to be queued. The locks of stream and owner are
	// held.
	NoteMessage(on *stream.Stream, call *driver.Call)
	// FailUnqueued fails the group over a call that others take for launched, and which this rank
	// could not queue.
	FailUnqueued(call *driver.Call, err error) error
	// AfterPeerFault fails the group after a peer has failed, and says why this rank cannot go on.
	AfterPeerFault(call *driver.Call) error
}

// Group describes the group of the messages.
type Group struct {
	Owner  Owner
	Device *Device
	Config *driver.GroupConfig
	Plane  control.Plane
	Busy   *stream.BusyStreams
	// Check reports whether the ends of a message are compared.
	Check *atomic.Bool
	// Ended is closed when the group has failed or is closed.
	Ended <-chan struct{}
	// Mu is the owner's lock, which is held while messages are queued.
	Mu interface {
		sync.Locker
		TryLock() bool
	}

	counts control.Messages // nil if the ranks cannot send messages to each other
}

// Device holds the state that the messages of all groups of a device share.
type Device struct {
	GPU      *gpu.GPU
	Streams  *stream.Streams
	Exporter *memory.Exporter
	// Descriptors are those of receives, and Copies the kernels that read them.
	Descriptors gpu.Pinned[kernels.Message]
	Copies      gpu.Code
	// Late counts the groups that have ended while streams had yet to come to messages of theirs.
	Late atomic.Int32

	mu      ranked.Mutex[deviceMu]
	closers []func() error // for the end of the device; guarded by mu
}

// atClose has a function called when the device closes.
func (d *Device) atClose(end func() error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closers = append(d.closers, end)
}

// Closers returns the functions to call once when the device closes.
func (d *Device) Closers() []func() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	closers := d.closers
	d.closers = nil
	return closers
}

// Plan is a prepared Send or Recv: one end of a message.
type Plan struct {
	*driver.Call
	// Address is where NCCL would be told that the buffer lies: in no window.
	Address uintptr
}

// bytes is the size of a message.
func (p *Plan) bytes() int64 { return p.Count * int64(p.DataType.Size()) }

// take makes a stream wait until a word is 1, and takes it back to 0.
func take(gpu *cuda.Driver, word uintptr, on cuda.Stream) error {
	if err := gpu.StreamWaitValue(on, word, 1, cuda.WaitEqual); err != nil {
		return err
	}
	return gpu.StreamWriteValue(on, word, 0)
}
