package nccl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/memory"
	"symmem/internal/control"
	"symmem/internal/cuda"
	"symmem/internal/dl"
	"symmem/internal/nccl"
)

// adoptedCommunicator implements driver.AdoptedCommunicator for a communicator of another library.
// A call that times out sets stuck, and its goroutine stays blocked until the owner aborts the
// communicator.
type adoptedCommunicator struct {
	device     *Device
	handle     nccl.Comm
	size, rank int
	stuck      atomic.Pointer[driver.TimeoutError]
}

// allowEarlyStart is an environment variable with which users assert that their kernels never
// trigger an early launch of the next kernel.
const allowEarlyStart = "SYMMEM_ATTACH_EARLY_START"

// AdoptCommunicator wraps the communicator with the given ncclComm_t, which must use this device's
// GPU. It refuses NCCL with the defect nccl.EarlyStart, because the owner launches the collectives
// without symmem's workaround.
func (d *Device) AdoptCommunicator(handle uintptr) (driver.AdoptedCommunicator, error) {
	if handle == 0 {
		return nil, errors.New("adopting a communicator: its handle is 0")
	}
	if d.startsEarly() && os.Getenv(allowEarlyStart) != "1" {
		_, text := d.nccl.Version()
		return nil, fmt.Errorf("adopting a communicator: window kernels of NCCL %s: %w: if the kernel "+
			"before them triggers an early launch, they may read data that has not been written yet; use "+
			"NCCL %s or newer, or set %s=1 if no kernel triggers one (docs/reference/nccl-defects.md)",
			text, driver.ErrUnsupported, nccl.VersionText(nccl.EarlyStart.FixedIn), allowEarlyStart)
	}
	a := &adoptedCommunicator{device: d, handle: nccl.Comm(handle)}
	if err := d.gpu.Do(a.query); err != nil {
		return nil, fmt.Errorf("adopting communicator %#x: %w", handle, err)
	}
	return a, nil
}

func (a *adoptedCommunicator) query() (err error) {
	if a.size, err = a.device.nccl.Count(a.handle); err != nil {
		return err
	}
	if a.rank, err = a.device.nccl.UserRank(a.handle); err != nil {
		return err
	}
	device, err := a.device.nccl.Device(a.handle)
	if err == nil && device != a.device.gpu.Ordinal() {
		err = fmt.Errorf("the communicator uses GPU %d, but this rank uses GPU %d", device,
			a.device.gpu.Ordinal())
	}
	return err
}

func (a *adoptedCommunicator) usable() bool { return a.stuck.Load() == nil }

func (a *adoptedCommunicator) Size() int { return a.size }

func (a *adoptedCommunicator) Rank() int { return a.rank }

func (a *adoptedCommunicator) callWithDeadline(
	ctx context.Context, operation string, call func() error,
) error {
	if err := a.stuck.Load(); err != nil {
		return err
	}
	ctx, cancel := control.WithDefaultTimeout(ctx, a.device.cfg.Timeout)
	defer cancel()
	begin, done := time.Now(), make(chan error, 1)
	go func() { done <- a.device.gpu.Do(call) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		err := &driver.TimeoutError{
			InCall: fmt.Sprintf("%s on communicator %#x of %d ranks", operation, uintptr(a.handle), a.size),
			Waited: time.Since(begin).Round(time.Millisecond),
		}
		a.stuck.Store(err)
		return err
	}
}

func (a *adoptedCommunicator) Register(
	ctx context.Context, s driver.Segment,
) (driver.Window, error) {
	segment, ok := s.(*memory.Segment)
	if !ok || !a.device.memory.Owns(segment) {
		return nil, errors.New("registering with a communicator: the segment belongs to another device")
	}
	var handle nccl.Window
	err := a.callWithDeadline(ctx, "registering a window", func() (err error) {
		handle, err = a.device.nccl.WindowRegister(a.handle, segment.Address(), segment.Bytes())
		return err
	})
	if err != nil {
		return nil, err
	}
	return &adoptedWindow{communicator: a, handle: handle}, nil
}

