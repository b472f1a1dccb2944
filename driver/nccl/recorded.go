package nccl

import (
	"fmt"
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/internal/direct"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
)

// recorder keeps track of a group's calls in foreign graphs: CUDA graphs that another library, such
// as PyTorch, captures and replays. Callers must hold the locks of the group and the stream.
type recorder struct {
	gpu    *gpu.GPU
	cfg    *driver.GroupConfig
	busy   *stream.BusyStreams
	faults *faults

	wasCaptured atomic.Bool  // a foreign graph contains a call, and may be running
	graphHolds  memory.Holds // memory that foreign graphs use

	capturedWindowKernels bool // a foreign graph has NCCL kernels that access windows
	capturedPlainKernels  bool // a foreign graph has NCCL kernels that access no windows

	recordings       direct.Recordings // the captures with calls of the group
	currentRecording *direct.Recording // the capture during enqueue, or nil
}

// begin sets wasCaptured, and returns an error if a kernel has reported a fault.
func (r *recorder) begin() error {
	isFirst := !r.wasCaptured.Swap(true)
	if isFirst {
		r.busy.WakeWatcher() // the watcher then also looks for faults in replays
	}

	return r.faults.checkKernels()
}

// findRecording returns the recording of the capture on stream s, or begins one.
func (r *recorder) findRecording(s *stream.Stream) (*direct.Recording, error) {
	var capture cuda.Capture
	err := r.gpu.With(func(gpu *cuda.Driver) (err error) {
		capture, err = gpu.CaptureInfo(s.CUDA)
		return err
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("recording a collective: %w", err)
	case capture.Status == cuda.CaptureNone:
		return nil, fmt.Errorf("recording a collective: %w", driver.ErrNotCapturing)
	case capture.Status == cuda.CaptureInvalidated:
		return nil, fmt.Errorf("recording a collective: the capture was invalidated, perhaps by a CUDA "+
			"call of another thread that is not allowed in global mode: capture in thread-local mode: %w",
			cuda.ErrCaptureInvalidated)
	case !r.recordings.HasCapture(capture.ID) && r.graphHolds.HasCapture(capture.ID):
		// The recording of this capture was evicted.
		return nil, fmt.Errorf("recording a collective: group %s was recorded in %d other captures "+
			"since its last call in this one: %w", r.cfg.Name(), direct.MaxOpenRecordings,
			driver.ErrUnsupported)
	}

	return r.recordings.GetOrBegin(capture.ID), nil
}

// holdMemory keeps a call's memory allocated until its graph is destroyed. The CUDA context must
// be current.
func (r *recorder) holdMemory(
	s *stream.Stream, used []*memory.UseCount, path driver.Path, usesNCCL bool,
) error {
	hold, err := r.graphHolds.GetOrBegin(s.CUDA)
	if err != nil {
		return err
	}

	hasCaptureEnded := hold == nil
	if hasCaptureEnded {
		return nil
	}

	hold.AddUses(used)
	switch {
	case !usesNCCL: // the call has no NCCL kernels
	case path == driver.PathWindow:
		r.capturedWindowKernels = true
	default:
		hold.AddPlainUses(used) // NCCL may map the memory on other ranks
		r.capturedPlainKernels = true
	}

	return nil
}
