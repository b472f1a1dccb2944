package nccl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/memory"
	"symmem/internal/control"
	"symmem/internal/cuda"
	"symmem/internal/dl"
	"symmem/internal/nccl"
)

// Suppose that PyTorch runs on 2 ranks: processes that use one GPU each. It has connected them by a
// communicator, an object of NCCL. symmem can adopt the communicator, to make calls with it.
// PyTorch remains the owner: it has created the communicator and will destroy it.
//
//   - Exchange sends payloads, which may differ in length. If rank 0 passes "a" and rank 1 passes
//     "bcd", both get "a" and "bcd".
//   - Register makes a window of a segment (a piece of GPU memory) of each rank. The owner's
//     kernels on one rank can then access the segments of all ranks.
//   - In these calls, NCCL waits for all ranks. If rank 1 never makes its call, rank 0's call ends
//     only when the owner aborts the communicator. symmem gives up earlier, with a TimeoutError.

// adoptedCommunicator implements driver.AdoptedCommunicator.
type adoptedCommunicator struct {
	device *Device
	handle nccl.Comm // the owner's ncclComm_t
	size   int       // number of ranks
	rank   int       // this process
	// timeoutErr is the error of the call that timed out, or nil. It is atomic, because a window's
	// Deregister may read it during another call.
	timeoutErr atomic.Pointer[driver.TimeoutError]
}

// AdoptCommunicator adopts a communicator, an ncclComm_t, that another library has created on this
// device's GPU. It returns ErrUnsupported if NCCL has a defect that makes this unsafe.
func (d *Device) AdoptCommunicator(handle uintptr) (driver.AdoptedCommunicator, error) {
	if handle == 0 {
		return nil, errors.New("adopting a communicator: its handle is 0")
	}

	if err := d.checkEarlyStart(); err != nil {
		return nil, err
	}

	a := &adoptedCommunicator{device: d, handle: nccl.Comm(handle)}
	if err := d.gpu.Do(a.queryProperties); err != nil {
		return nil, fmt.Errorf("adopting communicator %#x: %w", handle, err)
	}

	return a, nil
}

// allowEarlyStartVariable is an environment variable. The value 1 disables checkEarlyStart, which
// is safe if no kernel permits the next one to start early.
const allowEarlyStartVariable = "SYMMEM_ATTACH_EARLY_START"

// checkEarlyStart returns ErrUnsupported if the owner's kernels might read unfinished data. With
// NCCL's defect EarlyStart, a kernel that accesses windows may start before the previous kernel in
// the stream has ended, if that one permits it (triggers an early launch). symmem prevents this
// when it launches NCCL's kernels, but the owner does not.
func (d *Device) checkEarlyStart() error {
	isAllowed := os.Getenv(allowEarlyStartVariable) == "1"
	if isAllowed || !d.hasEarlyStart() {
		return nil
	}

	_, version := d.nccl.Version()
	return fmt.Errorf("adopting a communicator: window kernels of NCCL %s: %w: if the kernel "+
		"before them triggers an early launch, they may read data that has not been written yet; use "+
		"NCCL %s or newer, or set %s=1 if no kernel triggers one (docs/reference/nccl-defects.md)",
		version, driver.ErrUnsupported, nccl.VersionText(nccl.EarlyStart.FixedIn),
		allowEarlyStartVariable)
}

// queryProperties sets size and rank. It returns an error if the communicator uses another GPU.
func (a *adoptedCommunicator) queryProperties() (err error) {
	library := a.device.nccl
	if a.size, err = library.Count(a.handle); err != nil {
		return err
	}

	if a.rank, err = library.UserRank(a.handle); err != nil {
		return err
	}

	usedGPU, err := library.Device(a.handle) // CUDA's number of the GPU
	if err != nil {
		return err
	}

	ownGPU := a.device.gpu.Ordinal()
	if usedGPU != ownGPU {
		return fmt.Errorf("the communicator uses GPU %d, but this rank uses GPU %d", usedGPU, ownGPU)
	}

	return nil
}

func (a *adoptedCommunicator) Size() int         { return a.size }
func (a *adoptedCommunicator) Rank() int         { return a.rank }
func (a *adoptedCommunicator) hasTimedOut() bool { return a.timeoutErr.Load() != nil }

