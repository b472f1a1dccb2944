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

// Owner is the communicator (the backend's state of a group) for which the messages are sent.
type Owner interface {
	stream.Group
	// NoteMessage adds a Send or Recv to the group's history. The caller must hold the stream's lock
	// and Group.Mu.
	NoteMessage(s *stream.Stream, call *driver.Call)
	// FailUnqueued fails the group because call could not be queued, and returns the cause.
	FailUnqueued(call *driver.Call, err error) error
	// FailAfterPeer fails the group because a peer has failed, and returns the cause.
	FailAfterPeer(call *driver.Call) error
}

// Group describes a group of ranks that can send messages to each other.
type Group struct {
	Owner  Owner
	Device *Device
	Config *driver.GroupConfig
	Plane  control.Plane       // connection between the ranks outside NCCL
	Busy   *stream.BusyStreams // streams on which the group may have unfinished work
	Check  *atomic.Bool        // whether the Send and the Recv of each message are compared
	Ended  <-chan struct{}     // closed when the group has failed or has been closed
	// Mu is the owner's lock. The owner holds it while it queues a message.
	Mu interface {
		sync.Locker
		TryLock() bool
	}
}

// Device holds the state that all groups on a GPU share.
type Device struct {
	GPU      *gpu.GPU
	Streams  *stream.Streams
	Exporter *memory.Exporter // shares memory with other processes
	// Descriptors is a pool of descriptors, which contain the addresses for a Recv's copy. The GPU
	// reads them from host memory.
	Descriptors      gpu.Pinned[kernels.Message]
	Copies           gpu.Code     // kernels that copy messages
	UnfinishedGroups atomic.Int32 // failed or closed groups with unfinished messages

	mu      ranked.Mutex[deviceMu]
	closers []func() error // to call when the device closes; guarded by mu
}

func (d *Device) onClose(closer func() error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closers = append(d.closers, closer)
}

// TakeClosers removes and returns the functions to call when the device closes.
func (d *Device) TakeClosers() []func() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	closers := d.closers
	d.closers = nil
	return closers
}

// Plan is a Send or a Recv with the address of its buffer.
type Plan struct {
	*driver.Call
	Address uintptr // not registered with NCCL
}

func (p *Plan) bytes() int64 { return p.Count * int64(p.DataType.Size()) }
