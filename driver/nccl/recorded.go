package nccl

import (
	"fmt"
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/internal/direct"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/control"
	"symmem/internal/cuda"
)

// recorder adds calls of a group to foreign graphs: CUDA graphs that another library, such as
// PyTorch, captures and replays. Callers must hold the locks of the group and the stream.
type recorder struct {
	gpu               *gpu.GPU
	cfg               *driver.GroupConfig
	plane             control.Plane // connects the ranks outside NCCL
	comparisonEnabled *atomic.Bool  // ranks must compare their calls
	history           *history
	direct            *directPath // runs symmem's own kernels
	busy              *stream.BusyStreams
	faults            *faults
	comparer          *comparer

	wasCaptured atomic.Bool  // a foreign graph was captured, and can be replayed at any time
	graphHolds  memory.Holds // keep the objects that foreign graphs use

	capturedWindowKernels bool // a foreign graph has NCCL kernels that access windows
	capturedPlainKernels  bool // a foreign graph has other NCCL kernels

	recordings       direct.Recordings // number the calls of each capture
	currentRecording *direct.Recording // contains the call that is being recorded
}

// markCaptured must be called before a call is captured. It returns an error if the group has
// failed or a kernel has reported a fault.
func (r *recorder) markCaptured() error {
	isFirst := !r.wasCaptured.Swap(true)
	if isFirst {
		r.busy.WakeWatcher() // the watcher now looks for faults in replays, too
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
	case !r.recordings.IsKnown(capture.ID) && r.graphHolds.HasCapture(capture.ID):
		// The recording of this capture was evicted.
		return nil, fmt.Errorf("recording a collective: group %s was recorded in %d other captures "+
			"since its last call in this one: %w", r.cfg.Name(), direct.MaxOpenRecordings,
			driver.ErrUnsupported)
	}

	return r.recordings.GetOrBegin(capture.ID), nil
}

// compare compares a call across ranks, unless symmem's own kernels will do so in each replay.
func (r *recorder) compare(call *driver.Call, kernelsWillCompare bool) error {
	if !r.comparisonEnabled.Load() {
		return nil
	}

	isOnOneMachine := r.direct.announcements != nil
	if kernelsWillCompare && isOnOneMachine {
		return nil
	}

	ticket := r.plane.Submit()
	r.history.recordComparison(ticket)
	return r.comparer.compareOverPlane(call, ticket)
}

// holdUsedObjects keeps the objects that a recorded call uses until its graph is destroyed.
func (r *recorder) holdUsedObjects(
	s *stream.Stream, used []*memory.UseCount, path driver.Path, usesNCCL bool,
) error {
	hold, err := r.graphHolds.GetOrBegin(s.CUDA)
	if err != nil {
		return err
	}

	isCapturing := hold != nil
	if !isCapturing {
		return nil
	}

	hold.AddUses(used)
	switch {
	case !usesNCCL: // symmem's own kernels
	case path == driver.PathWindow:
		r.capturedWindowKernels = true
	default:
		hold.AddPlainUses(used)
		r.capturedPlainKernels = true
	}

	return nil
}
