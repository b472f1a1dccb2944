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

// adoptedCommunicator implements driver.AdoptedCommunicator with an ncclComm_t that another
// library has created and will destroy.
type adoptedCommunicator struct {
	device *Device
	handle nccl.Comm
	size   int // number of ranks
	rank   int // of this process in the communicator
	// timeoutErr is the error of the call that timed out, or nil. Later calls return it as well.
	timeoutErr atomic.Pointer[driver.TimeoutError]
}

// allowEarlyStartVariable is an environment variable. The value 1 permits AdoptCommunicator with
// an NCCL that has the defect nccl.EarlyStart. This is safe if no kernel lets the next kernel in
// its stream start early.
const allowEarlyStartVariable = "SYMMEM_ATTACH_EARLY_START"

// AdoptCommunicator wraps an ncclComm_t that another library has created on this device's GPU.
func (d *Device) AdoptCommunicator(handle uintptr) (driver.AdoptedCommunicator, error) {
	if handle == 0 {
		return nil, errors.New("adopting a communicator: its handle is 0")
	}

	// The other library launches its collectives without symmem's workaround for nccl.EarlyStart.
	if d.hasEarlyStart() && os.Getenv(allowEarlyStartVariable) != "1" {
		_, version := d.nccl.Version()
		return nil, fmt.Errorf("adopting a communicator: window kernels of NCCL %s: %w: if the kernel "+
			"before them triggers an early launch, they may read data that has not been written yet; use "+
			"NCCL %s or newer, or set %s=1 if no kernel triggers one (docs/reference/nccl-defects.md)",
			version, driver.ErrUnsupported, nccl.VersionText(nccl.EarlyStart.FixedIn),
			allowEarlyStartVariable)
	}

	a := &adoptedCommunicator{device: d, handle: nccl.Comm(handle)}
	if err := d.gpu.Do(a.queryProperties); err != nil {
		return nil, fmt.Errorf("adopting communicator %#x: %w", handle, err)
	}

	return a, nil
}

// queryProperties sets size and rank. It returns an error if the communicator uses another GPU.
func (a *adoptedCommunicator) queryProperties() (err error) {
	if a.size, err = a.device.nccl.Count(a.handle); err != nil {
		return err
	}

	if a.rank, err = a.device.nccl.UserRank(a.handle); err != nil {
		return err
	}

	usedOrdinal, err := a.device.nccl.Device(a.handle) // CUDA's number of the GPU
	if err != nil {
		return err
	}

	ownOrdinal := a.device.gpu.Ordinal()
	if usedOrdinal != ownOrdinal {
		return fmt.Errorf("the communicator uses GPU %d, but this rank uses GPU %d", usedOrdinal,
			ownOrdinal)
	}

	return nil
}

func (a *adoptedCommunicator) Size() int { return a.size }

func (a *adoptedCommunicator) Rank() int { return a.rank }

// isUsable reports whether no call has timed out.
func (a *adoptedCommunicator) isUsable() bool { return a.timeoutErr.Load() == nil }

// callWithDeadline runs call in a goroutine and returns its error. When ctx is done, it returns a
// TimeoutError, which uses description as the text for call. Without a deadline in ctx, the
// device's timeout applies.
//
// After a TimeoutError, the goroutine stays blocked until the other library aborts the
// communicator. All later uses of callWithDeadline return the same error.
func (a *adoptedCommunicator) callWithDeadline(
	ctx context.Context, description string, call func() error,
) error {
	if earlierErr := a.timeoutErr.Load(); earlierErr != nil {
		return earlierErr
	}

	ctx, cancel := control.WithDefaultTimeout(ctx, a.device.cfg.Timeout)
	defer cancel()
	startTime := time.Now()
	result := make(chan error, 1) // buffered, so that a late call can still send
	go func() { result <- a.device.gpu.Do(call) }()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		timeoutErr := &driver.TimeoutError{
			InCall: fmt.Sprintf("%s on communicator %#x of %d ranks", description, uintptr(a.handle),
				a.size),
			Waited: time.Since(startTime).Round(time.Millisecond),
		}
		a.timeoutErr.Store(timeoutErr)
		return timeoutErr
	}
}

// Register registers a segment with NCCL as a window. It waits for all ranks of the communicator.
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

// adoptedWindow implements driver.Window for an adopted communicator.
type adoptedWindow struct {
	communicator *adoptedCommunicator
	handle       nccl.Window // 0 if NCCL cannot use windows in the communicator
}

