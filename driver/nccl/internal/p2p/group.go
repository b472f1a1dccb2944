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

// A communicator of the backend has a group of ranks and owns their messages: Sends and Recvs. It
// describes itself to this package by a Group. Several groups can use the same Device.

// Owner is the communicator that owns the messages.
type Owner interface {
	stream.Group
	// NoteMessage adds a Send or Recv to the group's history. The caller must hold the stream's lock
	// and Group.Mu.
	NoteMessage(s *stream.Stream, call *driver.Call)
	// FailUnqueued makes the group fail after a call that could not be queued.
	FailUnqueued(call *driver.Call, err error) error
	// FailAfterPeer makes the group fail after a peer has failed. It returns the error for the call.
	FailAfterPeer(call *driver.Call) error
}

// Group describes the communicator that owns the messages.
type Group struct {
	Owner  Owner
	Device *Device
	Config *driver.GroupConfig
	Plane  control.Plane       // the connection between the ranks outside NCCL
	Busy   *stream.BusyStreams // streams on which the group may have unfinished work
	Check  *atomic.Bool        // whether the Send and the Recv of each message are compared
	// Ended is closed when the group has failed or has been closed.
	Ended <-chan struct{}
	// Mu is the owner's lock. It is held while a message is queued.
	Mu interface {
		sync.Locker
		TryLock() bool
	}
}

// Device holds the state of a GPU that its groups share.
type Device struct {
	GPU      *gpu.GPU
	Streams  *stream.Streams
	Exporter *memory.Exporter // shares memory with other processes
	// Descriptors holds a descriptor for each Recv. This is host memory in which the GPU finds the
	// addresses of the copy, and a word that starts it.
	Descriptors gpu.Pinned[kernels.Message]
	Copies      gpu.Code // kernels that copy messages
	// UnfinishedGroups counts failed or closed groups with unfinished messages.
	UnfinishedGroups atomic.Int32

	mu      ranked.Mutex[deviceMu]
	closers []func() error // functions to call when the device closes; guarded by mu
}

// onClose adds a function to call when the device closes.
func (d *Device) onClose(closer func() error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closers = append(d.closers, closer)
}

// TakeClosers returns the functions to call when the device closes, and forgets them.
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
	Address uintptr // an address outside all windows (memory registered with NCCL)
}

// bytes returns the size of the message.
func (p *Plan) bytes() int64 { return p.Count * int64(p.DataType.Size()) }
