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

// adopted wraps a communicator that another library owns.
//
// States: usable; stuck, once a call on it has not returned in time. A blocked call of NCCL ends
// only if the communicator is aborted, which is up to its owner, so the call stays in a goroutine.
type adopted struct {
	device     *Device
	handle     nccl.Comm
	size, rank int
	stuck      atomic.Pointer[driver.TimeoutError]
}

// allowEarlyStart is the environment variable by which a user asserts that no kernel of the program
// triggers the launch of its successor early.
const allowEarlyStart = "SYMMEM_ATTACH_EARLY_START"

// AdoptCommunicator adopts a communicator of this device. The owner makes the calls, so symmem
// cannot insert a kernel before them to work around nccl.EarlyStart.
func (d *Device) AdoptCommunicator(handle uintptr) (driver.AdoptedCommunicator, error) {
	if handle == 0 {
		return nil, errors.New("adopting a communicator: its handle is 0")
	}
	if d.startsEarly() && os.Getenv(allowEarlyStart) != "1" {
		_, text := d.nccl.Version()
		return nil, fmt.Errorf("adopting a communicator: window kernels of NCCL %s: %w: after a kernel "+
			"that triggers their launch early they read data that is not written yet; use NCCL %s or "+
			"newer, or set %s=1 if the program has no such kernels (docs/reference/nccl-defects.md)", text,
			driver.ErrUnsupported, nccl.VersionText(nccl.EarlyStart.Below), allowEarlyStart)
	}
	g := &adopted{device: d, handle: nccl.Comm(handle)}
	err := d.gpu.Do(g.query)
	if err != nil {
		return nil, fmt.Errorf("adopting communicator %#x: %w", handle, err)
	}
	return g, nil
}

// query asks NCCL for the communicator's size, rank and device.
func (g *adopted) query() (err error) {
	if g.size, err = g.device.nccl.Count(g.handle); err != nil {
		return err
	}
	if g.rank, err = g.device.nccl.UserRank(g.handle); err != nil {
		return err
	}
	device, err := g.device.nccl.Device(g.handle)
	if err == nil && device != g.device.gpu.Ordinal() {
		err = fmt.Errorf("it uses GPU %d, but this rank uses GPU %d", device, g.device.gpu.Ordinal())
	}
	return err
}

// usable reports whether no call has timed out.
func (g *adopted) usable() bool { return g.stuck.Load() == nil }

// Size returns the number of ranks.
func (g *adopted) Size() int { return g.size }

// Rank returns this rank's number.
func (g *adopted) Rank() int { return g.rank }

// within makes a call that waits for other ranks, and stops waiting for it when the context ends.
func (g *adopted) within(ctx context.Context, doing string, call func() error) error {
	if err := g.stuck.Load(); err != nil {
		return err
	}
	ctx, cancel := control.Bounded(ctx, g.device.cfg.Timeout)
	defer cancel()
	begin, ended := time.Now(), make(chan error, 1)
	go func() { ended <- g.device.gpu.Do(call) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		err := &driver.TimeoutError{
			Doing:  fmt.Sprintf("%s on communicator %#x of %d ranks", doing, uintptr(g.handle), g.size),
			Waited: time.Since(begin).Round(time.Millisecond),
		}
		g.stuck.Store(err)
		return err
	}
}

// Register registers a segment as a window.
func (g *adopted) Register(ctx context.Context, s driver.Segment) (driver.Window, error) {
	own, ok := s.(*memory.Segment)
	if !ok || !g.device.memory.Own(own) {
		return nil, errors.New("registering with a communicator: the segment belongs to another device")
	}
	var handle nccl.Window
	err := g.within(ctx, "registering a window", func() (err error) {
		handle, err = g.device.nccl.WindowRegister(g.handle, own.Address(), own.Bytes())
		return err
	})
	if err != nil {
		return nil, err
	}
	return &adoptedWindow{of: g, handle: handle}, nil
}

