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

type adoptedCommunicator struct {
	device     *Device
	handle     nccl.Comm
	size, rank int
	timeoutErr atomic.Pointer[driver.TimeoutError]
}

// allowEarlyStartVariable is set to 1 by users whose kernels never let the next kernel start early.
const allowEarlyStartVariable = "SYMMEM_ATTACH_EARLY_START"

// AdoptCommunicator wraps an ncclComm_t that another library has created on this device's GPU.
func (d *Device) AdoptCommunicator(handle uintptr) (driver.AdoptedCommunicator, error) {
	if handle == 0 {
		return nil, errors.New("adopting a communicator: its handle is 0")
	}
	// The other library launches the collectives without symmem's workaround for nccl.EarlyStart.
	if d.hasEarlyStart() && os.Getenv(allowEarlyStartVariable) != "1" {
		_, version := d.nccl.Version()
		return nil, fmt.Errorf("adopting a communicator: window kernels of NCCL %s: %w: if the kernel "+
			"before them triggers an early launch, they may read data that has not been written yet; use "+
			"NCCL %s or newer, or set %s=1 if no kernel triggers one (docs/reference/nccl-defects.md)",
			version, driver.ErrUnsupported, nccl.VersionText(nccl.EarlyStart.FixedIn),
			allowEarlyStartVariable)
	}
	a := &adoptedCommunicator{device: d, handle: nccl.Comm(handle)}
	if err := d.gpu.Do(a.querySizeAndRank); err != nil {
		return nil, fmt.Errorf("adopting communicator %#x: %w", handle, err)
	}
	return a, nil
}

func (a *adoptedCommunicator) querySizeAndRank() (err error) {
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

func (a *adoptedCommunicator) isUsable() bool { return a.timeoutErr.Load() == nil }

func (a *adoptedCommunicator) Size() int { return a.size }

func (a *adoptedCommunicator) Rank() int { return a.rank }

// callWithDeadline runs call in a goroutine. After a timeout, the goroutine stays blocked until the
// other library aborts the communicator, and all later calls fail.
func (a *adoptedCommunicator) callWithDeadline(
	ctx context.Context, operation string, call func() error,
) error {
	if err := a.timeoutErr.Load(); err != nil {
		return err
	}
	ctx, cancel := control.WithDefaultTimeout(ctx, a.device.cfg.Timeout)
	defer cancel()
	startTime, result := time.Now(), make(chan error, 1)
	go func() { result <- a.device.gpu.Do(call) }()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		err := &driver.TimeoutError{
			InCall: fmt.Sprintf("%s on communicator %#x of %d ranks", operation, uintptr(a.handle), a.size),
			Waited: time.Since(startTime).Round(time.Millisecond),
		}
		a.timeoutErr.Store(err)
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
	handle       nccl.Window // 0 if NCCL cannot use windows in the communicator
}

// Deregister must be called before the communicator is destroyed.
func (w *adoptedWindow) Deregister() error {
	a := w.communicator
	if !a.isUsable() {
		return nil
	}
	return a.device.gpu.Do(func() error { return a.device.nccl.WindowDeregister(a.handle, w.handle) })
}

// Exchange first gathers the lengths, and then the payloads, padded to the longest length.
func (a *adoptedCommunicator) Exchange(ctx context.Context, payload []byte) ([][]byte, error) {
	encodedLength := binary.LittleEndian.AppendUint64(nil, uint64(len(payload)))
	lengths, err := a.gather(ctx, encodedLength)
	if err != nil {
		return nil, err
	}
	longest := 0
	for _, encoded := range lengths {
		length := binary.LittleEndian.Uint64(encoded)
		if length > driver.MaxPayload {
			return nil, fmt.Errorf("exchanging payloads on communicator %#x: a rank sent %d bytes, but "+
				"the limit is %d", uintptr(a.handle), length, driver.MaxPayload)
		}
		longest = max(longest, int(length))
	}
	payloads, err := a.gather(ctx, append(append([]byte(nil), payload...),
		make([]byte, longest-len(payload))...))
	for r := range payloads {
		payloads[r] = payloads[r][:binary.LittleEndian.Uint64(lengths[r])]
	}
	return payloads, err
}

// gather returns the inputs of all ranks, which must have the same length.
func (a *adoptedCommunicator) gather(ctx context.Context, input []byte) ([][]byte, error) {
	gathered := make([]byte, len(input)*a.size)
	err := a.callWithDeadline(ctx, "exchanging payloads", func() error {
		return a.gatherInContext(input, gathered)
	})
	if err != nil {
		return nil, err // after a timeout, the call can still write to gathered
	}
	outputs := make([][]byte, a.size)
	for r := range outputs {
		outputs[r] = gathered[r*len(input) : (r+1)*len(input)]
	}
	return outputs, nil
}

// gatherInContext implements gather on a thread where the CUDA context is current. It creates a
// stream, because it waits for other ranks longer than InternalStreams.Run would.
func (a *adoptedCommunicator) gatherInContext(input, output []byte) error {
	if len(input) == 0 {
		return nil
	}
	d := a.device
	stream, err := d.gpu.CUDA.StreamCreate()
	if err != nil {
		return err
	}
	defer func() { _ = d.gpu.CUDA.StreamDestroy(stream) }()
	hostAddress, err := d.gpu.CUDA.MemAllocHost(int64(len(input) + len(output)))
	if err != nil {
		return err
	}
	defer func() { _ = d.gpu.CUDA.MemFreeHost(hostAddress) }()
	copy(dl.Bytes(hostAddress, len(input)), input)
	err = a.gatherOnStream(stream, hostAddress, int64(len(input)), int64(len(output)))
	if err != nil {
		return err
	}
	copy(output, dl.Bytes(hostAddress+uintptr(len(input)), len(output)))
	return nil
}

// gatherOnStream reads this rank's input at hostAddress, and stores the inputs of all ranks after
// it.
func (a *adoptedCommunicator) gatherOnStream(
	stream cuda.Stream, hostAddress uintptr, inputBytes, outputBytes int64,
) error {
	d := a.device
	memory, err := d.gpu.CUDA.MemAllocAsync(roundUpForNCCL(inputBytes+outputBytes), stream)
	if err != nil {
		return err
	}
	gathered := memory + uintptr(inputBytes)
	call := d.nccl.AllGather(memory, gathered, inputBytes, nccl.Uint8, a.handle)
	err = errors.Join(
		d.gpu.CUDA.MemcpyAsync(memory, hostAddress, inputBytes, stream),
		call.On(stream),
		d.gpu.CUDA.MemcpyAsync(hostAddress+uintptr(inputBytes), gathered, outputBytes, stream),
		d.gpu.CUDA.MemFreeAsync(memory, stream))
	return errors.Join(err, d.gpu.CUDA.StreamSynchronize(stream))
}
