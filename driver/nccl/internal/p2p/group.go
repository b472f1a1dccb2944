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

// Owner is the communicator of a Group.
type Owner interface {
	stream.Group
	// NoteMessage adds a Send or Recv to the group's history. The caller must hold the stream's lock
	// and Group.Mu.
	NoteMessage(s *stream.Stream, call *driver.Call)
	// FailUnqueued fails the group because err prevented call from being queued, and returns the
	// group's first error.
	FailUnqueued(call *driver.Call, err error) error
	// FailAfterPeer fails the group because a peer has failed, and returns the group's first error.
	FailAfterPeer(call *driver.Call) error
}

// Group describes a group of ranks that can send messages to each other.
type Group struct {
	Owner  Owner
	Device *Device
	Config *driver.GroupConfig
	Plane  control.Plane       // connects the ranks without NCCL
	Busy   *stream.BusyStreams // streams on which the group may have unfinished work
	Check  *atomic.Bool        // set if each Send is compared with its Recv
	Ended  <-chan struct{}     // closed when the group has failed or has been closed
	// Mu is the owner's lock, held while a message is queued.
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
	UnfinishedGroups atomic.Int32 // count of failed or closed groups whose streams still wait

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

// Plan is a Send to, or a Recv from, rank Root.
type Plan struct {
	*driver.Call
	Address uintptr // of the buffer
}

func (p *Plan) bytes() int64 { return p.Count * int64(p.DataType.Size()) }
