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

// recorder records calls of a group into captures of other libraries. Callers must hold the locks
// of the group and the stream.
type recorder struct {
	gpu           *gpu.GPU
	cfg           *driver.GroupConfig
	plane         control.Plane
	comparesCalls *atomic.Bool
	history       *history
	direct        *directPath
	busy          *stream.BusyStreams
	faults        *faults
	comparer      *comparer

	// wasCaptured is set once another library has captured calls of the group. It may replay them
	// at any time without notifying symmem.
	wasCaptured atomic.Bool
	graphHolds  memory.Holds

	// capturedPlainKernels is set if NCCL's kernels that use no window have been captured.
	// capturedWindowKernels is set if NCCL's kernels that use windows have been captured.
	capturedPlainKernels, capturedWindowKernels bool
	// recordings numbers the captures. current is the capture to which a call is being added, or
	// nil.
	recordings       direct.Recordings
	currentRecording *direct.Recording
}

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
		return nil, fmt.Errorf("recording a collective: %w", cuda.ErrCaptureInvalidated)
	case !r.recordings.Has(capture.ID) && r.graphHolds.Has(capture.ID):
		return nil, fmt.Errorf("recording a collective: group %s was recorded in %d other captures "+
			"since its last call in this one: %w", r.cfg.Name(), direct.OpenRecordings,
			driver.ErrUnsupported)
	}
	return r.recordings.Get(capture.ID), nil
}

// markCaptured must be called before another library captures a call. It returns a fault that
// kernels have reported.
func (r *recorder) markCaptured() error {
	if !r.wasCaptured.Swap(true) {
		r.busy.WakeWatcher()
	}
	return r.faults.checkKernels()
}

// compare compares a call being captured with the calls of other ranks, unless its kernels do that.
// It does not mark the stream as busy: CUDA must not be queried about a stream during a capture.
func (r *recorder) compare(call *driver.Call, kernelsWillCompare bool) error {
	if !r.comparesCalls.Load() || kernelsWillCompare && r.direct.announcements != nil {
		return nil
	}
	ticket := r.plane.Submit()
	r.history.recordComparison(ticket)
	return r.comparer.compareOverPlane(call, ticket)
}

// holdUsedObjects keeps the objects that a call uses alive until the graph is destroyed.
func (r *recorder) holdUsedObjects(
	s *stream.Stream, used []*memory.UseCount, path driver.Path, usesNCCL bool,
) error {
	hold, err := r.graphHolds.HoldFor(s.CUDA)
	if hold == nil || err != nil {
		return err
	}
	hold.Use(used)
	if usesNCCL {
		r.capturedPlainKernels = r.capturedPlainKernels || path != driver.PathWindow
		r.capturedWindowKernels = r.capturedWindowKernels || path == driver.PathWindow
	}
	return nil
}