// callWithDeadline runs call in a goroutine and returns its error. If ctx is done first, it returns
// a TimeoutError with the description of call. Without a deadline in ctx, the device's timeout
// applies. After a TimeoutError, call may still be using the communicator, so all further uses of
// callWithDeadline return this error and make no call.
func (a *adoptedCommunicator) callWithDeadline(
	ctx context.Context, description string, call func() error,
) error {
	if earlierErr := a.timeoutErr.Load(); earlierErr != nil {
		return earlierErr
	}

	ctx, cancel := control.WithDefaultTimeout(ctx, a.device.cfg.Timeout)
	defer cancel()
	startTime := time.Now()
	result := make(chan error, 1) // buffered, so that the goroutine ends even after a TimeoutError
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

// Exchange sends payload to every rank and returns the payloads of all ranks, by rank. NCCL gathers
// only inputs of the same length, so Exchange first gathers the lengths, and then the payloads,
// each padded to the greatest length.
func (a *adoptedCommunicator) Exchange(ctx context.Context, payload []byte) ([][]byte, error) {
	lengths, err := a.exchangeLengths(ctx, len(payload))
	if err != nil {
		return nil, err
	}

	padded := make([]byte, slices.Max(lengths))
	copy(padded, payload)
	payloads, err := a.gather(ctx, padded)
	if err != nil {
		return nil, err
	}

	for rank, length := range lengths {
		payloads[rank] = payloads[rank][:length] // without the padding
	}

	return payloads, nil
}

// exchangeLengths returns the lengths of the payloads of all ranks, by rank. It returns an error if
// one is greater than MaxPayload.
func (a *adoptedCommunicator) exchangeLengths(ctx context.Context, ownLength int) ([]int, error) {
	encodedLength := binary.LittleEndian.AppendUint64(nil, uint64(ownLength))
	gathered, err := a.gather(ctx, encodedLength)
	if err != nil {
		return nil, err
	}

	lengths := make([]int, len(gathered))
	for rank, encoded := range gathered {
		sentLength := binary.LittleEndian.Uint64(encoded)
		if sentLength > driver.MaxPayload {
			return nil, fmt.Errorf("exchanging payloads on communicator %#x: a rank sent %d bytes, but "+
				"the limit is %d", uintptr(a.handle), sentLength, driver.MaxPayload)
		}

		lengths[rank] = int(sentLength)
	}

	return lengths, nil
}

// gather returns the inputs of all ranks, by rank. They must have the same length.
func (a *adoptedCommunicator) gather(ctx context.Context, input []byte) ([][]byte, error) {
	output := make([]byte, len(input)*a.size)
	err := a.callWithDeadline(ctx, "exchanging payloads", func() error {
		return a.gatherInto(output, input)
	})
	if err != nil {
		return nil, err // after a TimeoutError, output may still be written, so do not use it
	}

	inputs := make([][]byte, a.size)
	for rank := range inputs {
		start := rank * len(input)
		inputs[rank] = output[start : start+len(input)]
	}

	return inputs, nil
}

// gatherInto fills output with the inputs of all ranks, in the order of the ranks. The CUDA context
// must be current, as in a call of callWithDeadline.
//
// It uses a host buffer, CPU memory that CUDA can access, which holds input and then output. It
// creates a stream, because symmem abandons work on its internal streams after the GPU's timeout,
// and other ranks may need more time.
func (a *adoptedCommunicator) gatherInto(output, input []byte) error {
	if len(input) == 0 { // on all ranks, because inputs have the same length
		return nil
	}

	g := a.device.gpu
	stream, err := g.CUDA.StreamCreate()
	if err != nil {
		return err
	}

	defer func() { _ = g.CUDA.StreamDestroy(stream) }()
	inputBytes, outputBytes := int64(len(input)), int64(len(output))
	hostBuffer, err := g.CUDA.MemAllocHost(inputBytes + outputBytes)
	if err != nil {
		return err
	}

	defer func() { _ = g.CUDA.MemFreeHost(hostBuffer) }()
	copy(dl.Bytes(hostBuffer, len(input)), input)
	if err = a.gatherOnStream(stream, hostBuffer, inputBytes, outputBytes); err != nil {
		return err
	}

	copy(output, dl.Bytes(hostBuffer+uintptr(inputBytes), len(output)))
	return nil
}

// gatherOnStream gathers in the host buffer of gatherInto, and waits for the stream. NCCL uses a
// buffer in GPU memory with the same layout.
func (a *adoptedCommunicator) gatherOnStream(
	stream cuda.Stream, hostBuffer uintptr, inputBytes, outputBytes int64,
) error {
	g := a.device.gpu
	gpuBuffer, err := g.CUDA.MemAllocAsync(roundUpForNCCL(inputBytes+outputBytes), stream)
	if err != nil {
		return err
	}

	hostOutput := hostBuffer + uintptr(inputBytes)
	gpuOutput := gpuBuffer + uintptr(inputBytes)
	// Take all steps even after an error: the other ranks wait for the gather, and the memory must
	// be freed.
	copyInErr := g.CUDA.MemcpyAsync(gpuBuffer, hostBuffer, inputBytes, stream)
	call := a.device.nccl.AllGather(gpuBuffer, gpuOutput, inputBytes, nccl.Uint8, a.handle)
	gatherErr := call.On(stream)
	copyOutErr := g.CUDA.MemcpyAsync(hostOutput, gpuOutput, outputBytes, stream)
	freeErr := g.CUDA.MemFreeAsync(gpuBuffer, stream)
	syncErr := g.CUDA.StreamSynchronize(stream)
	return errors.Join(copyInErr, gatherErr, copyOutErr, freeErr, syncErr)
}

// adoptedWindow implements driver.Window for an adopted communicator.
type adoptedWindow struct {
	communicator *adoptedCommunicator
	handle       nccl.Window // 0 if the communicator does not support windows
}

// Register registers this rank's segment as a part of a window. It waits for all ranks.
func (a *adoptedCommunicator) Register(
	ctx context.Context, s driver.Segment,
) (driver.Window, error) {
	segment, ok := s.(*memory.Segment)
	if !ok || !a.device.memory.Owns(segment) {
		return nil, errors.New("registering with a communicator: the segment belongs to another device")
	}

	w := &adoptedWindow{communicator: a}
	err := a.callWithDeadline(ctx, "registering a window", func() (err error) {
		w.handle, err = a.device.nccl.WindowRegister(a.handle, segment.Address(), segment.Bytes())
		return err
	})
	if err != nil {
		return nil, err
	}

	return w, nil
}

// Deregister deregisters the window from NCCL. Call it before the communicator is destroyed.
func (w *adoptedWindow) Deregister() error {
	a := w.communicator
	if a.hasTimedOut() {
		return nil // the call that timed out may still be using the communicator
	}

	return a.device.gpu.Do(func() error { return a.device.nccl.WindowDeregister(a.handle, w.handle) })
}