// Deregister deregisters the window from NCCL. Call it before the communicator is destroyed.
func (w *adoptedWindow) Deregister() error {
	a := w.communicator
	if !a.isUsable() {
		return nil // the call that timed out may still be using the communicator
	}

	return a.device.gpu.Do(func() error { return a.device.nccl.WindowDeregister(a.handle, w.handle) })
}

// Exchange sends payload to every rank and returns the payloads of all ranks, by rank. A gather
// needs inputs of one length. Exchange therefore gathers the lengths first, and after that the
// payloads, padded to the greatest length.
func (a *adoptedCommunicator) Exchange(ctx context.Context, payload []byte) ([][]byte, error) {
	encodedLength := binary.LittleEndian.AppendUint64(nil, uint64(len(payload)))
	lengths, err := a.gather(ctx, encodedLength)
	if err != nil {
		return nil, err
	}

	longest := 0
	for _, encoded := range lengths { // each has the 8 bytes of encodedLength
		length := binary.LittleEndian.Uint64(encoded)
		if length > driver.MaxPayload {
			return nil, fmt.Errorf("exchanging payloads on communicator %#x: a rank sent %d bytes, but "+
				"the limit is %d", uintptr(a.handle), length, driver.MaxPayload)
		}

		longest = max(longest, int(length)) // at most MaxPayload, which fits in an int
	}

	padded := make([]byte, longest)
	copy(padded, payload)
	payloads, err := a.gather(ctx, padded)
	if err != nil {
		return nil, err
	}

	for r := range payloads {
		length := binary.LittleEndian.Uint64(lengths[r])
		payloads[r] = payloads[r][:length] // without the padding
	}

	return payloads, nil
}

// gather returns the inputs of all ranks, by rank. They must have the same length.
func (a *adoptedCommunicator) gather(ctx context.Context, input []byte) ([][]byte, error) {
	gathered := make([]byte, len(input)*a.size)
	err := a.callWithDeadline(ctx, "exchanging payloads", func() error {
		return a.gatherInContext(input, gathered)
	})
	if err != nil {
		return nil, err // after a timeout, gatherInContext can still write to gathered
	}

	outputs := make([][]byte, a.size)
	for r := range outputs {
		outputs[r] = gathered[r*len(input) : (r+1)*len(input)]
	}

	return outputs, nil
}

// gatherInContext fills output with the inputs of all ranks. The CUDA context must be current.
//
// It creates a stream for the gather. InternalStreams.Run would also provide one, but abandons it
// after the GPU's timeout, and the other ranks may need more time.
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
	hostInput := dl.Bytes(hostAddress, len(input))
	hostOutput := dl.Bytes(hostAddress+uintptr(len(input)), len(output))
	copy(hostInput, input)
	err = a.gatherOnStream(stream, hostAddress, int64(len(input)), int64(len(output)))
	if err != nil {
		return err
	}

	copy(output, hostOutput)
	return nil
}

// gatherOnStream gathers the inputs of all ranks and waits for the stream. The host memory at
// hostAddress holds this rank's input, followed by outputBytes for the inputs of all ranks.
func (a *adoptedCommunicator) gatherOnStream(
	stream cuda.Stream, hostAddress uintptr, inputBytes, outputBytes int64,
) error {
	d := a.device
	send, err := d.gpu.CUDA.MemAllocAsync(roundUpForNCCL(inputBytes+outputBytes), stream)
	if err != nil {
		return err
	}

	recv := send + uintptr(inputBytes)
	hostOutput := hostAddress + uintptr(inputBytes)
	// Take all steps even after an error: the other ranks wait for the gather, and the memory must
	// be freed.
	copyInErr := d.gpu.CUDA.MemcpyAsync(send, hostAddress, inputBytes, stream)
	call := d.nccl.AllGather(send, recv, inputBytes, nccl.Uint8, a.handle)
	gatherErr := call.On(stream)
	copyOutErr := d.gpu.CUDA.MemcpyAsync(hostOutput, recv, outputBytes, stream)
	freeErr := d.gpu.CUDA.MemFreeAsync(send, stream) // frees recv, too, which is in the same memory
	syncErr := d.gpu.CUDA.StreamSynchronize(stream)
	return errors.Join(copyInErr, gatherErr, copyOutErr, freeErr, syncErr)
}
