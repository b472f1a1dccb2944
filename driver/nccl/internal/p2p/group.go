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
	"symmem/internal/ranked"
)

// Owner is implemented by the communicator that owns the messages.
type Owner interface {
	stream.Group
	// NoteMessage records a message before it is queued. The caller must hold the locks of the
	// stream and the owner.
	NoteMessage(s *stream.Stream, call *driver.Call)
	// FailUnqueued fails the group because this rank could not queue a call that its peers expect.
	FailUnqueued(call *driver.Call, err error) error
	// AfterPeerFault fails the group because a peer has failed. It returns the error with which the
	// call is refused.
	AfterPeerFault(call *driver.Call) error
}

// Group holds what messages need from the communicator that owns them.
type Group struct {
	Owner  Owner
	Device *Device
	Config *driver.GroupConfig
	Plane  control.Plane
	Busy   *stream.BusyStreams
	// Check is set if the Send and the Recv of each message are compared.
	Check *atomic.Bool
	// Ended is closed when the group has failed or has been closed.
	Ended <-chan struct{}
	// Mu is the owner's lock. It is held while messages are queued.
	Mu interface {
		sync.Locker
		TryLock() bool
	}
}

// Device holds the state for messages that all groups of a device share.
type Device struct {
	GPU      *gpu.GPU
	Streams  *stream.Streams
	Exporter *memory.Exporter
	// Descriptors allocates the descriptors of receives (see the package comment). Copies holds the
	// kernels that read a descriptor and copy the message.
	Descriptors gpu.Pinned[kernels.Message]
	Copies      gpu.Code
	// Late counts the groups that have failed or are closed but still have unfinished messages.
	Late atomic.Int32

	mu      ranked.Mutex[deviceMu]
	closers []func() error // called when the device closes; guarded by mu
}

// onClose registers a function to be called when the device closes.
func (d *Device) onClose(closer func() error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closers = append(d.closers, closer)
}

// Closers returns the functions registered by onClose since the last call of Closers.
func (d *Device) Closers() []func() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	closers := d.closers
	d.closers = nil
	return closers
}

// Plan is a prepared Send or Recv.
type Plan struct {
	*driver.Call
	// Address is the address at which the buffer is mapped outside all windows.
	Address uintptr
}

func (p *Plan) bytes() int64 { return p.Count * int64(p.DataType.Size()) }