type adoptedWindow struct {
	communicator *adoptedCommunicator
	handle       nccl.Window // 0 if NCCL has no window kernels for the communicator
}

// Deregister must be called before the owner destroys the communicator.
func (w *adoptedWindow) Deregister() error {
	a := w.communicator
	if !a.usable() {
		return nil // NCCL frees the window when the owner aborts the communicator
	}
	return a.device.gpu.Do(func() error { return a.device.nccl.WindowDeregister(a.handle, w.handle) })
}

// Exchange gathers the lengths of the payloads first. It then gathers the payloads, padded to the
// longest payload.
func (a *adoptedCommunicator) Exchange(ctx context.Context, payload []byte) ([][]byte, error) {
	own := binary.LittleEndian.AppendUint64(nil, uint64(len(payload)))
	lengths, err := a.gather(ctx, own)
	if err != nil {
		return nil, err
	}
	longest := 0
	for _, l := range lengths {
		n := binary.LittleEndian.Uint64(l)
		if n > driver.MaxPayload {
			return nil, fmt.Errorf("exchanging payloads on communicator %#x: a rank sent %d bytes, but "+
				"the limit is %d", uintptr(a.handle), n, driver.MaxPayload)
		}
		longest = max(longest, int(n))
	}
	all, err := a.gather(ctx, append(append([]byte(nil), payload...),
		make([]byte, longest-len(payload))...))
	for r := range all {
		all[r] = all[r][:binary.LittleEndian.Uint64(lengths[r])]
	}
	return all, err
}

// gather gathers own, which must have the same length on all ranks.
func (a *adoptedCommunicator) gather(ctx context.Context, own []byte) ([][]byte, error) {
	got := make([]byte, len(own)*a.size)
	// After a timeout, the call may still write to got.
	err := a.callWithDeadline(ctx, "exchanging payloads", func() error {
		dst := make([]byte, len(got))
		err := a.gatherNow(own, dst)
		copy(got, dst)
		return err
	})
	if err != nil {
		return nil, err
	}
	all := make([][]byte, a.size)
	for r := range all {
		all[r] = got[r*len(own) : (r+1)*len(own)]
	}
	return all, nil
}

// gatherNow implements gather on a thread where the CUDA context is current. Work on the device's
// internal stream must not wait for other ranks, so it uses a temporary stream.
func (a *adoptedCommunicator) gatherNow(own, dst []byte) error {
	if len(own) == 0 {
		return nil
	}
	d := a.device
	stream, err := d.gpu.CUDA.StreamCreate()
	if err != nil {
		return err
	}
	defer func() { _ = d.gpu.CUDA.StreamDestroy(stream) }()
	host, err := d.gpu.CUDA.MemAllocHost(int64(len(own) + len(dst)))
	if err != nil {
		return err
	}
	defer func() { _ = d.gpu.CUDA.MemFreeHost(host) }()
	copy(dl.Bytes(host, len(own)), own)
	if err := a.gatherOn(stream, host, int64(len(own)), int64(len(dst))); err != nil {
		return err
	}
	copy(dst, dl.Bytes(host+uintptr(len(own)), len(dst)))
	return nil
}

// gatherOn reads this rank's bytes at address host, and stores the bytes of all ranks after them.
// own is the number of bytes from each rank. all is the number of bytes from all ranks.
func (a *adoptedCommunicator) gatherOn(
	stream cuda.Stream, host uintptr, own, all int64,
) error {
	d := a.device
	memory, err := d.gpu.CUDA.MemAllocAsync(roundUpForNCCL(own+all), stream)
	if err != nil {
		return err
	}
	gathered := memory + uintptr(own)
	call := d.nccl.AllGather(memory, gathered, own, nccl.Uint8, a.handle)
	err = errors.Join(
		d.gpu.CUDA.MemcpyAsync(memory, host, own, stream),
		call.On(stream),
		d.gpu.CUDA.MemcpyAsync(host+uintptr(own), gathered, all, stream),
		d.gpu.CUDA.MemFreeAsync(memory, stream))
	return errors.Join(err, d.gpu.CUDA.StreamSynchronize(stream))
}