// adoptedWindow implements driver.Window for an adopted communicator. Handle 0 means that the
// communicator has no window kernels.
type adoptedWindow struct {
	of     *adopted
	handle nccl.Window
}

// Deregister deregisters the window on this rank. The communicator must not be destroyed yet.
func (w *adoptedWindow) Deregister() error {
	g := w.of
	if !g.usable() {
		return nil // the window ends with the communicator
	}
	return g.device.gpu.Do(func() error { return g.device.nccl.WindowDeregister(g.handle, w.handle) })
}

// Exchange gathers the payloads of all ranks through the communicator itself: first their lengths,
// then the payloads, padded to the longest.
func (g *adopted) Exchange(ctx context.Context, payload []byte) ([][]byte, error) {
	mine := binary.LittleEndian.AppendUint64(nil, uint64(len(payload)))
	lengths, err := g.gather(ctx, mine)
	if err != nil {
		return nil, err
	}
	longest := 0
	for _, l := range lengths {
		n := binary.LittleEndian.Uint64(l)
		if n > driver.MaxPayload {
			return nil, fmt.Errorf("comparing on communicator %#x: a rank has sent a payload of %d bytes, "+
				"more than %d", uintptr(g.handle), n, driver.MaxPayload)
		}
		longest = max(longest, int(n))
	}
	all, err := g.gather(ctx, append(append([]byte(nil), payload...),
		make([]byte, longest-len(payload))...))
	for r := range all {
		all[r] = all[r][:binary.LittleEndian.Uint64(lengths[r])]
	}
	return all, err
}

// gather gathers the same number of bytes from every rank. A call that times out writes only to
// memory that gather does not return.
func (g *adopted) gather(ctx context.Context, mine []byte) ([][]byte, error) {
	got := make([]byte, len(mine)*g.size)
	err := g.within(ctx, "comparing", func() error {
		into := make([]byte, len(got))
		err := g.gatherNow(mine, into)
		copy(got, into)
		return err
	})
	if err != nil {
		return nil, err
	}
	all := make([][]byte, g.size)
	for r := range all {
		all[r] = got[r*len(mine) : (r+1)*len(mine)]
	}
	return all, nil
}

// gatherNow implements gather on a thread of the context. It uses a temporary stream, because the
// device's internal stream must not wait for other ranks.
func (g *adopted) gatherNow(mine, into []byte) error {
	if len(mine) == 0 {
		return nil
	}
	d := g.device
	on, err := d.gpu.CUDA.StreamCreate()
	if err != nil {
		return err
	}
	defer func() { _ = d.gpu.CUDA.StreamDestroy(on) }()
	host, err := d.gpu.CUDA.MemAllocHost(int64(len(mine) + len(into)))
	if err != nil {
		return err
	}
	defer func() { _ = d.gpu.CUDA.MemFreeHost(host) }()
	copy(dl.Bytes(host, len(mine)), mine)
	if err := g.gatherOn(on, host, int64(len(mine)), int64(len(into))); err != nil {
		return err
	}
	copy(into, dl.Bytes(host+uintptr(len(mine)), len(into)))
	return nil
}

// gatherOn copies a payload to the GPU, gathers, copies the result back and waits for it.
func (g *adopted) gatherOn(on cuda.Stream, host uintptr, mine, all int64) error {
	d := g.device
	memory, err := d.gpu.CUDA.MemAllocAsync(roundUpForNCCL(mine+all), on)
	if err != nil {
		return err
	}
	gathered := memory + uintptr(mine)
	call := d.nccl.AllGather(memory, gathered, mine, nccl.Uint8, g.handle)
	err = errors.Join(
		d.gpu.CUDA.MemcpyAsync(memory, host, mine, on),
		call.On(on),
		d.gpu.CUDA.MemcpyAsync(host+uintptr(mine), gathered, all, on),
		d.gpu.CUDA.MemFreeAsync(memory, on))
	return errors.Join(err, d.gpu.CUDA.StreamSynchronize(on))
}
