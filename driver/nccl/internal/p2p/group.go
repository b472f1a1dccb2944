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

// Owner is the communicator that owns the Sends and Recvs of a group.
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

// Group describes an Owner and its ranks. Several groups can use the same Device.
type Group struct {
	Owner  Owner
	Device *Device
	Config *driver.GroupConfig
	Plane  control.Plane       // connects the ranks without NCCL
	Busy   *stream.BusyStreams // streams on which the group may have unfinished work
	Check  *atomic.Bool        // whether the Send and the Recv of each message are compared
	Ended  <-chan struct{}     // closed when the group has failed or has been closed
	// Mu is the owner's lock, which is held while a message is queued.
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
	// Descriptors is a pool of host memory in which the GPU finds the addresses of a Recv's copy.
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
	Address uintptr // not registered with NCCL
}

func (p *Plan) bytes() int64 { return p.Count * int64(p.DataType.Size()) }
